"""DDPG, TD3 and SAC in JAX: they compute what their twins compute, and resume and refuse mistakes like them."""

import dataclasses
import importlib.util
import runpy
import shutil
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import ROOT, assert_same_run, curves

if not importlib.util.find_spec("flax"):
    pytest.skip("the extra jax is not installed", allow_module_level=True)

import jax

from cleanrl import (
    ddpg_continuous_action,
    ddpg_continuous_action_jax,
    sac_continuous_action,
    sac_continuous_action_jax,
    td3_continuous_action,
    td3_continuous_action_jax,
)
from cleanrl_utils import run

MODULES = {"ddpg": ddpg_continuous_action_jax, "td3": td3_continuous_action_jax, "sac": sac_continuous_action_jax}
TWINS = {"ddpg": ddpg_continuous_action, "td3": td3_continuous_action, "sac": sac_continuous_action}
SCRIPTS = {name: Path(module.__file__) for name, module in MODULES.items()}
CRITICS = {"ddpg": ["qf1"], "td3": ["qf1", "qf2"], "sac": ["qf1", "qf2"]}
SHORT = ["--no-cuda", "--env-id", "TwoEnds-v0", "--num-envs", 2, "--batch-size", 16]
SHORT += ["--learning-starts", 200, "--total-timesteps", 600]
LOW, HIGH = np.array([-0.1, -3.0, 5.0], np.float32), np.array([0.7, 1.0, 5.5], np.float32)
OTHER_CPU = """
def initialize():
    from jax._src import xla_bridge
    from jax._src.lib import xla_client

    xla_bridge.register_backend_factory("other", xla_client.make_cpu_client, priority=500)
"""
everyone = pytest.mark.parametrize("name", MODULES)


class TwoEnds(gym.Env):
    """Observed are episode and step. Odd episodes terminate, even ones truncate. Actions beyond their bounds fail."""

    observation_space, action_space = gym.spaces.Box(0, np.inf, (2,)), gym.spaces.Box(LOW, HIGH)
    episode = -1

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.num_steps, self.length = self.episode + 1, 0, self.np_random.integers(2, 12)
        return np.array([self.episode, 0], np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.num_steps += 1
        is_over, is_odd = self.num_steps == self.length, self.episode % 2 == 1
        obs = np.array([self.episode, self.num_steps], np.float32)
        return obs, float(action[1]), is_over and is_odd, is_over and not is_odd, {}


gym.register("TwoEnds-v0", TwoEnds)
gym.register("Unbounded-v1", type("Unbounded", (TwoEnds,), {"action_space": gym.spaces.Box(-np.inf, 1, (3,))}))


def train(monkeypatch, folder, script, *flags) -> dict:
    """Train in this process; returns the variables of the script."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [str(script), *map(str, flags)])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    try:
        return runpy.run_path(str(script), run_name="__main__")
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="module")
def finished(request, tmp_path_factory):
    """A run to its end, with a model, and a copy of its folder as it was after the first checkpoint."""
    name, folder = request.param, tmp_path_factory.mktemp("finished")
    save_checkpoint = run.save_checkpoint

    def save_and_copy(run_dir, *arguments):
        save_checkpoint(run_dir, *arguments)
        if not (folder / "stopped").exists():
            shutil.copytree(run_dir, folder / "stopped")

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(run, "save_checkpoint", save_and_copy)
        flags = [*SHORT, "--save-model", "--checkpoint-frequency", 350]
        variables = train(monkeypatch, folder, SCRIPTS[name], *flags)
    paths = {"name": name, "folder": folder, "run_dir": folder / variables["run_dir"]}
    return SimpleNamespace(**variables | paths)


of_everyone = pytest.mark.parametrize("finished", MODULES, indirect=True, scope="module")
of_sac = pytest.mark.parametrize("finished", ["sac"], indirect=True, scope="module")


def copied(state):
    """An update takes the memory of the state that it is given."""
    return jax.tree.map(lambda x: x.copy(), state)


def draws(key, number, shape):
    """The next normal numbers that a state with this key gives."""
    drawn = []
    for _ in range(number):
        key, noise_key = jax.random.split(key)
        drawn.append(torch.tensor(np.array(jax.random.normal(noise_key, shape))))
    return drawn


def pairs(params, network, of_parameter=lambda x: x.data):
    """Weights and biases of a network here, and what belongs to the same ones in PyTorch."""
    for name, layer in params["params"]["network"].items():
        theirs = network.network[int(name.removeprefix("layers_"))]
        yield layer["kernel"].T, of_parameter(theirs.weight)
        yield layer["bias"], of_parameter(theirs.bias)


def layers(finished, network, vector):
    """The parameters of a network by their names."""
    return finished.to_actor(vector) if network == "actor" else finished.to_qf(vector)


def make_minibatch(rng, size=16):
    columns = [
        rng.standard_normal((size, 2)),
        rng.standard_normal((size, 2)),
        rng.uniform(LOW, HIGH, (size, 3)),
        rng.standard_normal((size, 1)),
        rng.random((size, 1)) < 0.3,
    ]
    return [x.astype(np.float32) for x in columns]


# Against the twins in PyTorch


@of_everyone
def test_losses_gradients_and_updates_are_those_of_the_twin(finished, monkeypatch, tmp_path):
    name, state = finished.name, copied(finished.train_state)
    script = ROOT / "cleanrl" / f"{name}_continuous_action.py"
    twin = train(monkeypatch, tmp_path, script, *SHORT, "--total-timesteps", 202, "--accelerate", "off")
    for kind, params in (("", state.params), ("target", state.target_params)):
        for network in params:
            key = {"": network, "target": "target_actor" if network == "actor" else f"{network}_target"}[kind]
            for ours, theirs in pairs(layers(finished, network, params[network]), twin[key]):
                theirs.copy_(torch.tensor(np.array(ours)))
    q_params = {critic: state.params[critic] for critic in CRITICS[name]}
    q_params = q_params["qf1"] if name == "ddpg" else q_params
    fresh = {"q_optimizer_state": finished.q_optimizer.init(q_params)}
    fresh["actor_optimizer_state"] = finished.actor_optimizer.init(state.params["actor"])
    if name == "sac":
        fresh["alpha_optimizer_state"] = finished.alpha_optimizer.init(state.log_alpha)
        twin["log_alpha"].data.fill_(float(state.log_alpha))
    state = state._replace(**fresh)
    for optimizer in (key for key in twin if key.endswith("_optimizer")):
        twin[optimizer].state.clear()

    noise = []
    monkeypatch.setattr(torch, "randn_like", lambda x: noise.pop(0))
    rng = np.random.default_rng(1)
    for policy_is_due in (True, False, True):
        minibatch = make_minibatch(rng)
        flags = [policy_is_due, True] if name == "sac" else [policy_is_due]
        if name != "ddpg":
            noise[:] = draws(state.key, 1 if name == "td3" else 1 + 2 * policy_is_due, (16, 3))
        state, stats = finished.update(state, np.concatenate(minibatch, axis=1), *flags)
        twin_stats = twin["update"](*map(torch.from_numpy, minibatch), *flags)
        assert not noise
        expected = {key: x.item() for key, x in twin_stats.items()}
        assert {key: float(x) for key, x in stats.items()} == pytest.approx(expected, rel=1e-4, abs=1e-5)
        # Adam's first moments add up the gradients
        moments = state.q_optimizer_state[0].mu
        moments = {"qf1": moments} if name == "ddpg" else dict(moments)
        moments["actor"] = state.actor_optimizer_state[0].mu
        for network, vector in moments.items():
            tree = layers(finished, network, vector)
            optimizer = twin["actor_optimizer" if network == "actor" else "q_optimizer"]
            for ours, theirs in pairs(tree, twin[network], lambda x: optimizer.state[x]["exp_avg"]):  # noqa: B023
                assert np.abs(ours).max() > 1e-5
                np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-6 * float(theirs.abs().max() + 1))
    for network in state.params:
        for ours, theirs in pairs(layers(finished, network, state.params[network]), twin[network]):
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=5e-5)
    for network in state.target_params:
        twin_target = twin["target_actor" if network == "actor" else f"{network}_target"]
        for ours, theirs in pairs(layers(finished, network, state.target_params[network]), twin_target):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    if name == "sac":
        assert float(state.log_alpha) == pytest.approx(twin["log_alpha"].item(), abs=1e-5)


def test_smoothing_is_that_of_the_twin(monkeypatch):
    envs = SimpleNamespace(single_observation_space=TwoEnds.observation_space, single_action_space=TwoEnds.action_space)
    actions = np.random.default_rng(1).uniform(LOW, HIGH, (1000, 3)).astype(np.float32)
    key = jax.random.key(3)
    noise = torch.tensor(np.array(jax.random.normal(key, actions.shape)))
    monkeypatch.setattr(torch, "randn_like", lambda x: noise)
    actor, twin = td3_continuous_action_jax.Actor(LOW, HIGH), td3_continuous_action.Actor(envs)
    for policy_noise, noise_clip in ((0.2, 0.5), (3.0, 0.1), (3.0, 9.0)):
        ours = td3_continuous_action_jax.smooth(actions, actor, key, policy_noise, noise_clip)
        theirs = td3_continuous_action.smooth(torch.from_numpy(actions), twin, policy_noise, noise_clip)
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)


def test_log_probability_is_that_of_the_twin_also_where_tanh_rounds_to_one():
    u, log_std, noise = np.random.default_rng(1).standard_normal((3, 500, 3)).astype(np.float32)
    u *= np.geomspace(0.01, 100, 500, dtype=np.float32)[:, None]
    scale = (HIGH - LOW) / 2
    ours = sac_continuous_action_jax.log_prob(u, log_std, noise, scale)
    theirs = sac_continuous_action.log_prob(*map(torch.from_numpy, (u, log_std, noise, scale)))
    assert ours.shape == (500, 1)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@of_everyone
def test_saved_policy_is_that_of_the_twin_within_the_bounds(finished):
    name = finished.name
    envs = MODULES[name].make_envs("TwoEnds-v0", 1, False, "")
    twin = TWINS[name].Actor(envs)
    for ours, theirs in pairs(finished.to_actor(finished.train_state.params["actor"]), twin):
        theirs.copy_(torch.tensor(np.array(ours)))
    obs = np.random.default_rng(4).standard_normal((500, 2)) * np.geomspace(0.001, 1000, 500)[:, None]
    model_path = finished.run_dir / f"{name}_continuous_action_jax.safetensors"
    policy = MODULES[name].load_policy(model_path, envs)
    deterministic = [True] if name == "sac" else []
    expected = twin.get_action(torch.tensor(obs, dtype=torch.float32), *deterministic)
    np.testing.assert_allclose(policy(obs), expected, rtol=1e-4, atol=1e-4)
    assert (policy(obs) == policy(obs)).all() and (policy(obs) >= LOW).all() and (policy(obs) <= HIGH).all()
    assert np.ptp(policy(obs), axis=0).max() > 0.01
    sampled = MODULES[name].load_policy(model_path, envs, deterministic=False)
    assert (sampled(obs) == sampled(obs)).all() == (name != "sac")


# A run


@of_everyone
def test_metrics_and_evaluation(finished):
    logged = curves(finished.run_dir)
    losses = {f"losses/{critic}_{what}" for critic in CRITICS[finished.name] for what in ("values", "loss")}
    losses |= {"losses/actor_loss"}
    losses |= {"losses/qf_loss"} if finished.name != "ddpg" else set()
    losses |= {"losses/alpha", "losses/alpha_loss"} if finished.name == "sac" else set()
    charts = {"charts/episodic_return", "charts/episodic_length", "charts/SPS"}
    assert logged.keys() == losses | charts | {"eval/episodic_return"}
    for tag in losses:
        assert [step for step, _ in logged[tag]] == [300, 400, 500, 600], tag
    assert len(logged["eval/episodic_return"]) == 10


@of_everyone
def test_updates_follow_the_steps_and_each_kind_is_compiled_once(finished):
    state = finished.train_state
    assert state.q_optimizer_state[0].count == 400  # two environments, and an update for each step of each
    assert state.actor_optimizer_state[0].count == (400 if finished.name == "sac" else 200)
    assert finished.update._cache_size() <= 2  # with the policy and without
    if finished.name == "sac":
        assert state.alpha_optimizer_state[0].count == 400 and finished.target_entropy == -3


@of_everyone
def test_newest_policy_acts(finished):
    assert (finished.acting_params == finished.train_state.params["actor"]).all()


@of_everyone
def test_stored_transitions_stay_within_their_episode(finished):
    rows = finished.buffer.rows[: finished.buffer.num_added]
    assert len(rows) == 600 and rows.dtype == np.float32
    obs, next_obs, actions, rewards, terminations = np.split(rows, finished.buffer.column_ends, axis=1)
    assert (next_obs[:, 0] == obs[:, 0]).all() and (next_obs[:, 1] == obs[:, 1] + 1).all()
    assert (rewards == actions[:, 1:2]).all()
    for idx in range(2):
        episodes, ends = obs[idx::2, 0], terminations[idx::2, 0]
        last = np.flatnonzero(np.diff(episodes))  # the last step of each episode
        assert len(last) > 20 and (ends[last] == episodes[last] % 2).all()
    assert {tuple(row) for row in finished.buffer.sample(6000)} == {tuple(row) for row in rows}


@of_everyone
def test_every_environment_and_every_action_explores_with_noise_of_its_own(finished):
    state, obs = finished.train_state, np.ones((5000, 2), np.float32)
    drawn = np.random.default_rng(5).standard_normal((2, 5000, 3)).astype(np.float32)
    actions, again = (np.asarray(finished.act(state.params["actor"], obs, noise)) for noise in drawn)
    assert (actions != again).any(1).mean() > 0.9 and len(np.unique(actions, axis=0)) > 1000
    assert ((actions >= LOW) & (actions <= HIGH)).all()
    if finished.name != "sac":
        mean = np.asarray(finished.actor.apply(finished.to_actor(state.params["actor"]), obs[:1]))
        inside = (mean - LOW > 0.05 * (HIGH - LOW)) & (HIGH - mean > 0.05 * (HIGH - LOW))
        noise = (actions - mean) / ((HIGH - LOW) / 2)
        half = np.median(np.abs(noise), axis=0)  # of a normal variable with deviation 0.1; clipping does not move it
        np.testing.assert_allclose(half[inside[0]], 0.0674, rtol=0.1)


@pytest.mark.parametrize(
    "finished",
    [pytest.param("ddpg", marks=pytest.mark.slow), pytest.param("td3", marks=pytest.mark.slow), "sac"],
    indirect=True,
    scope="module",
)
def test_stopped_and_resumed_run_equals_one_that_never_stopped(finished, monkeypatch):
    stopped = finished.folder / "stopped"
    resumed = train(monkeypatch, finished.folder, SCRIPTS[finished.name], "--resume", stopped)
    assert_same_run(finished.run_dir, stopped)
    states = finished.train_state, resumed["train_state"]
    for ours, theirs in zip(*map(jax.tree.leaves, states), strict=True):
        assert (ours == theirs).all()
    assert (resumed["buffer"].rows == finished.buffer.rows).all()


@pytest.mark.slow
@pytest.mark.parametrize("name, num_envs", [("ddpg", 1), ("td3", 3), ("sac", 1)])
def test_killed_and_resumed_run_equals_one_that_never_stopped(runner, name, num_envs):
    flags = ["--no-cuda", "--env-id", "Pendulum-v1", "--learning-starts", 200, "--num-envs", num_envs]
    flags += ["--batch-size", 16, "--total-timesteps", 2000, "--checkpoint-frequency", 300, "--save-model"]
    never_stopped = runner.train(*flags, script=SCRIPTS[name])
    process = runner.start(SCRIPTS[name], *flags, "--exp-name", "killed")
    checkpoint = runner.wait_for("runs/*killed*/checkpoint.pt", process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    runner.run(SCRIPTS[name], "--resume", checkpoint.parent)
    assert_same_run(never_stopped, checkpoint.parent)
    again = runner.run("-m", "cleanrl_utils.evaluate", checkpoint.parent)
    assert "10 episodes" in again.stdout


@pytest.mark.slow
@everyone
def test_same_seed_gives_the_same_run_and_another_does_not(monkeypatch, tmp_path, name):
    first, second, other = (
        train(monkeypatch, tmp_path, SCRIPTS[name], *SHORT, "--total-timesteps", 300, "--seed", seed, "--exp-name", run)
        for run, seed in (("first", 1), ("second", 1), ("other", 2))
    )
    leaves = [jax.tree.leaves(variables["train_state"].params) for variables in (first, second, other)]
    assert all((x == y).all() for x, y in zip(leaves[0], leaves[1], strict=True))
    assert any((x != y).any() for x, y in zip(leaves[0], leaves[2], strict=True))


@pytest.mark.slow
@everyone
def test_policy_acts_on_the_cpu_or_without_one_on_the_only_device(runner, monkeypatch, name):
    """A second CPU takes the part of a GPU: JAX finds it as a plugin, and prefers it."""
    folder = runner.folder / "jax_plugins" / "other"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(OTHER_CPU)
    flags = ["--env-id", "Pendulum-v1", "--learning-starts", 200, "--total-timesteps", 300, "--save-model"]
    runs = []
    for platforms in ("cpu", "other", ""):
        monkeypatch.setenv("JAX_PLATFORMS", platforms)
        process = runner.start(SCRIPTS[name], *flags, "--exp-name", f"on_{platforms}", modules=runner.folder)
        _, said = process.communicate()
        assert process.returncode == 0, said
        runs.append(next(runner.folder.glob(f"runs/*__on_{platforms}__*")))
    assert_same_run(runs[0], runs[1])
    assert_same_run(runs[0], runs[2])


@pytest.mark.slow
@everyone
def test_optimizers_with_weight_decay_train(monkeypatch, tmp_path, name):
    source = SCRIPTS[name].read_text()
    for optimizer in ("q_optimizer", "actor_optimizer"):
        assert source.count(f"{optimizer} = optax.adam(") == 1
        source = source.replace(f"{optimizer} = optax.adam(", f"{optimizer} = optax.adamw(")
    (tmp_path / "mine.py").write_text(source)
    assert "actor_loss" in train(monkeypatch, tmp_path, tmp_path / "mine.py", *SHORT)["stats"]


@pytest.mark.slow
@everyone
def test_copied_out_file_trains_in_an_empty_folder_without_the_repository(runner, name):
    script = Path(shutil.copy(SCRIPTS[name], runner.folder / "mine.py"))
    flags = ["--no-cuda", "--env-id", "Pendulum-v1", "--learning-starts", 200, "--total-timesteps", 400, "--save-model"]
    run_dir = runner.train(*flags, script=script, modules=ROOT / "tests" / "modules" / "without_utils")
    assert (run_dir / "mine.safetensors").exists() and len(curves(run_dir)["losses/qf1_loss"]) == 2


@pytest.mark.slow
def test_videos_are_recorded(runner):
    flags = ["--no-cuda", "--env-id", "Pendulum-v1", "--learning-starts", 200, "--total-timesteps", 210]
    run_dir = runner.train(*flags, "--capture-video", "--save-model", script=SCRIPTS["sac"])
    assert list(run_dir.glob("videos/*.mp4")) and list(run_dir.glob("evaluation/videos/*.mp4"))


@pytest.mark.slow
def test_pendulum_is_learned(runner):
    hurry = ["--learning-starts", 500, "--policy-lr", "1e-3", "--batch-size", 128]
    flags = ["--no-cuda", "--env-id", "Pendulum-v1", "--total-timesteps", 5000, *hurry]
    returns = [value for _, value in curves(runner.train(*flags, script=SCRIPTS["sac"]))["charts/episodic_return"]]
    assert np.mean(returns[-5:]) > -400, returns  # a random policy: about -1200


# Flags and mistakes


@everyone
def test_defaults_are_those_of_the_twin_and_every_flag_is_used(name):
    ours, theirs = (dataclasses.asdict(module.Args()) for module in (MODULES[name], TWINS[name]))
    assert theirs.items() - ours.items() == {
        ("exp_name", f"{name}_continuous_action"),
        ("torch_deterministic", True),
        ("compile", False),
        ("accelerate", "auto"),
    }
    source = "".join(path.read_text() for path in (SCRIPTS[name], *(ROOT / "cleanrl_utils").rglob("*.py")))
    assert all(f"args.{flag}" in source for flag in ours)


@pytest.mark.parametrize(
    "name, flags, words",
    [
        ("ddpg", ["--env-id", "CartPole-v1"], ["Discrete(2)", "dqn.py"]),
        ("td3", ["--env-id", "Unbounded-v1"], ["-inf", "not a bounded vector"]),
        ("ddpg", ["--env-id", "TwoEnds-v0", "--total-timesteps", 25_000], ["--learning-starts 25000"]),
        ("td3", ["--policy-frequency", 0], ["at least 1"]),
        ("sac", ["--target-network-frequency", 0], ["at least 1"]),
        ("sac", ["--env-id", "TwoEnds-v0", "--buffer-size", 10**13], ["--buffer-size", "fit"]),
        ("sac", ["--resume", "nowhere"], ["not a run folder"]),
    ],
)
def test_mistake_gets_one_clear_line_and_leaves_nothing_on_disk(monkeypatch, tmp_path, name, flags, words):
    with pytest.raises(SystemExit) as mistake:
        train(monkeypatch, tmp_path, SCRIPTS[name], *flags)
    line = mistake.value.code  # a text: Python prints it and exits with 1
    assert isinstance(line, str) and "\n" not in line and all(word in line for word in words), line
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@everyone
def test_loss_that_is_not_finite_stops_the_run_and_is_named(monkeypatch, tmp_path, name):
    rate = ["--q-lr", 1e38] if name == "sac" else ["--learning-rate", 1e38]
    with pytest.raises(FloatingPointError, match="qf1_.* is not finite at global_step=300"):
        train(monkeypatch, tmp_path, SCRIPTS[name], *SHORT, "--env-id", "Pendulum-v1", *rate)


@of_sac
@pytest.mark.parametrize(
    "flags, words", [(["--no-autotune"], "--autotune is True"), (["--alpha", 0.1], "--alpha is 0.2")]
)
def test_resumed_run_keeps_its_temperature(finished, monkeypatch, flags, words):
    with pytest.raises(SystemExit, match=f"{words} there and cannot change"):
        train(monkeypatch, finished.folder, SCRIPTS["sac"], "--resume", finished.run_dir, *flags)


@pytest.mark.slow
def test_fixed_temperature_stays_and_has_no_loss(monkeypatch, tmp_path):
    for alpha in (0.2, 0.0):
        flags = [*SHORT, "--total-timesteps", 300, "--no-autotune", "--alpha", alpha, "--exp-name", f"alpha{alpha}"]
        variables = train(monkeypatch, tmp_path, SCRIPTS["sac"], *flags)
        assert float(variables["stats"]["alpha"]) == pytest.approx(alpha) and "alpha_loss" not in variables["stats"]


@pytest.mark.slow
def test_target_networks_of_sac_move_at_their_own_frequency(monkeypatch, tmp_path):
    flags = [*SHORT, "--target-network-frequency", 400]
    state = train(monkeypatch, tmp_path, SCRIPTS["sac"], *flags, "--tau", 1, "--total-timesteps", 400)["train_state"]
    for critic in ("qf1", "qf2"):  # moved once, in the last step, all the way
        params, target_params = state.params[critic], state.target_params[critic]
        assert (params == target_params).all()
    state = train(monkeypatch, tmp_path, SCRIPTS["sac"], *flags, "--total-timesteps", 390, "--exp-name", "before")
    state = state["train_state"]
    assert not (state.params["qf1"] == state.target_params["qf1"]).all()
