"""ppo_continuous_action_mjx.py: normal policies, statistics of observations, robots of Brax, what a run promises."""

import importlib.util
import signal

import numpy as np
import pytest
import torch
from conftest import ROOT, Runner, assert_same_run, curves

if not importlib.util.find_spec("brax"):
    pytest.skip("the extra jax is not installed", allow_module_level=True)

import jax
import jax.numpy as jnp

from cleanrl import ppo_continuous_action_mjx as mjx

SCRIPT = ROOT / "cleanrl" / "ppo_continuous_action_mjx.py"
# The smallest environment of Brax, which has no physics: a run of 8 iterations with 8 of it side by side
SHORT = [
    "--no-cuda",
    "--env-id",
    "fast",
    "--num-envs",
    "8",
    "--num-steps",
    "16",
    "--num-minibatches",
    "2",
    "--update-epochs",
    "2",
]
SHORT += ["--total-timesteps", "1024", "--log-frequency", "2"]
pytestmark = pytest.mark.filterwarnings("ignore:Brax System")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a short run."""
    return Runner(tmp_path_factory.mktemp("trained")).train(*SHORT, "--save-model", script=SCRIPT)


def test_actions_are_evaluated_as_samples_of_independent_normals():
    agent, rng = mjx.Agent(3), np.random.default_rng(1)
    x, actions = rng.standard_normal((5, 4), dtype=np.float32), rng.standard_normal((5, 3), dtype=np.float32)
    params = agent.init(jax.random.key(1), x, actions, method="evaluate_actions")
    params["params"]["actor_logstd"] = jnp.array([-0.5, 0.0, 0.3])
    means = np.array(agent.apply(params, x, np.zeros((5, 3)), method="get_action"))
    normals = torch.distributions.Normal(torch.tensor(means), torch.tensor([-0.5, 0.0, 0.3]).exp())
    logprobs, entropy, _ = agent.apply(params, x, actions, method="evaluate_actions")
    np.testing.assert_allclose(logprobs, normals.log_prob(torch.tensor(actions)).sum(-1), rtol=1e-5)
    np.testing.assert_allclose(entropy, normals.entropy().sum(-1)[0], rtol=1e-5)
    noise = rng.standard_normal((5, 3), dtype=np.float32)
    sampled = agent.apply(params, x, noise, method="get_action")
    np.testing.assert_allclose(sampled, means + np.exp([-0.5, 0.0, 0.3]) * noise, rtol=1e-5)


def test_statistics_are_those_of_all_observations_together():
    rng = np.random.default_rng(2)
    parts = [3 + 2 * rng.standard_normal((size, 4)) for size in (10, 1, 300)]
    stats = mjx.ObsStats(jnp.zeros(4), jnp.ones(4), jnp.float32(0))
    for part in parts:
        stats = mjx.merge_stats(stats, jnp.asarray(part, jnp.float32))
    together = np.concatenate(parts)
    np.testing.assert_allclose(stats.mean, together.mean(0), rtol=1e-5)
    np.testing.assert_allclose(stats.var, together.var(0), rtol=1e-4)
    assert stats.count == 311
    x = together[:5] * 100
    expected = np.clip((x - together.mean(0)) / together.std(0), -10, 10)
    np.testing.assert_allclose(mjx.normalize(jnp.asarray(x), stats), expected, rtol=1e-3)


def test_actions_are_executed_clipped():
    env = mjx.BraxEnv("inverted_pendulum", "spring")
    packed, obs = jax.eval_shape(env.reset, jax.random.key(0))  # its shapes alone: to simulate takes long to compile
    assert env.obs_dim == 4 and env.num_actions == 1 and obs.shape == (4,)
    seen = []
    end = {"obs": jnp.zeros(4), "reward": jnp.float32(1), "done": 1.0}
    env.brax_env.step = lambda state, action: seen.append(action) or state.replace(**end)
    _, _, reward, termination = mjx.BraxEnv.step(env, packed, jnp.array([5.0]))
    assert seen[0].tolist() == [1.0] and reward == 1 and bool(termination)


def test_metrics_and_model(trained):
    logged = curves(trained)
    losses = [
        "value_loss",
        "policy_loss",
        "entropy",
        "old_approx_kl",
        "approx_kl",
        "clipfrac",
        "grad_norm",
        "explained_variance",
    ]
    assert {f"losses/{name}" for name in losses} | {"charts/learning_rate", "charts/SPS"} <= logged.keys()
    assert [step for step, _ in logged["charts/SPS"]] == [256, 512, 768, 1024]
    assert len(logged["eval/episodic_return"]) == 10
    tensors = mjx.load_file(trained / "ppo_continuous_action_mjx.safetensors")
    assert tensors["obs_mean"].shape == tensors["obs_var"].shape == (2,)


def test_saved_policy_normalizes_and_is_the_mean_action_of_the_actor(trained):
    model = trained / "ppo_continuous_action_mjx.safetensors"
    tensors = mjx.load_file(model)
    envs = mjx.make_envs("fast", 2, False, "")
    obs = 3 * np.random.default_rng(3).standard_normal((6, 2))
    x = np.clip((obs - tensors["obs_mean"]) / np.sqrt(tensors["obs_var"] + 1e-8), -10, 10)
    for i in (0, 2, 4):
        layer = f"params.actor.layers_{i}"
        x = x @ tensors[f"{layer}.kernel"] + tensors[f"{layer}.bias"]
        x = np.tanh(x) if i < 4 else x
    np.testing.assert_allclose(mjx.load_policy(model, envs)(obs), x, rtol=1e-4, atol=1e-5)
    sampled = mjx.load_policy(model, envs, deterministic=False)(np.repeat(obs[:1], 4000, 0))
    std = np.exp(tensors["params.actor_logstd"])
    np.testing.assert_allclose(sampled.std(0), std, rtol=0.1)


def test_episode_of_the_evaluation_is_truncated_after_a_thousand_steps():
    envs = mjx.make_envs("fast", 1, False, "")
    envs.reset(seed=1)
    for step in range(1, 1001):
        _, _, terminations, truncations, infos = envs.step(np.zeros((1, 1), np.float32))
        assert truncations[0] == (step == 1000) and not terminations[0]
    assert infos["final_info"]["episode"]["l"][0] == 1000


@pytest.mark.slow
def test_stopped_and_resumed_run_equals_one_that_never_stopped(runner, trained):
    process = runner.start(SCRIPT, *SHORT, "--checkpoint-frequency", "256", "--save-model")
    checkpoint = runner.wait_for("runs/*/checkpoint.pt", process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    runner.run(SCRIPT, "--resume", checkpoint.parent)
    assert_same_run(trained, checkpoint.parent)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "ant/bullet"])
def test_unknown_robot_or_simulator_gets_one_clear_line_and_leaves_nothing_on_disk(runner, env_id):
    result = runner.run(SCRIPT, "--env-id", env_id, "--no-cuda", check=False)
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert result.stderr.splitlines()[-1].startswith(f"cannot train on {env_id}: no robot of Brax such as ant")
    assert not list(runner.folder.iterdir())


@pytest.mark.slow
def test_mjx_trains_and_the_evaluation_plays_the_same_robot(runner):
    flags = [
        "--no-cuda",
        "--env-id",
        "inverted_pendulum",
        "--num-envs",
        "4",
        "--num-steps",
        "8",
        "--total-timesteps",
        "64",
    ]
    run_dir = runner.train(*flags, "--save-model", script=SCRIPT)
    assert len(curves(run_dir)["eval/episodic_return"]) == 10
    env = mjx.make_jax_env("inverted_pendulum")
    robot = mjx.Robot("inverted_pendulum", None)
    obs, _ = robot.reset(seed=3)
    _, first = env.reset(jax.random.key(np.random.default_rng(3).integers(2**31)))
    assert (obs == np.asarray(first)).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ant", "halfcheetah", "humanoid"])
def test_robot_goes_on_from_its_packed_state_as_from_the_whole_one(name):
    """What is left out is not needed: it is not finite, and would show."""
    env, rng = mjx.make_jax_env(name), np.random.default_rng(3)
    reset, step = jax.jit(env.brax_env.reset), jax.jit(env.brax_env.step)
    state = reset(jax.random.key(3))
    packed = env.pack(state)
    assert len(jax.tree.leaves(packed)) < 20 < 100 < len(jax.tree.leaves(state))
    for action in rng.uniform(-1.5, 1.5, (5, env.num_actions)):
        state = step(state, action.clip(-1, 1))
        packed, obs, reward, termination = env.step(packed, action)
        np.testing.assert_allclose(obs, state.obs, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(reward, state.reward, rtol=1e-3, atol=1e-3)
        assert termination == bool(state.done)


@pytest.mark.slow
def test_pendulum_is_balanced_longer_after_training(runner):
    flags = ["--no-cuda", "--env-id", "inverted_pendulum/spring", "--num-envs", "64", "--learning-rate", "0.001"]
    run_dir = runner.train(*flags, "--total-timesteps", "102400", script=SCRIPT)
    lengths = [value for _, value in curves(run_dir)["charts/episodic_length"]]
    assert np.mean(lengths[:3]) < 30  # each the mean of an iteration
    # Seed 1 is a slow learner, seeds 2 to 5 end at 265 to 508. Its 121 are 95 on one core: XLA's numbers differ.
    assert np.mean(lengths[-10:]) > 60


@pytest.mark.parametrize("env_id, camera", [("ant/spring", "track"), ("inverted_pendulum/spring", None)])
def test_camera_follows_a_robot_that_can_run_away(env_id, camera, monkeypatch):
    robot = mjx.Robot(env_id, "rgb_array")
    robot.state = ("a state", None, None)
    pictures = []
    monkeypatch.setattr(robot.env.brax_env, "render", lambda states, **how: pictures.append(how) or states)
    assert robot.render() == "a state"
    assert pictures == [{"height": 480, "width": 480, "camera": camera}]
