"""ppo_jax.py: its environments are gymnasium's, it computes what ppo.py computes, and each seed is a run of its own."""

import dataclasses
import importlib.util
import json
import re
import runpy
import shutil
import signal
import sys
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import ROOT, Runner, assert_same_run, curves
from safetensors.numpy import load_file

if not importlib.util.find_spec("flax"):
    pytest.skip("the extra jax is not installed", allow_module_level=True)

import jax
import jax.numpy as jnp

from cleanrl import ppo, ppo_jax

PPO = ROOT / "cleanrl" / "ppo_jax.py"
SHORT = ["--no-cuda", "--num-envs", "2", "--num-steps", "32", "--num-minibatches", "2", "--total-timesteps", "1280"]

# An environment that never ends by itself, and one that breaks once in a while
OWN_ENVS = """
import jax
import jax.numpy as jnp


class Endless:
    obs_dim = 1
    num_actions = 2
    max_steps = 5

    def reset(self, key):
        return jnp.zeros(1), jnp.zeros(1)

    def step(self, state, action):
        return state + 1, jnp.zeros(1), 1.0, False


class Broken(Endless):
    def reset(self, key):
        luck = jax.random.uniform(key, (1,))
        return luck, luck

    def step(self, state, action):
        reward = jnp.where(state[0] < 0.003, jnp.nan, 1.0)
        return state, state, reward, False
"""


def twin_of(params) -> ppo.Agent:
    """The agent of ppo.py with the weights of this one."""
    agent = ppo.Agent(ppo.make_envs("CartPole-v1", 1, False, ""))
    for network in ("actor", "critic"):
        for number in (0, 2, 4):
            layer = params["params"][network][f"layers_{number}"]
            getattr(agent, network)[number].weight.data = torch.tensor(np.array(layer["kernel"]).T)
            getattr(agent, network)[number].bias.data = torch.tensor(np.array(layer["bias"]))
    return agent


def make_params(rng) -> dict:
    """Random weights of an agent for CartPole."""
    networks = {}
    for network, num_outputs in (("actor", 2), ("critic", 1)):
        sizes = {"layers_0": (4, 64), "layers_2": (64, 64), "layers_4": (64, num_outputs)}
        networks[network] = {
            name: {
                "kernel": (0.2 * rng.standard_normal(size)).astype(np.float32),
                "bias": (0.2 * rng.standard_normal(size[1])).astype(np.float32),
            }
            for name, size in sizes.items()
        }
    return {"params": networks}


def make_minibatch(rng, size=64) -> list[np.ndarray]:
    """Observations, actions, old log-probabilities, advantages, returns and old values."""
    rest = [rng.standard_normal(size).astype(np.float32) for _ in range(3)]
    logprobs = np.log(rng.uniform(0.3, 0.7, size)).astype(np.float32)
    return [rng.standard_normal((size, 4)).astype(np.float32), rng.integers(0, 2, size), logprobs, *rest]


@pytest.fixture
def script(monkeypatch, tmp_path):
    """Train in this process; returns the variables of the script."""

    def train(*flags) -> dict:
        (tmp_path / "own_envs.py").write_text(OWN_ENVS)
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(sys, "argv", [str(PPO), *map(str, flags)])
        monkeypatch.setattr(sys, "excepthook", sys.excepthook)
        return runpy.run_path(str(PPO), run_name="__main__")

    return train


@pytest.fixture(scope="module")
def two_seeds(tmp_path_factory) -> list:
    """The run folders of the seeds 7 and 8, trained by one program."""
    runner = Runner(tmp_path_factory.mktemp("two_seeds"))
    runner.run(PPO, *SHORT, "--seed", 7, "--num-seeds", 2, "--save-model", "--log-frequency", 3)
    return sorted(runner.folder.glob("runs/*"))


# The environments


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Acrobot-v1", "MountainCar-v0"])
def test_each_step_is_that_of_gymnasium(env_id):
    ours, theirs = ppo_jax.make_jax_env(env_id), gym.make(env_id)
    assert (ours.obs_dim,) == theirs.observation_space.shape
    assert ours.num_actions == theirs.action_space.n and ours.max_steps == theirs.spec.max_episode_steps
    step = jax.jit(ours.step)
    rng, seen = np.random.default_rng(1), []
    theirs.reset(seed=1)
    for _ in range(400):
        if env_id == "CartPole-v1":
            state = rng.uniform(-1, 1, 4) * [2.6, 3, 0.25, 3]
        elif env_id == "Acrobot-v1":
            state = rng.uniform(-1, 1, 4) * [np.pi, np.pi, 4 * np.pi, 9 * np.pi]
        else:
            state = rng.uniform([-1.2, -0.07], [0.6, 0.07])
        state, action = state.astype(np.float32), int(rng.integers(ours.num_actions))
        theirs.reset()
        theirs.unwrapped.state = state.astype(np.float64)
        obs, reward, termination, _, _ = theirs.step(action)
        new_state, our_obs, our_reward, our_termination = step(state, action)
        tolerance = 2e-3 if env_id == "Acrobot-v1" else 1e-5  # it moves by several radians in a step
        angles = [0, 1] if env_id == "Acrobot-v1" else []  # those may differ by a whole turn
        difference = np.asarray(new_state) - np.asarray(theirs.unwrapped.state)
        difference[angles] = (difference[angles] + np.pi) % (2 * np.pi) - np.pi
        np.testing.assert_allclose(difference, 0, atol=tolerance)
        np.testing.assert_allclose(our_obs, obs, atol=tolerance)
        assert float(our_reward) == reward and bool(our_termination) == termination
        seen.append(termination)
    assert 0 < sum(seen) < len(seen)  # ends of episodes were among them, and other steps


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Acrobot-v1", "MountainCar-v0"])
def test_first_states_are_spread_like_those_of_gymnasium(env_id):
    ours, theirs = ppo_jax.make_jax_env(env_id), gym.make(env_id)
    _, our_obs = jax.vmap(ours.reset)(jax.random.split(jax.random.key(1), 2000))
    theirs.reset(seed=1)
    obs = np.array([theirs.reset()[0] for _ in range(2000)])
    np.testing.assert_allclose(our_obs.min(0), obs.min(0), atol=0.005)
    np.testing.assert_allclose(our_obs.max(0), obs.max(0), atol=0.005)
    np.testing.assert_allclose(our_obs.mean(0), obs.mean(0), atol=0.005)


def test_last_step_of_an_episode_keeps_its_final_observation_and_begins_the_next():
    class Counter:
        max_steps = 3

        def reset(self, key):
            return jnp.float32(0), jnp.zeros(1)

        def step(self, state, action):
            return state + 1, jnp.full(1, state + 1), 2.0, state + 1 >= action

    env_state, seen = ppo_jax.reset_env(Counter(), None), []
    for never_terminates in (9, 9, 9, 1, 9):
        new_episode = ppo_jax.reset_env(Counter(), None)
        env_state, step = ppo_jax.step_env(Counter(), env_state, never_terminates, new_episode)
        flags = bool(step.terminations), bool(step.truncations)
        seen.append((float(step.obs[0]), float(step.next_obs[0]), *flags, float(step.episodic_returns)))
    assert seen == [
        (0.0, 1.0, False, False, 2.0),
        (1.0, 2.0, False, False, 4.0),
        (2.0, 3.0, False, True, 6.0),  # the time limit: the next step starts from 0
        (0.0, 1.0, True, False, 2.0),
        (0.0, 1.0, False, False, 2.0),
    ]


# The formulas


def test_advantages_are_those_of_the_twin_in_pytorch():
    rng = np.random.default_rng(2)
    rewards, values, next_values = rng.standard_normal((3, 20, 3)).astype(np.float32)
    terminations, truncations = rng.random((2, 20, 3)) < 0.2
    rollout = rewards, terminations, truncations, values, next_values
    expected = ppo.compute_gae(*map(torch.from_numpy, rollout), 0.9, 0.8)
    for ours, theirs in zip(ppo_jax.compute_gae(*map(jnp.asarray, rollout), 0.9, 0.8), expected, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("norm_adv, clip_vloss", [(True, True), (False, False)])
def test_loss_and_gradients_are_those_of_the_twin_in_pytorch(norm_adv, clip_vloss):
    settings = {"norm_adv": norm_adv, "clip_vloss": clip_vloss, "clip_coef": 0.1, "ent_coef": 0.1, "vf_coef": 0.7}
    args = SimpleNamespace(**settings)
    minibatch = make_minibatch(np.random.default_rng(3))
    agent = ppo_jax.Agent(2)
    params = make_params(np.random.default_rng(4))

    def loss_of(params):
        outputs = agent.apply(params, *minibatch[:2], method="evaluate_actions")
        return ppo_jax.ppo_loss(*outputs, *minibatch[2:], args)

    (loss, stats), gradients = jax.jit(jax.value_and_grad(loss_of, has_aux=True))(params)
    twin = twin_of(params)
    minibatch = list(map(torch.from_numpy, minibatch))
    twin_loss, twin_stats = ppo.ppo_loss(*twin.evaluate_actions(*minibatch[:2]), *minibatch[2:], args)
    twin_loss.backward()
    assert float(loss) == pytest.approx(twin_loss.item(), rel=1e-5)
    assert {name: float(x) for name, x in stats.items()} == pytest.approx(
        {name: x.item() for name, x in twin_stats.items()}, rel=1e-4, abs=1e-6
    )
    for network in ("actor", "critic"):
        for number in (0, 2, 4):
            layer, twin_layer = gradients["params"][network][f"layers_{number}"], getattr(twin, network)[number]
            np.testing.assert_allclose(layer["kernel"].T, twin_layer.weight.grad, rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(layer["bias"], twin_layer.bias.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_initial_weights_are_orthogonal_with_the_gains_of_the_twin():
    params = ppo_jax.Agent(2).init(jax.random.key(1), np.zeros((1, 4)), np.zeros(1, int), method="evaluate_actions")
    gains = {("critic", 2): 2**0.5, ("critic", 4): 1.0, ("actor", 2): 2**0.5, ("actor", 4): 0.01}
    for (network, number), gain in gains.items():
        layer = params["params"][network][f"layers_{number}"]
        gram = layer["kernel"].T @ layer["kernel"]
        np.testing.assert_allclose(gram, gain**2 * np.eye(len(gram)), atol=1e-5)
        assert not layer["bias"].any()


@pytest.mark.slow
def test_updates_of_the_script_end_where_those_of_the_twin_end(script):
    """Adam, its epsilon and the clipped gradient included."""
    variables = script(*SHORT)
    params = variables["take_seed"](variables["train_state"], 0).params
    agent_state = params, variables["optimizer"].init(params)
    twin = twin_of(params)
    optimizer = torch.optim.Adam(twin.parameters(), 1e-3, eps=1e-5)
    rng = np.random.default_rng(4)
    update = jax.jit(variables["update"])
    for _ in range(20):
        minibatch = make_minibatch(rng)
        minibatch[4] *= 10  # large returns: the gradient is clipped
        agent_state, stats = update(1e-3, agent_state, minibatch)
        minibatch = list(map(torch.from_numpy, minibatch))
        optimizer.zero_grad()
        outputs = twin.evaluate_actions(*minibatch[:2])
        ppo.ppo_loss(*outputs, *minibatch[2:], variables["args"])[0].backward()
        norm = torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.5)
        optimizer.step()
        assert float(stats["grad_norm"]) == pytest.approx(norm.item(), rel=1e-3) and norm > 0.5
    for network in ("actor", "critic"):
        kernel = agent_state[0]["params"][network]["layers_2"]["kernel"]
        np.testing.assert_allclose(kernel.T, getattr(twin, network)[2].weight.detach(), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_seeds_side_by_side_as_on_a_gpu_get_almost_the_same_numbers(script):
    variables = script(*SHORT, "--num-seeds", 2)
    train_state = variables["stack_seeds"]([variables["start"](seed) for seed in (1, 2)])
    side_by_side = jax.jit(jax.vmap(variables["iterate"], in_axes=(0, None)))(train_state, 1e-3)
    one_by_one = variables["iterate_seeds"](train_state, 1e-3)
    assert (side_by_side[1]["return"] == one_by_one[1]["return"]).all()
    for ours, theirs in zip(
        jax.tree.leaves(side_by_side[0].params), jax.tree.leaves(one_by_one[0].params), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("limit, num_epochs", [("1e-9", 1), ("1e9", 4)])
def test_target_kl_ends_the_epochs(script, limit, num_epochs):
    variables = script(*SHORT, "--target-kl", limit)
    num_iterations, num_minibatches = 20, 2
    count = jax.tree.leaves(variables["train_state"].optimizer_state)[0]
    assert int(count[0]) == num_iterations * num_minibatches * num_epochs


@pytest.mark.slow
def test_truncated_episode_bootstraps_from_its_final_observation(script):
    """Reward 1 for ever is worth 1 / (1 - gamma) = 10, though every episode is cut off after five steps."""
    flags = ["--env-id", "own_envs:Endless", "--gamma", 0.9, "--learning-rate", 0.01, "--no-clip-vloss"]
    variables = script("--no-cuda", "--total-timesteps", 40_000, *flags)
    params = variables["take_seed"](variables["train_state"], 0).params
    assert float(variables["get_value"](params, jnp.zeros(1))) == pytest.approx(10, abs=0.5)


# The runs


def test_each_seed_has_a_run_folder_like_that_of_a_single_run(two_seeds):
    assert len(two_seeds) == 2
    for run_dir, seed in zip(two_seeds, (7, 8), strict=True):
        env_id, exp_name, name_seed, _ = run_dir.name.split("__")
        assert (env_id, exp_name, name_seed) == ("CartPole-v1", "ppo_jax", str(seed))
        args = json.loads((run_dir / "args.json").read_text())
        assert (args["seed"], args["num_seeds"], args["num_iterations"]) == (seed, 1, 20)
        assert (run_dir / "ppo_jax.py").read_bytes() == PPO.read_bytes()
        assert (run_dir / "checkpoint.pt").exists() and not (run_dir / ".lock").exists()
    models = [load_file(run_dir / "ppo_jax.safetensors") for run_dir in two_seeds]
    assert all((models[0][name] != models[1][name]).any() for name in models[0])


def test_metrics_are_those_of_ppo_and_every_episode_is_logged(two_seeds):
    losses = "value_loss policy_loss entropy old_approx_kl approx_kl clipfrac grad_norm explained_variance"
    names = {f"losses/{name}" for name in losses.split()}
    for run_dir in two_seeds:
        logged = curves(run_dir)
        assert logged.keys() == names | {f"charts/{name}" for name in ["learning_rate", "SPS"]} | {
            "charts/episodic_return",
            "charts/episodic_length",
            "eval/episodic_return",
        }
        steps = [64 * iteration for iteration in (3, 6, 9, 12, 15, 18, 20)]
        for name in names | {"charts/SPS"}:
            assert [step for step, _ in logged[name]] == steps, name
        assert logged["charts/learning_rate"][-1][1] == pytest.approx(2.5e-4 / 20)
        assert logged["charts/episodic_return"] == logged["charts/episodic_length"]  # in CartPole
        by_env = [[(step, value) for step, value in logged["charts/episodic_return"] if step % 2 == i] for i in (1, 0)]
        for episodes in by_env:  # an episode begins with the step after the last one
            ends = [0, *((step + 1) // 2 for step, _ in episodes)]
            assert np.diff(ends).tolist() == [value for _, value in episodes] and len(episodes) > 10


def test_saved_policy_is_that_of_the_twin_with_its_weights(two_seeds):
    model = two_seeds[1] / "ppo_jax.safetensors"
    envs = ppo_jax.make_envs("CartPole-v1", 1, False, "")
    twin = twin_of(ppo_jax.unflatten_dict(load_file(model), sep="."))
    obs = np.random.default_rng(5).standard_normal((2000, 4))
    x = torch.tensor(obs, dtype=torch.float32)
    assert (ppo_jax.load_policy(model, envs)(obs) == twin.get_action(x, deterministic=True).numpy()).all()
    np.random.seed(1)
    stochastic = ppo_jax.load_policy(model, envs, deterministic=False)(obs)
    expected = twin.actor(x).softmax(-1)[:, 1].mean().item()
    assert stochastic.mean() == pytest.approx(expected, abs=0.04)


def test_stochastic_policy_follows_the_seed_of_numpy(two_seeds):
    envs = ppo_jax.make_envs("CartPole-v1", 1, False, "")
    sampled = []
    for seed in (1, 1, 2):
        np.random.seed(seed)
        policy = ppo_jax.load_policy(two_seeds[1] / "ppo_jax.safetensors", envs, deterministic=False)
        sampled.append(policy(np.zeros((100, 4))))
    assert (sampled[0] == sampled[1]).all() and (sampled[0] != sampled[2]).any()


def test_largest_seed_trains(script):
    assert script(*SHORT, "--total-timesteps", 64, "--seed", 2**32 - 1)["global_step"] == 64


@pytest.mark.slow
def test_evaluation_works_on_each_run(runner, two_seeds):
    for run_dir in two_seeds:
        result = runner.run("-m", "cleanrl_utils.evaluate", run_dir, "--episodes", 3, "--stochastic")
        assert "3 episodes" in result.stdout and "trained to step 1280" in result.stdout


@pytest.mark.slow
def test_seed_among_others_equals_the_single_run_of_that_seed(runner, two_seeds):
    for seed, run_dir in zip((7, 8), two_seeds, strict=True):
        alone = runner.train(*SHORT, "--seed", seed, "--save-model", "--log-frequency", 3, script=PPO)
        assert_same_run(run_dir, alone)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_stopped_and_resumed_seeds_equal_seeds_that_never_stopped(runner, number):
    flags = [*SHORT, "--total-timesteps", "64000", "--num-seeds", "2", "--save-model"]
    flags += ["--checkpoint-frequency", "6400"]
    runner.run(PPO, *flags)
    never_stopped = sorted(runner.folder.glob("runs/*"))
    process = runner.start(PPO, *flags, "--exp-name", "stopped")
    runner.wait_for("runs/*stopped__2*/checkpoint.pt", process)
    process.send_signal(number)
    _, said = process.communicate()
    stopped = sorted(runner.folder.glob("runs/*stopped*"))
    if number == signal.SIGTERM:
        assert f"--resume runs/{stopped[0].name} --num-seeds 2" in said
    result = runner.run(PPO, "--resume", f"runs/{stopped[0].name}", "--num-seeds", 2, check=False)
    if "at another step" in result.stderr:  # killed between the two checkpoints
        for run_dir in stopped:
            runner.run(PPO, "--resume", f"runs/{run_dir.name}")
    else:
        assert result.returncode == 0, result.stderr
    for run_a, run_b in zip(never_stopped, stopped, strict=True):
        assert_same_run(run_a, run_b)


@pytest.mark.slow
def test_one_of_several_seeds_can_be_resumed_alone_for_longer(runner):
    runner.run(PPO, *SHORT, "--num-seeds", 2, "--no-anneal-lr")
    first, second = sorted(runner.folder.glob("runs/*"))
    runner.run(PPO, "--resume", second, "--total-timesteps", 2560, "--save-model")
    alone = runner.train(*SHORT, "--seed", 2, "--no-anneal-lr", "--total-timesteps", 2560, "--save-model", script=PPO)
    model, expected = load_file(second / "ppo_jax.safetensors"), load_file(alone / "ppo_jax.safetensors")
    assert all((model[name] == expected[name]).all() for name in model)
    assert not (first / "ppo_jax.safetensors").exists()
    renamed = first.rename(runner.folder / "renamed")
    result = runner.run(PPO, "--resume", renamed, "--num-seeds", 2, "--total-timesteps", 2560, check=False)
    assert result.returncode == 1 and "renamed" in result.stderr and len(result.stderr.splitlines()) == 1


@pytest.mark.slow
def test_number_that_is_not_finite_stops_the_run_and_names_the_seed(runner):
    (runner.folder / "own_envs.py").write_text(OWN_ENVS)
    flags = [*SHORT, "--env-id", "own_envs:Broken"]
    result = runner.run(PPO, *flags, "--num-seeds", 3, modules=runner.folder, check=False)
    found = re.search(r"rewards of seed (\d) is not finite at global_step=(\d+)", result.stderr)
    assert result.returncode == 1 and found and "Traceback" not in result.stderr, result.stderr
    result = runner.run(PPO, *flags, "--seed", found[1], modules=runner.folder, check=False)
    assert found[0] in result.stderr


@pytest.mark.parametrize("minibatches, name", [(1, "grad_norm"), (2, "value_loss")])
def test_of_numbers_that_are_not_finite_the_cause_is_named(runner, minibatches, name):
    flags = [*SHORT, "--vf-coef", "1e38", "--update-epochs", "1", "--num-minibatches", minibatches]  # a huge gradient
    result = runner.run(PPO, *flags, check=False)
    assert result.returncode == 1 and f"{name} of seed 1 is not finite" in result.stderr, result.stderr


@pytest.mark.slow
def test_own_environment_is_trained_and_each_episode_logged_at_its_own_step(runner):
    (runner.folder / "own_envs.py").write_text(OWN_ENVS)
    run_dir = runner.train(*SHORT, "--env-id", "own_envs:Endless", script=PPO, modules=runner.folder)
    returns = curves(run_dir)["charts/episodic_return"]
    assert [step for step, _ in returns] == [step for end in range(10, 1281, 10) for step in (end - 1, end)]
    assert {value for _, value in returns} == {5.0}


@pytest.mark.slow
def test_copied_file_trains_without_cleanrl_utils(runner):
    shutil.copy(PPO, runner.folder / "mine.py")
    (runner.folder / "cleanrl_utils.py").write_text("raise ModuleNotFoundError")
    process = runner.start("mine.py", *SHORT, "--num-seeds", 2, modules=runner.folder)
    said = process.communicate()
    assert process.returncode == 0, said
    run_dirs = list(runner.folder.glob("runs/*"))
    assert len(run_dirs) == 2 and all("losses/value_loss" in curves(run_dir) for run_dir in run_dirs)


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--env-id", "Pendulum-v1"], ["not written in JAX", "ppo.py"]),
        (["--env-id", "json:Nothing"], ["not written in JAX"]),
        (["--env-id", "no_such_module:Env"], ["no_such_module"]),
        (["--env-id", "json:JSONDecoder", "--save-model"], ["JSONDecoder"]),
        (["--num-seeds", "0"], ["--num-seeds 0"]),
        (["--num-seeds", "2", "--seed", str(2**32 - 1)], ["--num-seeds 2", "2**32"]),
        (["--num-seeds", "2", "--track"], ["--track", "wandb sync"]),
        (["--capture-video"], ["--capture-video", "--save-model"]),
    ],
)
def test_mistake_gets_one_clear_line_and_leaves_nothing_on_disk(runner, flags, words):
    result = runner.run(PPO, *flags, check=False)
    assert result.returncode == 1
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert all(word in result.stderr for word in words), result.stderr
    assert not list(runner.folder.iterdir())


def test_flags_and_defaults_are_those_of_ppo():
    own = {"exp_name": "ppo_jax", "num_seeds": 1, "log_frequency": 10}
    left_out = {"torch_deterministic", "compile", "accelerate"}
    expected = {name: value for name, value in dataclasses.asdict(ppo.Args()).items() if name not in left_out}
    assert dataclasses.asdict(ppo_jax.Args()) == expected | own


def test_every_flag_is_used():
    source = "".join(path.read_text() for path in (PPO, *(ROOT / "cleanrl_utils").rglob("*.py")))
    for field in dataclasses.fields(ppo_jax.Args):
        assert f"args.{field.name}" in source, field.name


@pytest.mark.slow
def test_cartpole_is_learned_by_every_seed(runner):
    runner.run(PPO, "--no-cuda", "--total-timesteps", "150000", "--num-seeds", 3)
    for run_dir in runner.folder.glob("runs/*"):
        returns = [value for _, value in curves(run_dir)["charts/episodic_return"]]
        assert np.mean(returns[-50:]) > 300, np.mean(returns[-50:])
