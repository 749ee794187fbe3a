"""Invalid action masking: the masked distribution against oracles, environments of all kinds, and that it decides."""

import dataclasses
import runpy
import sys

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import PPO, ROOT, SHORT, Runner, assert_same_run, curves
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cleanrl import ppo
from cleanrl.ppo_action_mask import ActionMask, Agent, Args, load_policy, make_envs
from cleanrl_utils.evaluate import evaluate
from cleanrl_utils.lineage_diff import count_changes
from cleanrl_utils.lineage_source import load_family

MASKED = ROOT / "cleanrl" / "ppo_action_mask.py"
MODULES = ROOT / "tests" / "modules"


@pytest.fixture(autouse=True)
def masked_envs(monkeypatch):
    """The environments of tests/modules/masked_envs.py."""
    monkeypatch.syspath_prepend(str(MODULES))


def agent_of_logits(num_actions: int) -> Agent:
    """An agent whose observations are the logits themselves: they come before the mask in its inputs."""
    envs = gym.Env()
    envs.single_observation_space = gym.spaces.Box(-1, 1, (2 * num_actions,))
    envs.single_action_space = gym.spaces.Discrete(num_actions)
    agent = Agent(envs)
    agent.actor = torch.nn.Identity()
    return agent


# The masked distribution


@st.composite
def masked_logits(draw):
    """Logits, a mask with at least one valid action, and one of those."""
    num_actions = draw(st.integers(1, 7))
    logits = draw(hnp.arrays(np.float64, num_actions, elements=st.floats(-30, 30)))
    valid = draw(st.sets(st.integers(0, num_actions - 1), min_size=1))
    return logits, sorted(valid), draw(st.sampled_from(sorted(valid)))


def evaluated(logits, valid, action):
    """What the agent says of an action, with the logits as a tensor that collects gradients."""
    mask = torch.zeros(len(logits))
    mask[valid] = 1
    x = torch.tensor(logits, dtype=torch.float32, requires_grad=True)
    agent = agent_of_logits(len(logits))
    logprob, entropy, _ = agent.evaluate_actions(torch.cat([x, mask])[None], torch.tensor([action]))
    return x, logprob, entropy


@settings(deadline=None, max_examples=200)
@given(masked_logits())
def test_probabilities_and_entropy_are_those_of_the_valid_actions_alone(case):
    logits, valid, action = case
    _, logprob, entropy = evaluated(logits, valid, action)
    weights = np.exp(logits[valid] - logits[valid].max())
    probabilities = weights / weights.sum()
    expected_entropy = -sum(p * np.log(p) for p in probabilities if p > 0)
    np.testing.assert_allclose(logprob.item(), np.log(probabilities[valid.index(action)]), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(entropy.item(), expected_entropy, rtol=1e-4, atol=1e-4)


@settings(deadline=None, max_examples=200)
@given(masked_logits(), st.floats(-2, 2), st.floats(-2, 2))
def test_gradients_of_masked_logits_are_zero_and_the_others_as_if_those_did_not_exist(case, a, b):
    logits, valid, action = case
    x, logprob, entropy = evaluated(logits, valid, action)
    (a * logprob + b * entropy).sum().backward()
    y = torch.tensor(logits[valid], requires_grad=True)
    policy = torch.distributions.Categorical(logits=y)
    (a * policy.log_prob(torch.tensor(valid.index(action))) + b * policy.entropy()).backward()
    masked = np.setdiff1d(np.arange(len(logits)), valid)
    assert (x.grad[masked] == 0).all()
    np.testing.assert_allclose(x.grad[valid], y.grad, rtol=1e-3, atol=1e-4)


def test_masked_actions_are_never_sampled_in_a_million_and_the_others_as_often_as_they_should():
    logits = torch.tensor([1.0, 60.0, 0.0, -2.0, 60.0, 2.0])  # by far the highest logits are those of masked actions
    mask = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 1.0])
    torch.manual_seed(1)
    x = torch.cat([logits, mask]).expand(1_000_000, -1)
    counts = torch.bincount(agent_of_logits(6).get_action(x), minlength=6)
    assert counts[mask == 0].sum() == 0
    probabilities = torch.zeros(6)
    probabilities[mask == 1] = logits[mask == 1].softmax(-1)
    torch.testing.assert_close(counts / 1_000_000, probabilities, rtol=0, atol=0.002)
    assert agent_of_logits(6).get_action(x[:1], deterministic=True).item() == 5


def test_only_valid_action_is_taken_whatever_its_logit():
    x = torch.tensor([-1e4, 1e4, 1e4, 1, 0, 0]).expand(10_000, -1)
    assert (agent_of_logits(3).get_action(x) == 0).all()
    logprob, entropy, _ = agent_of_logits(3).evaluate_actions(x, torch.zeros(10_000, dtype=torch.int64))
    assert (logprob == 0).all() and (entropy == 0).all()


def test_state_without_a_valid_action_gives_finite_numbers():
    """As the last one of an episode may be: a policy that tries anything, not one that is NaN."""
    x = torch.tensor([1.0, 2.0, 3.0, 0, 0, 0])[None]
    logprob, entropy, _ = agent_of_logits(3).evaluate_actions(x, torch.tensor([1]))
    np.testing.assert_allclose([logprob.item(), entropy.item()], [-np.log(3), np.log(3)], rtol=1e-5)


def test_networks_see_what_those_of_the_parent_see_and_not_the_mask():
    torch.manual_seed(1)
    envs = make_envs("Taxi-v4", 2, False, "")
    agent = Agent(envs)
    torch.manual_seed(1)
    parent_envs = ppo.make_envs("Taxi-v4", 2, False, "")
    parent = ppo.Agent(parent_envs)
    obs, _ = envs.reset(seed=1)
    parent_obs, _ = parent_envs.reset(seed=1)
    np.testing.assert_array_equal(obs[:, :500], parent_obs)
    x, parent_x = torch.as_tensor(obs).float(), torch.as_tensor(parent_obs).float()
    assert torch.equal(agent.get_value(x), parent.get_value(parent_x))
    everything_is_valid = torch.cat([parent_x, torch.ones(2, 6)], dim=-1)
    actions = torch.tensor([1, 2])
    for ours, theirs in zip(
        agent.evaluate_actions(everything_is_valid, actions), parent.evaluate_actions(parent_x, actions)
    ):
        assert torch.equal(ours, theirs)
    envs.close()
    parent_envs.close()


# Where the mask comes from


def test_mask_of_taxi_follows_the_observation():
    env = ActionMask(gym.make("Taxi-v4"))
    (state, mask), info = env.reset(seed=1)
    for action in [0, 1, 2, 3, 0, 0]:
        np.testing.assert_array_equal(mask, env.unwrapped.action_mask(state))
        (state, mask), _, _, _, info = env.step(action)
        np.testing.assert_array_equal(mask, info["action_mask"])
    assert env.observation_space.contains((state, mask))


def test_mask_is_needed_in_the_last_step_of_an_episode_too():
    class Forgetful(gym.Wrapper):
        def step(self, action):
            obs, reward, termination, truncation, info = self.env.step(action)
            return obs, reward, termination, truncation, {} if truncation else info

    env = ActionMask(Forgetful(gym.make("Taxi-v4", max_episode_steps=2)))
    (_, mask), _ = env.reset(seed=1)
    env.step(mask.argmax())
    with pytest.raises(ValueError, match="no info\\['action_mask'\\]"):
        env.step(mask.argmax())


def test_masks_of_a_method_join_observations_of_any_kind():
    """A matrix and a list of bools become one vector; at the end of an episode each observation has its own mask."""
    envs = make_envs("masked_envs:Whims-v0", 2, False, "")
    assert envs.single_observation_space.shape == (12,) and envs.single_action_space == gym.spaces.Discrete(6)
    obs, _ = envs.reset(seed=1)
    for step in range(1, 34):
        np.testing.assert_array_equal(obs[:, 6:], [env.unwrapped.action_masks() for env in envs.envs])
        assert (np.abs(obs[:, :6]) <= 1).all() and (obs[:, :6] % 1 != 0).all()
        obs, _, _, truncations, infos = envs.step(obs[:, 6:].argmax(-1))
        assert truncations.all() == (step % 11 == 0)
        if truncations.all():
            final_obs = np.stack(infos["final_obs"])
            assert final_obs.shape == (2, 12) and (final_obs[:, :6] != obs[:, :6]).all()
            assert set(final_obs[:, 6:].flatten()) == {0, 1} and not final_obs[:, 11].any()
    envs.close()


@pytest.mark.parametrize(
    "env_id, words",
    [
        ("CartPole-v1", ["CartPole-v1", "no info['action_mask'] or action_masks()", "2 actions", "ppo.py"]),
        ("masked_envs:WrongMask-v0", ["info['action_mask']", "50 actions"]),
        ("Pendulum-v1", ["Box", "ppo_continuous_action.py"]),
        ("Nope-v0", ["Nope"]),
    ],
)
def test_environment_without_a_mask_gets_one_clear_line_and_leaves_nothing_on_disk(runner, env_id, words):
    result = runner.run(MASKED, "--env-id", env_id, modules=MODULES, check=False)
    assert result.returncode == 1
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert all(word in result.stderr for word in words), result.stderr
    assert not list(runner.folder.iterdir())


# A whole run


def run_script(monkeypatch, folder, *flags) -> dict:
    """Train in this process; returns the variables of the script."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [str(MASKED), *map(str, flags)])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    try:
        return runpy.run_path(str(MASKED), run_name="__main__")
    finally:
        torch.use_deterministic_algorithms(False)


def test_run_stores_and_learns_with_the_masks_under_which_it_acted(monkeypatch, tmp_path):
    """The environment raises an error at an action that is invalid in this very step, in the evaluation as well."""
    flags = [*SHORT, "--env-id", "masked_envs:Whims-v0", "--save-model", "--learning-rate", "3e-3"]
    script = run_script(monkeypatch, tmp_path, *flags)
    masks, actions = script["obs"][..., 6:], torch.as_tensor(script["actions"])
    assert masks.gather(-1, actions.unsqueeze(-1)).all() and masks.mean() < 0.8
    assert (script["b_logprobs"] > -20).all()
    last_layer = script["agent"].actor[-1]
    assert (last_layer.bias[:5] != 0).all() and last_layer.bias[5] == 0  # biases start at 0: never valid, never learned
    (run_dir,) = tmp_path.glob("runs/*")
    assert len(curves(run_dir)["eval/episodic_return"]) == 10


def test_entropy_that_is_logged_is_that_of_the_valid_actions(monkeypatch, tmp_path):
    run_script(monkeypatch, tmp_path, *SHORT, "--env-id", "masked_envs:StrictCorridor-v0", "--learning-rate", 0)
    (run_dir,) = tmp_path.glob("runs/*")
    logged = curves(run_dir)
    entropies = [value for _, value in logged["losses/entropy"]]
    assert np.log(2) - 0.01 < min(entropies) <= max(entropies) < np.log(2) + 1e-6  # two of 50 actions are valid
    assert max(abs(value) for _, value in logged["losses/approx_kl"]) < 1e-6  # acting and learning agree


TRAINING = [*SHORT, "--env-id", "masked_envs:StrictCorridor-v0", "--no-anneal-lr"]


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory):
    runner = Runner(tmp_path_factory.mktemp("never_stopped"))
    return runner.train(*TRAINING, "--save-model", script=MASKED, modules=MODULES)


def test_resumed_run_equals_one_of_the_same_seed_that_never_stopped(runner, never_stopped):
    """The masks under which the next actions are taken are part of the next observations in the checkpoint."""
    run_dir = runner.train(*TRAINING, "--total-timesteps", 640, script=MASKED, modules=MODULES)
    result = runner.run(MASKED, "--resume", run_dir, "--total-timesteps", 1280, "--save-model", modules=MODULES)
    assert "episodes start again" not in result.stderr
    assert_same_run(never_stopped, run_dir)


def test_same_seed_gives_the_same_run_replayed_or_as_written(runner, never_stopped):
    again = runner.train(*TRAINING, "--save-model", "--accelerate", "off", script=MASKED, modules=MODULES)
    assert_same_run(never_stopped, again)


def test_metrics_are_those_of_the_parent(runner, never_stopped):
    parent = runner.train(*SHORT, "--save-model")
    assert curves(never_stopped).keys() == curves(parent).keys()


def test_saved_policy_takes_valid_actions_only(never_stopped):
    """Evaluation knows nothing of masks: they are in the observations. The environment would raise an error."""
    model = never_stopped / "ppo_action_mask.safetensors"
    for deterministic in (True, False):
        result = evaluate(
            model, "masked_envs:StrictCorridor-v0", make_envs, load_policy, deterministic=deterministic, device="cpu"
        )
        assert len(result.returns) == 10


# The interface


def test_flags_are_those_of_the_parent():
    changed = {"exp_name": "ppo_action_mask", "env_id": "Taxi-v4", "learning_rate": 1e-3, "num_envs": 16}
    assert dataclasses.asdict(Args()) == dataclasses.asdict(ppo.Args()) | changed


def test_showcase_adds_at_most_40_lines_to_its_parent():
    family = load_family(ROOT)
    assert count_changes(family["ppo.py"], family["ppo_action_mask.py"])[0] <= 40


# Masking decides


def last_returns(run_dir, episodes=50):
    return np.mean([value for _, value in curves(run_dir)["charts/episodic_return"]][-episodes:])


def test_corridor_is_learned_with_the_mask_and_not_without(runner):
    """Two of 50 actions are valid in each room: without the mask, the end of the corridor is never seen."""
    flags = ["--no-cuda", "--env-id", "masked_envs:Corridor-v0", "--total-timesteps", 6144, "--num-envs", 4]
    flags += ["--learning-rate", "1e-3"]
    assert last_returns(runner.train(*flags, script=MASKED, modules=MODULES)) > 0.95
    assert last_returns(runner.train(*flags, script=PPO, modules=MODULES)) < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_taxi_is_solved_with_the_mask_and_not_without(runner, seed):
    flags = ["--no-cuda", "--env-id", "Taxi-v4", "--learning-rate", "1e-3", "--num-envs", 16, "--seed", seed]
    assert last_returns(runner.train(*flags, script=MASKED), 100) > 6
    assert last_returns(runner.train(*flags, script=PPO), 100) < -190
