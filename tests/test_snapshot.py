"""Snapshots of environments: what comes after restoring one is what would have come without stopping."""

import pickle

import numpy as np
import pytest

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
