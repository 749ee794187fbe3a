"""Snapshots of environments: what comes after restoring one is what would have come without stopping."""

import importlib.util
import os
import pickle

import numpy as np
import pytest

from cleanrl import ppo_continuous_action
from cleanrl.ppo import make_envs
from cleanrl_utils.snapshot import restore_snapshot, take_snapshot


def play(envs, actions):
    trajectory = []
    for action in actions:
        obs, rewards, terminations, truncations, infos = envs.step(action)
        episode = infos.get("final_info", {}).get("episode", {})
        trajectory.append((obs.tolist(), rewards.tolist(), terminations.tolist(), truncations.tolist()))
        trajectory.append((str(episode.get("r")), str(episode.get("l"))))
    return trajectory


@pytest.mark.parametrize(
    "env_id", ["CartPole-v1", "Acrobot-v1", "MountainCar-v0", "FrozenLake-v1", "Taxi-v4", "Blackjack-v1"]
)
@pytest.mark.parametrize("warm_up", [0, 37, 260])
def test_restored_environments_continue_exactly(env_id, warm_up):
    envs = make_envs(env_id, 3, False, "")
    envs.reset(seed=1)
    envs.action_space.seed(1)
    actions = [envs.action_space.sample() for _ in range(warm_up + 300)]
    play(envs, actions[:warm_up])
    snapshot = pickle.loads(pickle.dumps(take_snapshot(envs)))
    expected = play(envs, actions[warm_up:])

    others = make_envs(env_id, 3, False, "")
    others.reset(seed=2)
    play(others, actions[:10])  # somewhere else entirely
    restore_snapshot(others, snapshot)
    assert play(others, actions[warm_up:]) == expected


needs_dm_control = pytest.mark.skipif(
    not (importlib.util.find_spec("dm_control") and importlib.util.find_spec("shimmy")),
    reason="needs cleanrl[dm_control]",
)
PHYSICS = ["HalfCheetah-v4", "HalfCheetah-v5", "Hopper-v4", "Walker2d-v4", "Humanoid-v5"]
PHYSICS += [pytest.param(f"dm_control/{x}-v0", marks=needs_dm_control) for x in ("cheetah-run", "point_mass-hard")]


@pytest.mark.skipif(not importlib.util.find_spec("mujoco"), reason="needs cleanrl[mujoco]")
@pytest.mark.parametrize("env_id", PHYSICS)
@pytest.mark.parametrize("warm_up", [0, 37])
def test_restored_physics_continue_exactly(env_id, warm_up):
    def new_envs(seed):
        envs = ppo_continuous_action.make_envs(env_id, 2, False, "")
        envs.reset(seed=seed)
        return envs

    def in_bits(trajectory):
        return [[np.array(x).tobytes() if i < 2 else x for i, x in enumerate(step)] for step in trajectory[::2]]

    envs = new_envs(1)
    actions = np.random.default_rng(1).uniform(-1, 1, (warm_up + 150, *envs.action_space.shape))
    play(envs, actions[:warm_up])
    before = take_snapshot(envs)
    snapshot = pickle.loads(pickle.dumps(before))
    expected = in_bits(play(envs, actions[warm_up:]))

    others = new_envs(2)  # another place; for dm_control's point mass also another model, with other gears
    play(others, actions[:10])
    restore_snapshot(others, snapshot)
    assert in_bits(play(others, actions[warm_up:])) == expected
    restore_snapshot(others, snapshot)  # and again: a snapshot does not change with the environments it came from
    assert in_bits(play(others, actions[warm_up:])) == expected


@pytest.mark.skipif(not importlib.util.find_spec("mujoco"), reason="needs cleanrl[mujoco]")
def test_restored_physics_are_filmed_as_they_would_have_been(tmp_path):
    if not (os.environ.get("DISPLAY") or os.environ.get("MUJOCO_GL")):
        pytest.skip("needs a screen, or MUJOCO_GL=egl or osmesa")
    envs, others = (ppo_continuous_action.make_envs("Hopper-v4", 1, True, str(tmp_path / name)) for name in "ab")
    actions = np.random.default_rng(1).uniform(-1, 1, (30, 1, 3))
    envs.reset(seed=1)
    others.reset(seed=2)
    play(envs, actions[:20])
    restore_snapshot(others, pickle.loads(pickle.dumps(take_snapshot(envs))))
    assert play(others, actions[20:]) == play(envs, actions[20:])
    np.testing.assert_array_equal(envs.render()[0], others.render()[0])
    envs.close()
    others.close()


@needs_dm_control
def test_simulators_that_are_compiled_anew_for_each_episode_are_not_saved():
    envs = ppo_continuous_action.make_envs("dm_control/reach_site_features-v0", 1, False, "")
    envs.reset(seed=1)
    assert take_snapshot(envs) is None


def test_environment_hidden_in_an_attribute_is_not_saved():
    """It would pickle as its constructor's arguments, and start again."""
    envs = make_envs("CartPole-v1", 1, False, "")
    envs.reset(seed=1)
    envs.envs[0].unwrapped.teacher = make_envs("CartPole-v1", 1, False, "").envs[0]
    assert take_snapshot(envs) is None


def test_spaces_keep_their_random_generators():
    envs = make_envs("CartPole-v1", 2, False, "")
    envs.reset(seed=1)
    envs.action_space.seed(1)
    snapshot = pickle.loads(pickle.dumps(take_snapshot(envs)))
    expected = [envs.action_space.sample() for _ in range(5)]
    others = make_envs("CartPole-v1", 2, False, "")
    restore_snapshot(others, snapshot)
    np.testing.assert_equal([others.action_space.sample() for _ in range(5)], expected)


def test_state_that_cannot_be_saved_is_admitted():
    envs = make_envs("CartPole-v1", 2, False, "")
    envs.reset(seed=1)
    envs.envs[1].unwrapped.socket = open("/dev/null")  # noqa: SIM115
    assert take_snapshot(envs) is None
