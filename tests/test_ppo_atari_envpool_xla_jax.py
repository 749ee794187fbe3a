"""PPO in JAX by EnvPool's XLA interface: it computes what its twin in PyTorch does, and skips reset steps like it."""

import dataclasses
import functools
import importlib.util
import runpy
import shutil
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ROOT, curves

if not importlib.util.find_spec("flax"):
    pytest.skip("the extra jax is not installed", allow_module_level=True)

import jax
import jax.numpy as jnp
from test_ppo_atari_envpool import MODULES, envpool, naive_advantages, replay  # skips this as well without EnvPool

from cleanrl import ppo_atari_envpool as twin
from cleanrl import ppo_atari_envpool_xla_jax as ours
from cleanrl_utils import evaluate, run

SCRIPT = ROOT / "cleanrl" / "ppo_atari_envpool_xla_jax.py"
NUM_ENVS, NUM_STEPS = 4, 16
FLAGS = ["--no-cuda", "--num-envs", NUM_ENVS, "--num-steps", NUM_STEPS, "--num-minibatches", 1, "--update-epochs", 1]
FLAGS += ["--learning-rate", 1e-3]
# Iterations, and the time limits of the two pools. The short one of Breakout cuts the first games off at the last step
# of the first rollout; the long one of Asterix lets some games end by themselves.
RUNS = {"Breakout-v5": (6, (NUM_STEPS, 60)), "Asterix-v5": (24, (60, 260))}
both_games = pytest.mark.parametrize("env_id", ["Breakout-v5", pytest.param("Asterix-v5", marks=pytest.mark.slow)])


# The twin in PyTorch


def twin_of(params):
    """The agent of ppo_atari_envpool.py with the weights of this one."""
    agent = twin.Agent(SimpleNamespace(single_action_space=SimpleNamespace(n=4)))
    agent.load_state_dict(in_torch(params["params"]))
    return agent


def in_torch(layers):
    """Parameters or gradients under the names, and in the layout, of PyTorch."""
    tensors = {}
    for name in ("critic", "actor"):
        tensors[f"{name}.weight"], tensors[f"{name}.bias"] = layers[name]["kernel"].T, layers[name]["bias"]
    for name, layer in layers["network"].items():
        number = int(name.removeprefix("layers_"))
        kernel = np.asarray(layer["kernel"])
        if kernel.ndim == 4:  # (height, width, inputs, outputs)
            kernel = kernel.transpose(3, 2, 0, 1)
        else:  # its inputs are (height, width, channels) here and (channels, height, width) there
            kernel = kernel.reshape(7, 7, 64, 512).transpose(3, 2, 0, 1).reshape(512, 3136)
        tensors[f"network.{number}.weight"], tensors[f"network.{number}.bias"] = kernel, layer["bias"]
    return {name: torch.tensor(np.array(x)) for name, x in tensors.items()}


def make_minibatch(rng, size=12):
    """Observations, actions, log-probabilities, advantages, returns, values, and which steps were played."""
    obs = rng.integers(0, 256, (size, 4, 84, 84), dtype=np.uint8)
    logprobs = np.log(0.25) + 0.2 * rng.standard_normal(size)
    columns = [logprobs, *rng.standard_normal((3, size))]
    actions = rng.integers(0, 4, size)
    return [obs, actions, *(x.astype(np.float32) for x in columns), rng.random(size) < 0.8]


@functools.cache
def make_agent():
    """An agent with random parameters; its own initial ones take seconds to compile."""
    agent, rng = ours.Agent(4), np.random.default_rng(0)
    obs, actions, *_ = make_minibatch(rng)
    shapes = jax.eval_shape(functools.partial(agent.init, method="evaluate_actions"), jax.random.key(1), obs, actions)

    def draw(shape):
        scale = np.sqrt(2 / np.prod(shape.shape[:-1])) if len(shape.shape) > 1 else 0.1
        return jnp.asarray(scale * rng.standard_normal(shape.shape), jnp.float32)

    return agent, jax.tree.map(draw, shapes)


def test_loss_and_gradients_of_the_network_are_those_of_the_twin_in_pytorch():
    agent, params = make_agent()
    obs, actions, *targets = make_minibatch(np.random.default_rng(1))
    args = ours.Args()

    @jax.jit
    def loss_and_gradients(params):
        def loss_of(params):
            outputs = agent.apply(params, obs, actions, method="evaluate_actions")
            return ours.ppo_loss(*outputs, *targets, args)

        return jax.value_and_grad(loss_of, has_aux=True)(params)

    (loss, stats), gradients = loss_and_gradients(params)
    torch_agent = twin_of(params)
    outputs = torch_agent.evaluate_actions(torch.tensor(obs), torch.tensor(actions))
    twin_loss, twin_stats = twin.ppo_loss(*outputs, *map(torch.tensor, targets), args)
    twin_loss.backward()
    assert float(loss) == pytest.approx(twin_loss.item(), rel=1e-4)
    assert float(stats.pop("loss")) == float(loss)
    assert {name: float(x) for name, x in stats.items()} == pytest.approx(
        {name: x.item() for name, x in twin_stats.items()}, rel=1e-3, abs=1e-6
    )
    for name, gradient in in_torch(gradients["params"]).items():
        expected = torch_agent.get_parameter(name).grad
        scale = expected.abs().max().item()
        np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=1e-4 * scale, err_msg=name)


@pytest.mark.parametrize(
    "norm_adv, clip_vloss, num_played",
    [(True, True, 20), (False, True, 20), (True, False, 20), (True, True, 1), (True, True, 0), (False, False, 0)],
)
def test_flags_of_the_loss_do_what_they_do_in_the_twin(norm_adv, clip_vloss, num_played):
    """Of reset steps alone, too, whose loss is zero: loss, statistics and gradients are finite and equal."""
    args = SimpleNamespace(norm_adv=norm_adv, clip_vloss=clip_vloss, clip_coef=0.1, ent_coef=0.01, vf_coef=0.5)
    rng = np.random.default_rng(num_played)
    columns = rng.standard_normal((7, 24)).astype(np.float32)
    columns[0] = columns[3] + 0.2 * columns[0]  # the new log-probabilities are near the old ones
    played = rng.permutation(24) < num_played

    def loss_of(outputs):
        return ours.ppo_loss(*outputs, *columns[3:], played, args)

    (loss, stats), gradients = jax.jit(jax.value_and_grad(loss_of, has_aux=True))(columns[:3])
    outputs = torch.tensor(columns[:3], requires_grad=True)
    twin_loss, twin_stats = twin.ppo_loss(*outputs, *torch.tensor(columns[3:]), torch.tensor(played), args)
    twin_loss.backward()
    assert float(loss) == pytest.approx(twin_loss.item(), rel=1e-4, abs=1e-6)
    for name, x in twin_stats.items():
        assert float(stats[name]) == pytest.approx(x.item(), rel=1e-4, abs=1e-6), name
    np.testing.assert_allclose(gradients, outputs.grad, rtol=1e-3, atol=1e-6)
    assert (np.asarray(gradients)[:, ~played] == 0).all()


def make_rollout(rng, num_steps=33, num_envs=3):
    rewards, values, next_values = rng.standard_normal((3, num_steps, num_envs)).astype(np.float32)
    terminations, truncations = rng.random((2, num_steps, num_envs)) < 0.1
    return rewards, terminations, truncations & ~terminations, values, next_values


def assert_same_advantages(compute_gae):
    for num_steps in (1, 33):
        rollout = make_rollout(np.random.default_rng(2), num_steps)
        advantages, returns = compute_gae(*map(jnp.asarray, rollout), 0.9, 0.8)
        expected_advantages, expected_returns = twin.compute_gae(*map(torch.tensor, rollout), 0.9, 0.8)
        np.testing.assert_allclose(advantages, expected_advantages, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(returns, expected_returns, rtol=1e-5, atol=1e-5)


def test_advantages_and_returns_are_those_of_the_twin():
    assert_same_advantages(ours.compute_gae)


# Watching the script


class SpoiledPool:
    """A pool that passes other actions to EnvPool's reset steps, and returns rubbish where only these could learn from
    it: as their rewards, and as the observation after the end of an episode.
    """

    def __init__(self, pool, reward):
        self.pool = pool
        self.reward = reward

    def __getattr__(self, name):
        return getattr(self.pool, name)

    def xla(self):
        """Its handle is longer: it also tells which environments only reset in their next step."""
        handle, recv, send, _ = self.pool.xla()
        size = len(handle)

        def spoiled_send(longer, actions):
            over = longer[size:] == 1
            others = (actions + 1) % self.pool.single_action_space.n
            handle = send(longer[:size], jnp.where(over, others, actions))
            return jnp.concatenate([handle, longer[size:]])

        def spoiled_recv(longer):
            over = longer[size:] == 1
            handle, (obs, rewards, terminations, truncations, infos) = recv(longer[:size])
            rewards = jnp.where(over, self.reward, rewards)
            obs = jnp.where(terminations[:, None, None, None], 255 - obs, obs)
            longer = jnp.concatenate([handle, (terminations | truncations).astype(handle.dtype)])
            return longer, (obs, rewards, terminations, truncations, infos)

        return np.pad(handle, (0, self.pool.num_envs)), spoiled_recv, spoiled_send, None


def run_script(script, folder, *flags, limits=(), spoil=False):
    """Run the script in this process; returns its variables, its folder, and what each rollout held."""
    make, checkpoint_due = envpool.make_gymnasium, run.checkpoint_due
    limits, rollouts, pools = list(limits), [], []

    def make_watched(env_id, **settings):
        limit = {"max_episode_steps": limits.pop(0)} if limits else {}
        pool = make(env_id, **settings, **limit)
        pools.append(pool)
        return SpoiledPool(pool, float(spoil)) if spoil else pool

    def look(*arguments):  # which is the last of an iteration
        variables = sys._getframe(1).f_globals
        rollout = {name: np.array(x) for name, x in variables["games"]._asdict().items() if name != "handles"}
        for name in ("advantages", "returns"):
            if name in variables:
                rollout[name] = np.array(variables[name])
        model = jax.tree.map(np.array, variables["train_state"].params)
        seeds = [pool.config["seed"] for pool in variables["envs"]]
        rollouts.append(SimpleNamespace(**rollout, model=model, seeds=seeds))
        return checkpoint_due(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", [str(script), *map(str, flags)])
        patch.setattr(sys, "excepthook", sys.excepthook)  # the script sets it: put it back afterwards
        patch.setattr(envpool, "make_gymnasium", make_watched)
        patch.setattr(run, "checkpoint_due", look)
        variables = runpy.run_path(str(script), run_name="__main__")
    run_dir = Path(folder, variables["run_dir"])
    return SimpleNamespace(variables=variables, rollouts=rollouts, pools=pools, run_dir=run_dir, curves=curves(run_dir))


kept_folders = []


def recorded_run(script=SCRIPT, env_id="Breakout-v5", spoil=False):
    """One run for many tests."""
    return record(script, env_id, spoil)


@functools.cache
def record(script, env_id, spoil):
    iterations, limits = RUNS[env_id]
    flags = [*FLAGS, "--env-id", env_id, "--total-timesteps", NUM_ENVS * NUM_STEPS * iterations]
    kept_folders.append(tempfile.TemporaryDirectory())
    result = run_script(script, kept_folders[-1].name, *flags, limits=limits, spoil=spoil)
    assert len(result.rollouts) == iterations
    return result


@functools.cache
def recorded_games(env_id):
    """The same games in plain EnvPool, one environment at a time, with other actions at the reset steps."""
    recorded = recorded_run(SCRIPT, env_id)
    seeds = [pool.config["seed"] + i for pool in recorded.pools for i in range(NUM_ENVS // 2)]
    actions = np.concatenate([rollout.actions for rollout in recorded.rollouts])
    games = replay(env_id, seeds, np.repeat(RUNS[env_id][1], NUM_ENVS // 2), actions)
    elapsed = np.concatenate([np.zeros((1, NUM_ENVS)), games.elapsed])
    games.played = np.diff(elapsed, axis=0) == 1  # EnvPool counts the steps that it has played, not those that reset
    return games


# The rollout


@both_games
def test_rollouts_hold_what_envpool_returns_and_which_of_it_was_played(env_id):
    recorded, games = recorded_run(SCRIPT, env_id), recorded_games(env_id)
    for i, rollout in enumerate(recorded.rollouts):
        part = slice(i * NUM_STEPS, (i + 1) * NUM_STEPS)
        np.testing.assert_array_equal(rollout.obs, games.obs[part])
        np.testing.assert_array_equal(rollout.next_obs, games.next_obs[part][-1])
        np.testing.assert_array_equal(rollout.rewards, games.rewards[part])
        np.testing.assert_array_equal(rollout.terminations, games.terminations[part])
        np.testing.assert_array_equal(rollout.truncations, games.truncations[part])
        np.testing.assert_array_equal(rollout.valid, games.played[part])
    # What this would otherwise not have seen: lost lives, time limits, and resets in the first step of a rollout
    assert games.terminations.any() and games.truncations.any() and not games.played[::NUM_STEPS].all()


@both_games
def test_advantages_are_those_of_the_episodes_without_the_reset_steps(env_id):
    recorded, games = recorded_run(SCRIPT, env_id), recorded_games(env_id)
    agent = ours.Agent(recorded.variables["num_actions"])
    get_value = jax.jit(functools.partial(agent.apply, method="get_value"))
    ends = {"terminated": 0, "truncated": 0, "rollout": 0}
    for i in range(1, len(recorded.rollouts)):
        part = slice(i * NUM_STEPS, (i + 1) * NUM_STEPS)
        rollout, params = recorded.rollouts[i], recorded.rollouts[i - 1].model  # which played this rollout
        obs = np.concatenate([games.obs[part], games.next_obs[part]]).reshape(-1, 4, 84, 84)
        values = get_value(params, obs)
        values, next_values = np.asarray(values, float).reshape(2, NUM_STEPS, NUM_ENVS)
        for idx in range(NUM_ENVS):
            episode = []
            for t in np.flatnonzero(games.played[part, idx]):
                episode.append(t)
                terminated, truncated = games.terminations[part][t, idx], games.truncations[part][t, idx]
                if not terminated and not truncated and t < NUM_STEPS - 1:
                    continue
                ends["terminated" if terminated else "truncated" if truncated else "rollout"] += 1
                last_value = next_values[t, idx] * ~terminated
                expected = naive_advantages(rollout.rewards[episode, idx], values[episode, idx], last_value)
                np.testing.assert_allclose(rollout.advantages[episode, idx], expected, rtol=1e-3, atol=1e-4)
                episode = []
    assert min(ends.values()) >= 1, ends


# The log


def expected_games(games):
    """Step, raw score and length of every game that ended, truncated ones included."""
    ends = []
    for idx in range(NUM_ENVS):
        score = length = 0
        for t, (points, over) in enumerate(zip(games.scores[:, idx], games.over[:, idx] | games.truncations[:, idx])):
            score, length = score + points, length + games.played[t, idx]
            if over:
                ends.append((t * NUM_ENVS + idx + 1, score, length))
                score = length = 0
    return sorted(ends)


@both_games
def test_every_game_is_logged_with_its_own_score_and_length_truncated_ones_included(env_id):
    """Whole games, not lives; raw scores, not clipped ones; nothing of one game in the score of the next."""
    games = recorded_games(env_id)
    logged, ends = recorded_run(SCRIPT, env_id).curves, expected_games(games)
    assert sorted(logged["charts/episodic_return"]) == [(step, score) for step, score, _ in ends]
    assert sorted(logged["charts/episodic_length"]) == [(step, length) for step, _, length in ends]
    assert 6 < len(ends) < 100
    if env_id == "Asterix-v5":
        assert games.scores.max() >= 50 and games.rewards.max() == 1 and games.over.any()
    for name, column in (("return", 1), ("length", 2)):
        for step, mean in logged[f"charts/avg_episodic_{name}"]:
            so_far = [end[column] for end in ends if end[0] <= step]
            assert mean == pytest.approx(np.mean(so_far or [np.nan]), nan_ok=True)


def assert_metrics(logged):
    """Those of the published file, and those of the twin."""
    names = "loss value_loss policy_loss entropy old_approx_kl approx_kl clipfrac grad_norm explained_variance"
    tags = {f"losses/{name}" for name in names.split()}
    names = "avg_episodic_return avg_episodic_length learning_rate SPS SPS_update"
    tags |= {f"charts/{name}" for name in names.split()}
    for tag in tags:
        assert [step for step, _ in logged[tag]] == [NUM_ENVS * NUM_STEPS * (i + 1) for i in range(6)], tag
    assert logged.keys() - tags == {"charts/episodic_return", "charts/episodic_length"}
    rates = [rate for _, rate in logged["charts/learning_rate"]]
    assert rates == pytest.approx([1e-3 * (1 - i / 6) for i in range(6)])


def test_metrics_are_those_of_the_published_file_and_of_the_twin():
    assert_metrics(recorded_run().curves)


def assert_flags(script, args_class):
    """The published ones with their defaults, each of them used."""
    published = {
        "exp_name": script.stem, "seed": 1, "cuda": True, "track": False, "wandb_project_name": "cleanRL",
        "wandb_entity": None, "capture_video": False, "env_id": "Breakout-v5", "total_timesteps": 10_000_000,
        "learning_rate": 2.5e-4, "num_envs": 8, "num_steps": 128, "anneal_lr": True, "gamma": 0.99,
        "gae_lambda": 0.95, "num_minibatches": 4, "update_epochs": 4, "norm_adv": True, "clip_coef": 0.1,
        "clip_vloss": True, "ent_coef": 0.01, "vf_coef": 0.5, "max_grad_norm": 0.5, "target_kl": None,
        "batch_size": 0, "minibatch_size": 0, "num_iterations": 0,
    }  # fmt: skip
    assert published.items() <= dataclasses.asdict(args_class()).items()
    source = "".join(path.read_text() for path in (script, *(ROOT / "cleanrl_utils").rglob("*.py")))
    for field in dataclasses.fields(args_class):
        assert f"args.{field.name}" in source, field.name


def test_flags_and_defaults_are_those_of_the_published_file_and_all_are_used():
    assert_flags(SCRIPT, ours.Args)


# Mistakes


MISTAKES = [
    (["--env-id", "BreakoNoFrameskip-v4"], ["Breakout-v5", "ppo_atari.py"]),
    (["--env-id", "CartPole-v1"], ["CartPole-v1", "no Atari game", "Breakout-v5"]),
    (["--num-envs", 0], ["--num-envs 0", "at least 1"]),
    (["--capture-video"], ["--capture-video", "ppo_atari.py"]),
]


def assert_mistakes_get_one_line(script, folder, capfd):
    for flags, words in MISTAKES:
        with pytest.raises(SystemExit) as stop:
            run_script(script, folder, *flags)
        line = stop.value.code
        assert isinstance(line, str) and "\n" not in line and all(word in line for word in words), line
        assert capfd.readouterr() == ("", "") and not list(folder.iterdir())


def test_mistake_gets_one_clear_line_and_leaves_nothing_on_disk(tmp_path, capfd):
    assert_mistakes_get_one_line(SCRIPT, tmp_path, capfd)


# What takes longer


def assert_nothing_is_learned_from_a_reset_step(script):
    honest, spoiled = recorded_run(script), recorded_run(script, spoil=0.5)
    for one, other in zip(honest.rollouts, spoiled.rollouts, strict=True):
        assert ((other.rewards == 0.5) == ~one.valid).all()
        for x, y in zip(jax.tree.leaves(one.model), jax.tree.leaves(other.model), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)
    assert any((rollout.rewards == 0.5).any() for rollout in spoiled.rollouts)
    for tag in honest.curves.keys() - {"charts/SPS", "charts/SPS_update"}:
        ours, theirs = (np.array(x.curves[tag]) for x in (honest, spoiled))
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5, err_msg=tag)


@pytest.mark.slow
def test_nothing_is_learned_from_a_reset_step():
    """Other actions and rewards, and other observations before it, leave every weight and every curve as they are."""
    assert_nothing_is_learned_from_a_reset_step(SCRIPT)


@pytest.mark.gpu
@pytest.mark.parametrize("script", [SCRIPT, SCRIPT.with_stem(f"{SCRIPT.stem}_scan")], ids=lambda script: script.stem)
def test_games_on_a_gpu_are_those_of_the_python_interface(script, tmp_path):
    """Of all pools, in every iteration: without its barrier, the scan read rewards of the second one from pictures."""
    flags = ["--env-id", "Pong-v5", "--num-envs", 8, "--num-steps", 32, "--num-minibatches", 1, "--update-epochs", 1]
    result = run_script(script, tmp_path, *flags, "--total-timesteps", 3 * 8 * 32)
    assert jax.default_backend() == "gpu"
    pools = []
    size = 8 // len(result.rollouts[0].seeds)
    for seed in result.rollouts[0].seeds:
        settings = {"num_envs": size, "episodic_life": True, "reward_clip": True, "seed": seed}
        pools.append(envpool.make_gymnasium("Pong-v5", **settings))
        pools[-1].reset()
    for rollout in result.rollouts:
        for step in range(32):
            actions = np.split(rollout.actions[step], len(pools))
            outcomes = [pool.step(x) for pool, x in zip(pools, actions, strict=True)]
            next_obs, rewards, terminations, truncations = (np.concatenate(x) for x in list(zip(*outcomes))[:4])
            np.testing.assert_array_equal(rollout.rewards[step], rewards)
            np.testing.assert_array_equal(rollout.terminations[step], terminations)
            np.testing.assert_array_equal(rollout.truncations[step], truncations)
            lengths = np.concatenate([outcome[4]["elapsed_step"] for outcome in outcomes])
            np.testing.assert_array_equal(rollout.lengths[step], lengths)
            if step < 31:
                np.testing.assert_array_equal(rollout.obs[step + 1], next_obs)


@pytest.mark.slow
def test_updates_of_the_script_end_where_those_of_the_twin_end():
    """Adam, its epsilon and the clipped norm of the gradient included."""
    variables = recorded_run().variables
    _, params = make_agent()
    state = ours.TrainState(params, variables["optimizer"].init(params))
    state = jax.tree.map(jnp.copy, state)
    agent, args = twin_of(params), variables["args"]
    optimizer = torch.optim.Adam(agent.parameters(), 1e-3, eps=1e-5)
    rng = np.random.default_rng(3)
    for _ in range(5):
        batch = make_minibatch(rng, NUM_ENVS * NUM_STEPS)
        mb_inds = rng.permutation(len(batch[0]))[:48]
        state, stats = variables["update"](state, tuple(batch), mb_inds, 1e-3)
        optimizer.zero_grad()
        obs, actions, *targets = (torch.tensor(x[mb_inds]) for x in batch)
        twin.ppo_loss(*agent.evaluate_actions(obs, actions), *targets, args)[0].backward()
        norm = torch.nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
        assert float(stats["grad_norm"]) == pytest.approx(norm.item(), rel=1e-3)
        assert norm > args.max_grad_norm
        optimizer.step()
    start = in_torch(params["params"])
    for name, x in in_torch(state.params["params"]).items():
        expected = agent.state_dict()[name]
        assert (x - expected).abs().mean() < 0.02 * (start[name] - expected).abs().mean(), name


def assert_epochs_stop_at_target_kl(script, folder):
    """The epoch that exceeds it is the last one, of the losses that are logged as well."""
    flags = ["--no-cuda", "--num-envs", 2, "--num-steps", 8, "--num-minibatches", 2, "--total-timesteps", 16]
    results = {}
    for name, more in {
        "one epoch": ["--update-epochs", 1],
        "stopped": ["--update-epochs", 3, "--target-kl", 1e-9],
        "three epochs": ["--update-epochs", 3],
        "never stopped": ["--update-epochs", 3, "--target-kl", 1e9],
    }.items():
        (folder / name).mkdir()
        result = run_script(script, folder / name, *flags, "--learning-rate", 1e-3, *more)
        losses = [rows[0][1] for tag, rows in sorted(result.curves.items()) if tag.startswith("losses/")]
        results[name] = [*jax.tree.leaves(result.rollouts[-1].model), np.array(losses)]
    for name, other in (("one epoch", "stopped"), ("three epochs", "never stopped")):
        for x, y in zip(results[name], results[other], strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)
    assert np.abs(results["one epoch"][0] - results["three epochs"][0]).max() > 1e-4


@pytest.mark.slow
def test_epochs_stop_once_the_divergence_exceeds_target_kl(tmp_path):
    assert_epochs_stop_at_target_kl(SCRIPT, tmp_path)


def assert_resumes_and_evaluates(script, folder, capsys):
    """A run of three iterations that goes on for two more, with new games, and says so."""
    flags = ["--no-cuda", "--num-envs", 4, "--num-steps", 64, "--num-minibatches", 2, "--update-epochs", 1]
    first = run_script(script, folder, *flags, "--total-timesteps", 768, "--save-model")
    assert "10 episodes, trained to step 768" in capsys.readouterr().out
    evaluated = [value for _, value in first.curves["eval/episodic_return"]]
    evaluate.main([first.run_dir], cuda=False)
    assert f"mean return {np.mean(evaluated):.2f}" in capsys.readouterr().out
    saved = ours.unflatten_dict(ours.load_file(next(first.run_dir.glob("*.safetensors"))), sep=".")
    jax.tree.map(np.testing.assert_array_equal, saved, first.rollouts[-1].model)

    resume = ["--resume", first.run_dir, "--no-save-model"]
    rates = ["--total-timesteps", 1280, "--learning-rate", 0]
    copy = Path(shutil.copytree(first.run_dir, folder / "copy"))
    second = run_script(script, folder, *resume, *rates)
    assert "episodes start again" in capsys.readouterr().err
    assert len(second.rollouts) == 2 and second.rollouts[0].valid[0].all()
    jax.tree.map(np.testing.assert_array_equal, saved, second.rollouts[-1].model)  # nothing is learned at rate 0
    assert [step for step, _ in second.curves["losses/loss"]] == [256, 512, 768, 1024, 1280]
    played = {seed + i for seed in first.rollouts[0].seeds for i in range(2)}
    assert not played & {seed + i for seed in second.rollouts[0].seeds for i in range(2)}
    again = run_script(script, folder, "--resume", copy, "--no-save-model", *rates)
    np.testing.assert_array_equal(again.rollouts[0].obs, second.rollouts[0].obs)  # the same games each time
    np.testing.assert_array_equal(again.rollouts[0].actions, second.rollouts[0].actions)


@pytest.mark.slow
def test_resumed_run_goes_on_with_new_games_and_the_saved_model_is_evaluated(tmp_path, capsys):
    assert_resumes_and_evaluates(SCRIPT, tmp_path, capsys)


def test_saved_policy_is_that_of_the_twin(tmp_path):
    _, params = make_agent()
    tensors = {name: np.asarray(x) for name, x in ours.flatten_dict(params, sep=".").items()}
    ours.save_file(tensors, tmp_path / "model.safetensors")
    envs = SimpleNamespace(single_action_space=SimpleNamespace(n=4))
    policy = ours.load_policy(tmp_path / "model.safetensors", envs)
    sampled = ours.load_policy(tmp_path / "model.safetensors", envs, deterministic=False)
    obs, *_ = make_minibatch(np.random.default_rng(4), 50)
    with torch.no_grad():
        agent = twin_of(params)
        logits = agent.actor(agent.get_features(torch.tensor(obs)))
    best, second = logits.topk(2).values.T
    certain = (best - second > 1e-4).numpy()
    assert certain.sum() > 30 and (policy(obs) == logits.argmax(-1).numpy())[certain].all()
    same = np.broadcast_to(obs[:1], (500, 4, 84, 84))
    np.random.seed(1)
    shares = np.bincount(sampled(same), minlength=4) / 500
    np.testing.assert_allclose(shares, logits[0].softmax(-1), atol=0.08)


@pytest.mark.slow
def test_copied_out_file_trains_without_the_repository_and_learns_the_same_from_the_same_seed(runner):
    flags = ["--no-cuda", "--num-envs", 2, "--num-steps", 8, "--num-minibatches", 2, "--total-timesteps", 48]
    plain = runner.train(*flags, "--checkpoint-frequency", 0, script=SCRIPT)
    script = Path(shutil.copy(SCRIPT, runner.folder / "mine.py"))
    copied = runner.train(*flags, script=script, modules=MODULES / "without_utils")
    ours, theirs = curves(plain), curves(copied)
    for tag in ours.keys() - {"charts/SPS", "charts/SPS_update"}:
        assert str(ours[tag]) == str(theirs[tag]), tag


@pytest.mark.slow
def test_what_is_not_installed_is_named(runner):
    result = runner.run(SCRIPT, modules=MODULES / "without_envpool", check=False)
    assert result.returncode == 1 and 'pip install "cleanrl[envpool]"' in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1 and not list(runner.folder.iterdir()), result.stderr
