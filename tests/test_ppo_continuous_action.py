"""PPO and RPO for continuous actions: the nine details, against oracles, and what a run promises."""

import dataclasses
import importlib.util
import re
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import ROOT, SHORT, Runner, assert_same_run, curves
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.torch import load_file, save_file

from cleanrl import ppo_continuous_action, rpo_continuous_action
from cleanrl.ppo_continuous_action import Agent, load_policy, make_envs, merge_stats
from cleanrl_utils.evaluate import evaluate

PPO = ROOT / "cleanrl" / "ppo_continuous_action.py"
RPO = ROOT / "cleanrl" / "rpo_continuous_action.py"
MODULES = ROOT / "tests" / "modules"
PENDULUM = [*SHORT, "--env-id", "Pendulum-v1"]
NOISY = ["--no-cuda", "--env-id", "noisy_env:Noisy-v0", "--num-envs", "3", "--num-steps", "64"]
NOISY += ["--num-minibatches", "1", "--update-epochs", "1", "--total-timesteps", 5 * 3 * 64]
needs_mujoco = pytest.mark.skipif(not importlib.util.find_spec("mujoco"), reason="needs cleanrl[mujoco]")
needs_dm_control = pytest.mark.skipif(
    not (importlib.util.find_spec("dm_control") and importlib.util.find_spec("shimmy")),
    reason="needs cleanrl[dm_control]",
)


@pytest.fixture
def agent():
    torch.manual_seed(1)
    box = gym.spaces.Box(-np.inf, np.inf, (3,))
    agent = Agent(SimpleNamespace(single_observation_space=box, single_action_space=gym.spaces.Box(-1, 1, (2,))))
    torch.nn.init.normal_(agent.actor[-1].weight)
    agent.actor_logstd.data = torch.tensor([-1.0, 0.5])
    agent.obs_mean[:] = torch.tensor([1.0, -2.0, 0.0])
    agent.obs_var[:] = torch.tensor([4.0, 0.01, 9.0])
    return agent


def normalize(agent, x):
    return ((x - agent.obs_mean) / agent.obs_var.sqrt()).clamp(-10, 10)


# The interface


@pytest.mark.parametrize("module", [ppo_continuous_action, rpo_continuous_action], ids=lambda module: module.__name__)
def test_flags_and_defaults_are_those_of_the_published_file(module):
    common = {
        "seed": 1, "torch_deterministic": True, "cuda": True, "track": False, "wandb_project_name": "cleanRL",
        "wandb_entity": None, "capture_video": False, "env_id": "HalfCheetah-v4", "total_timesteps": 1_000_000,
        "learning_rate": 3e-4, "num_envs": 1, "num_steps": 2048, "anneal_lr": True, "gamma": 0.99, "gae_lambda": 0.95,
        "num_minibatches": 32, "update_epochs": 10, "norm_adv": True, "clip_coef": 0.2, "clip_vloss": True,
        "ent_coef": 0.0, "vf_coef": 0.5, "max_grad_norm": 0.5, "target_kl": None, "batch_size": 0, "minibatch_size": 0,
        "num_iterations": 0, "save_model": False, "upload_model": False, "hf_entity": "",
    }  # fmt: skip
    own = {"exp_name": Path(module.__file__).stem}
    if module is rpo_continuous_action:
        own |= {"total_timesteps": 8_000_000, "rpo_alpha": 0.5}
    assert (common | own).items() <= dataclasses.asdict(module.Args()).items()


@pytest.mark.parametrize("script", [PPO, RPO], ids=lambda script: script.name)
def test_every_detail_is_numbered_in_the_comments(script):
    details = re.findall(r"continuous (?:details? )?(\d)(?: and (\d)|, (\d))?", script.read_text())
    assert {int(x) for match in details for x in match if x} == set(range(1, 10))


# Details 1 to 4: the policy


def test_logprobs_and_entropy_equal_those_of_torch_distributions(agent):
    x = torch.randn(35, 3) * 3
    action = agent.get_action(x).clone()  # out of inference mode
    logprobs, entropy, values = agent.evaluate_actions(x, action)
    reference = torch.distributions.Normal(agent.actor(normalize(agent, x)), agent.actor_logstd.exp())
    torch.testing.assert_close(logprobs, reference.log_prob(action).sum(-1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropy.expand(35), reference.entropy().sum(-1))  # the same everywhere
    torch.testing.assert_close(values, agent.critic(normalize(agent, x)).squeeze(-1))
    torch.testing.assert_close(values, agent.get_value(x))
    (logprobs.sum() + entropy.sum() + values.sum()).backward()
    assert all(p.grad is not None for p in agent.parameters())


def test_actions_are_sampled_from_the_policy(agent):
    x = torch.randn(3)
    action = agent.get_action(x.expand(200_000, 3))
    expected = agent.actor(normalize(agent, x))
    torch.testing.assert_close(agent.get_action(x, deterministic=True), expected)
    torch.testing.assert_close(action.mean(0), expected, rtol=0, atol=0.02)
    torch.testing.assert_close(action.std(0), agent.actor_logstd.exp(), rtol=0.02, atol=0)
    assert np.corrcoef(action.T.numpy())[0, 1] == pytest.approx(0, abs=0.01)


def test_log_deviation_starts_at_zero_and_does_not_depend_on_the_observation():
    agent = Agent(make_envs("Pendulum-v1", 1, False, ""))
    assert agent.actor_logstd.tolist() == [0.0] and agent.actor_logstd.requires_grad
    assert not {id(p) for p in agent.actor.parameters()} & {id(p) for p in agent.critic.parameters()}


# Details 6 and 8: statistics


@settings(deadline=None, max_examples=100)
@given(st.data(), st.integers(1, 20), st.integers(1, 3))
def test_merged_statistics_equal_those_of_all_samples(data, batch_size, batches):
    elements = st.floats(-100, 100, width=32)
    samples = data.draw(hnp.arrays(np.float32, (batches, batch_size, 2), elements=elements))
    mean, var = torch.zeros(2), torch.ones(2)
    for i, batch in enumerate(samples):
        merge_stats(mean, var, torch.as_tensor(batch), 1 / (i + 1))
    flat = samples.reshape(-1, 2).astype(np.float64)
    np.testing.assert_allclose(mean, flat.mean(0), rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(var, flat.var(0), rtol=1e-3, atol=1e-2)


def test_statistics_of_a_constant_far_from_zero_are_exact():
    mean, var = torch.tensor(0.0), torch.tensor(1.0)
    for i in range(50):
        merge_stats(mean, var, torch.full((256,), 1234.567), 1 / (i + 1))
    assert mean.item() == np.float32(1234.567) and var.item() == 0


# Runs a script with an environment that keeps a diary, and keeps what matters of both.
DIARY = """
import runpy, sys
import numpy as np, torch
sys.path.insert(0, sys.argv[1])
import noisy_env
script, without_noise, sys.argv[1:] = sys.argv[2], sys.argv[3] == "True", sys.argv[4:]
if without_noise:  # the policy plays its mean
    torch.randn_like = torch.zeros_like
end = runpy.run_path(script, run_name="__main__")
names = "actions torch_rewards b_logprobs".split()
np.savez("diary.npz", diaries=noisy_env.DIARIES, **dict(end["agent"].named_buffers()), **{x: end[x] for x in names})
"""


def keep_diary(runner, *flags, without_noise=False):
    runner.run("-c", DIARY, MODULES, PPO, without_noise, *NOISY, "--accelerate", "off", *flags)
    return np.load(runner.folder / "diary.npz")


@pytest.fixture(scope="module")
def diary(tmp_path_factory):
    return keep_diary(Runner(tmp_path_factory.mktemp("diary")))


def test_all_environments_share_one_statistic_of_all_observations(diary):
    observations = diary["diaries"][..., :3].reshape(-1, 3)
    assert diary["diaries"].shape[:2] == (3, 5 * 64)
    np.testing.assert_allclose(diary["obs_mean"], observations.mean(0), rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(diary["obs_var"], observations.var(0), rtol=1e-3)


def test_rewards_are_scaled_by_the_deviation_of_the_discounted_return_and_clipped(diary):
    returns = []
    for env in diary["diaries"]:
        discounted = 0.0
        for reward, ended in env[:, 5:]:
            discounted = 0.99 * discounted + reward
            returns.append(discounted)
            discounted = 0.0 if ended else discounted
    np.testing.assert_allclose(diary["return_mean"], np.mean(returns), rtol=1e-3, atol=1e-2)
    np.testing.assert_allclose(diary["return_var"], np.var(returns), rtol=1e-3)
    raw = diary["diaries"][:, -64:, 5].T
    np.testing.assert_allclose(diary["torch_rewards"], np.clip(raw / np.std(returns), -10, 10), rtol=1e-3)


def test_executed_actions_are_clipped_and_stored_ones_are_not(diary):
    executed = diary["diaries"][:, -64:, 3:5].transpose(1, 0, 2)
    np.testing.assert_allclose(executed, np.clip(diary["actions"], -0.5, 0.5), rtol=1e-6)
    assert (np.abs(diary["actions"]) > 0.5).mean() > 0.3


def test_policy_that_plays_is_the_one_that_is_evaluated(runner):
    """Its own mean is every policy's most probable action, if statistics have not changed between the two."""
    logprobs = keep_diary(runner, "--learning-rate", 0, without_noise=True)["b_logprobs"]
    np.testing.assert_allclose(logprobs, 2 * -0.5 * np.log(2 * np.pi), rtol=1e-6)


def test_ratios_of_the_first_minibatch_are_one(runner):
    logged = curves(runner.train(*PENDULUM, "--num-minibatches", "1", "--update-epochs", "1", script=PPO))
    assert len(logged["losses/approx_kl"]) == 20
    assert max(abs(value) for _, value in logged["losses/approx_kl"] + logged["losses/clipfrac"]) < 1e-6


# Runs a script for one rollout with an environment whose observations count its steps. It reuses one array for all of
# them, also when it is reset, and is cut off after ten steps: a reference to its last observation soon shows another.
REUSE = """
import runpy, sys
import gymnasium as gym, numpy as np, torch
script, *sys.argv[1:] = sys.argv[1:]

class Reuse(gym.Env):
    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    array = np.zeros(1, np.float32)
    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.count = self.array[0] = 0
        return self.array, {}
    def step(self, action):
        self.count += 1
        self.array[0] = self.count
        return self.array, 0.0, False, self.count == 10, {}

gym.register("Reuse-v0", Reuse)
end = runpy.run_path(script, run_name="__main__")
fresh = end["make_envs"]("Reuse-v0", 1, False, "")
fresh.reset()
fresh.step(fresh.action_space.sample())
fresh.close()
assert vars(end["envs"]).keys() == vars(fresh).keys(), vars(end["envs"]).keys() ^ vars(fresh).keys()
end["agent"].obs_mean.zero_()  # as in that rollout, which was the first one
end["agent"].obs_var.fill_(1)
with torch.no_grad():
    values = end["agent"].get_value(torch.arange(11.0)[:, None])
expected = torch.stack([values[step % 10 + 1] for step in range(35)])  # of ten steps, never of a reset
torch.testing.assert_close(end["next_values"][:, 0], expected)
assert len(set(expected.tolist())) == 10
"""


def test_final_observations_are_kept_as_copies_and_no_state_is_hung_on_the_environments(runner):
    flags = ["--no-cuda", "--env-id", "Reuse-v0", "--num-steps", "35", "--num-minibatches", "1", "--learning-rate", "0"]
    # with a learning rate of zero, the network that gave `values` is still there
    runner.run("-c", REUSE, PPO, *flags, "--accelerate", "off", "--total-timesteps", "35")


# Learning and evaluation

LEARN = ["--no-cuda", "--env-id", "Pendulum-v1", "--gamma", "0.9", "--num-envs", "4", "--num-steps", "256"]
LEARN += ["--learning-rate", "2e-3", "--num-minibatches", "8", "--total-timesteps", "50000", "--save-model"]


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    return Runner(tmp_path_factory.mktemp("learned")).train(*LEARN, script=PPO)


def test_pendulum_is_learned(learned):
    returns = [value for _, value in curves(learned)["charts/episodic_return"]]
    assert np.mean(returns[:20]) < -1000 and np.mean(returns[-40:]) > -600  # seeds end between -450 and -250


def test_evaluation_with_the_saved_statistics_reproduces_the_training_score(learned, tmp_path):
    model = learned / "ppo_continuous_action.safetensors"
    training = np.mean([value for _, value in curves(learned)["charts/episodic_return"]][-40:])
    kept = evaluate(model, "Pendulum-v1", make_envs, load_policy, episodes=50, device="cpu")
    tensors = load_file(model)
    tensors["obs_mean"], tensors["obs_var"] = torch.zeros(3), torch.ones(3)
    save_file(tensors, tmp_path / "fresh.safetensors")
    fresh = evaluate(tmp_path / "fresh.safetensors", "Pendulum-v1", make_envs, load_policy, episodes=50, device="cpu")
    assert kept.mean > training - 100  # without exploration: at least as good
    assert fresh.mean < kept.mean - 100


def test_evaluation_does_not_change_the_statistics(learned):
    envs = make_envs("Pendulum-v1", 2, False, "")
    policy = load_policy(learned / "ppo_continuous_action.safetensors", envs)
    obs, _ = envs.reset(seed=1)
    first = policy(obs.copy())
    for _ in range(50):
        policy(np.random.default_rng(1).normal(size=obs.shape, scale=100))
    np.testing.assert_array_equal(policy(obs), first)


def test_logged_returns_are_raw(learned):
    assert min(value for _, value in curves(learned)["charts/episodic_return"]) < -1000


# Repeatable and resumable


def resume_after_kill(runner: Runner, *flags) -> Path:
    process = runner.start(PPO, *flags, "--exp-name", "killed", "--checkpoint-frequency", "640")
    checkpoint = runner.wait_for("runs/*killed*/checkpoint.pt", process)
    time.sleep(0.2)
    process.kill()
    process.communicate()
    saved = torch.load(checkpoint, weights_only=False)
    assert saved["global_step"] < 100 * 64 and saved["running_return"].shape == (2,)
    result = runner.run(PPO, "--resume", checkpoint.parent)
    assert "episodes start again" not in result.stderr
    return checkpoint.parent


@pytest.mark.parametrize(
    "env_id",
    [
        pytest.param("Hopper-v4", marks=needs_mujoco),
        pytest.param("dm_control/point_mass-hard-v0", marks=[needs_dm_control, pytest.mark.slow]),
    ],
)
def test_resumed_run_equals_one_that_never_stopped(runner, env_id):
    flags = [*SHORT, "--total-timesteps", 100 * 64, "--update-epochs", "2", "--save-model", "--env-id", env_id]
    never_stopped = runner.train(*flags, script=PPO)
    assert_same_run(never_stopped, resume_after_kill(runner, *flags))


@needs_mujoco
def test_same_seed_gives_the_same_run(runner):
    flags = [*SHORT, "--env-id", "Hopper-v4", "--save-model"]
    assert_same_run(*(runner.train(*flags, "--exp-name", name, script=PPO) for name in ("first", "second")))


@pytest.mark.slow
def test_compiled_update_learns_the_same_as_the_eager_one(runner):
    eager, compiled = (
        curves(runner.train(*PENDULUM, "--exp-name", name, *flags, script=PPO))
        for name, flags in (("eager", []), ("compiled", ["--compile"]))
    )
    for tag in ("losses/value_loss", "losses/policy_loss", "losses/entropy", "losses/grad_norm"):
        pairs = zip(eager[tag][:5], compiled[tag][:5], strict=True)
        np.testing.assert_allclose(*zip(*((x, y) for (_, x), (_, y) in pairs), strict=True), rtol=1e-3, atol=1e-5)


# Alone, and mistakes


def test_copied_out_file_trains_in_an_empty_folder_without_the_repository(runner):
    script = Path(shutil.copy(PPO, runner.folder / "mine.py"))
    run_dir = runner.train(*PENDULUM, "--save-model", script=script, modules=MODULES / "without_utils")
    assert (run_dir / "mine.safetensors").exists() and len(curves(run_dir)["losses/value_loss"]) == 20


@pytest.mark.parametrize("script", [PPO, RPO], ids=lambda script: script.name)
@pytest.mark.parametrize(
    "env_id, modules, words",
    [
        ("CartPole-v1", None, ["Discrete(2)", "ppo.py"]),
        ("noisy_env:Matrix-v0", MODULES, ["(2, 2)", "not a vector"]),
        ("HalfCheeta-v5", None, ["Did you mean: `HalfCheetah`"]),
        ("HalfCheetah-v5", MODULES / "without_mujoco", ['pip install "cleanrl[mujoco]"']),
        ("dm_control/cartpole-balance-v0", MODULES / "without_shimmy", ['pip install "cleanrl[dm_control]"']),
    ],
)
def test_mistake_gets_one_clear_line_and_leaves_nothing_on_disk(runner, script, env_id, modules, words):
    if script == RPO and env_id != "CartPole-v1":
        pytest.skip("the same lines as in the parent")
    result = runner.run(script, "--env-id", env_id, modules=modules, check=False)
    assert result.returncode != 0
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert all(word in result.stderr for word in words), result.stderr
    assert not list(runner.folder.iterdir())


@needs_dm_control
def test_dm_control_is_registered_only_when_asked_for(runner):
    code = "import sys; from cleanrl.ppo_continuous_action import make_envs; make_envs('Pendulum-v1', 1, False, '')\n"
    code += "assert 'shimmy' not in sys.modules and 'mujoco' not in sys.modules\n"
    code += "envs = make_envs('dm_control/cartpole-balance-v0', 2, False, '')\n"
    code += "assert envs.single_observation_space.shape == (5,) and envs.single_action_space.shape == (1,)"
    runner.run("-c", code)


# RPO


# Runs a script with a watched `uniform_`, which RPO alone calls without a generator, and where asked silences it.
WATCH = """
import runpy, sys, torch
uniform, calls = torch.Tensor.uniform_, []
script, silent, *sys.argv[1:] = sys.argv[1:]
def watched(x, low=0, high=1, **generator):
    if generator:
        return uniform(x, low, high, **generator)
    calls.append((x.zero_() if silent == "True" else uniform(x, low, high)).clone())
    return x
torch.Tensor.uniform_ = watched
runpy.run_path(script, run_name="__main__")
torch.save(torch.stack(calls) if calls else None, "calls.pt")
"""


def test_rpo_without_its_perturbation_is_its_parent(runner):
    for script, name in ((PPO, "parent"), (RPO, "child")):
        flags = [*PENDULUM, "--accelerate", "off", "--save-model", "--exp-name", name]
        runner.run("-c", WATCH, script, True, *flags)
    parent, child = (next(runner.folder.glob(f"runs/*__{name}__*")) for name in ("parent", "child"))
    assert_same_run(parent, child)


def test_rpo_perturbs_means_within_alpha_in_the_update_pass_only(runner):
    flags = [*PENDULUM, "--rpo-alpha", "0.3", "--accelerate", "off"]  # replayed, it could not be watched
    runner.run("-c", WATCH, RPO, False, *flags)
    calls = torch.load(runner.folder / "calls.pt")
    assert calls.shape == (20 * 10 * 2, 32, 1)  # every minibatch of every epoch, and nothing else
    assert calls.abs().max() <= 0.3 and calls.min() < -0.29 and calls.max() > 0.29


def test_moving_the_action_against_the_mean_is_what_the_paper_does_to_the_mean(agent):
    x, action, z = torch.randn(50, 3), torch.randn(50, 2), torch.rand(50, 2) - 0.5
    logprobs, entropy, _ = agent.evaluate_actions(x, action - z)
    reference = torch.distributions.Normal(agent.actor(normalize(agent, x)) + z, agent.actor_logstd.exp())
    torch.testing.assert_close(logprobs, reference.log_prob(action).sum(-1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(entropy.expand(50), reference.entropy().sum(-1))
