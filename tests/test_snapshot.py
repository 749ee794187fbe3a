"""Snapshots of environments: what comes after restoring one is what would have come without stopping."""

import importlib.util
import os
import pickle
import random
import sys
import time

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import ROOT, SHORT

from cleanrl import ppo_continuous_action
from cleanrl.ppo import make_envs
from cleanrl_utils import snapshot as module
from cleanrl_utils.snapshot import reset_with_fresh_seeds, restore_snapshot, take_snapshot

MODULES = ROOT / "tests" / "modules"
sys.path.insert(0, str(MODULES))
import noisy_env  # noqa: E402
import pixel_game  # noqa: E402, F401 (registers Drift-v0)
import unsavable_envs  # noqa: E402

sys.path.remove(str(MODULES))


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


@pytest.mark.slow
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


def atari(env_id, seed, num_envs=2, video_dir=None, **options):
    """Environments as in ppo_atari.py, with the options of the emulator."""
    pytest.importorskip("cv2")
    gym.register_envs(pytest.importorskip("ale_py"))
    wrappers = pytest.importorskip("stable_baselines3.common.atari_wrappers")

    def thunk():
        if video_dir:
            options["render_mode"] = "rgb_array"
        env = gym.make(env_id, obs_type="grayscale", frameskip=1, **options)
        env = gym.wrappers.RecordEpisodeStatistics(gym.wrappers.AtariPreprocessing(env))
        if video_dir:
            env = gym.wrappers.RecordVideo(env, str(video_dir))
        env = wrappers.EpisodicLifeEnv(env)
        if "FIRE" in env.unwrapped.get_action_meanings():
            env = wrappers.FireResetEnv(env)
        return gym.wrappers.FrameStackObservation(wrappers.ClipRewardEnv(env), 4)

    mode = gym.vector.AutoresetMode.SAME_STEP
    envs = gym.vector.SyncVectorEnv([thunk] * num_envs, copy=False, autoreset_mode=mode)
    envs.reset(seed=seed)
    return envs


def in_bytes(x):
    """All of it, but for the seconds that an episode took."""
    if isinstance(x, dict):
        return {name: in_bytes(value) for name, value in x.items() if name not in ("t", "_t")}
    return [in_bytes(y) for y in x] if getattr(x, "dtype", "") == "O" else np.array(x).tobytes()


def play_atari(envs, actions):
    return [in_bytes(dict(enumerate(envs.step(action)))) for action in actions]


@pytest.mark.parametrize(
    "env_id, num_envs, options",
    [
        ("BreakoutNoFrameskip-v4", 2, {}),
        ("BreakoutNoFrameskip-v4", 1, {"max_num_frames_per_episode": 300}),
        ("PongNoFrameskip-v4", 2, {"max_num_frames_per_episode": 300}),
        ("ALE/SpaceInvaders-v5", 4, {}),  # sticky: in a quarter of them the next frame repeats an action
        ("ALE/Breakout-v5", 2, {"max_num_frames_per_episode": 300, "repeat_action_probability": 0.8}),
    ],
)
def test_restored_emulators_continue_exactly(env_id, num_envs, options):
    never_saved, envs = (atari(env_id, 1, num_envs, **options) for _ in range(2))
    actions = np.random.default_rng(1).integers(envs.single_action_space.n, size=(270, num_envs))
    actions, later = actions[:50], actions[50:]
    assert play_atari(never_saved, actions) == play_atari(envs, actions)
    snapshot = pickle.loads(pickle.dumps(take_snapshot(envs)))
    expected = play_atari(never_saved, later)
    ends = [any(step[3 if options else 2]) for step in expected]  # truncations, or lost lives and games
    assert sum(ends) >= 2

    others = atari(env_id, 2, num_envs, **options)
    play_atari(others, actions[:10])  # elsewhere
    restore_snapshot(others, snapshot)
    assert play_atari(others, later) == expected
    assert play_atari(envs, later) == expected  # looking for the action to be repeated did not disturb them


def test_new_emulator_that_has_not_yet_drawn_a_frame_can_be_restored():
    """ALE's own restoring leaves it in the middle of a frame: Qbert goes on otherwise."""
    gym.register_envs(pytest.importorskip("ale_py"))
    env, other = gym.make("QbertNoFrameskip-v4"), gym.make("QbertNoFrameskip-v4")
    env.reset(seed=1)
    other.reset(seed=2)
    for _ in range(100):
        env.step(1)
    restore_snapshot(other, take_snapshot(env))
    for _ in range(50):
        np.testing.assert_array_equal(env.step(2)[0], other.step(2)[0])
        np.testing.assert_array_equal(env.unwrapped.ale.getRAM(), other.unwrapped.ale.getRAM())


def test_filmed_emulators_are_saved_as_well(tmp_path):
    envs, others = (atari("BreakoutNoFrameskip-v4", seed, 1, tmp_path / str(seed)) for seed in (1, 2))
    actions = np.ones((40, 1), int)
    play_atari(envs, actions[:20])
    restore_snapshot(others, pickle.loads(pickle.dumps(take_snapshot(envs))))
    assert play_atari(others, actions[20:]) == play_atari(envs, actions[20:])
    np.testing.assert_array_equal(envs.render()[0], others.render()[0])


def test_game_that_the_emulator_restores_with_faults_is_not_saved():
    envs = atari("ALE/MiniatureGolf-v5", 1, 1, repeat_action_probability=0.0)
    assert take_snapshot(envs) is None


class Adapter(gym.vector.VectorEnv):
    def __init__(self, name, pool):
        setattr(self, name, pool)


@pytest.mark.parametrize("env_type", ["gymnasium", "dm"])
def test_environments_inside_a_compiled_library_are_not_saved(env_type):
    """Their Python attributes alone could be pickled, but the games are elsewhere."""
    pool = pytest.importorskip("envpool").make("Pong-v5", env_type=env_type, num_envs=2)
    pool.reset()
    assert take_snapshot(pool) is None
    assert take_snapshot([pool, pool]) is None
    for name in ("env", "envs", "pool"):
        assert take_snapshot(Adapter(name, pool)) is None


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


# The trial: what is not in the snapshot is noticed


def trained_on(name, num_envs=2, run_dir=None):
    """Environments in the middle of things."""
    envs = make_envs(f"{name}-v0", num_envs, run_dir is not None, str(run_dir))
    envs.reset(seed=1)
    for _ in range(5):
        envs.step(np.ones(num_envs, int))
    return envs


@pytest.mark.skipif(sys.platform != "linux", reason="the trial needs a fork")
@pytest.mark.parametrize("kind", unsavable_envs.UNSAVABLE)
def test_environment_with_state_outside_of_its_snapshot_is_not_saved(kind):
    envs = trained_on(kind.__name__)
    assert take_snapshot(envs) is None
    envs.step(np.ones(2, int))
    assert take_snapshot(envs) is None  # nor later, when it is not tried again


@pytest.mark.parametrize("kind", unsavable_envs.SAVABLE)
def test_environment_whose_whole_state_is_in_the_checkpoint_is_saved(kind):
    assert take_snapshot(trained_on(kind.__name__)) is not None


def test_number_that_is_named_like_a_part_of_a_window_is_saved():
    envs, others = trained_on("Steps"), make_envs("Steps-v0", 2, False, "")
    others.reset(seed=2)
    restore_snapshot(others, take_snapshot(envs))
    assert [env.unwrapped.clock for env in others.envs] == [5, 5]


@pytest.mark.parametrize("kind", [unsavable_envs.Steps, unsavable_envs.SharedRandomness, unsavable_envs.LossyAttribute])
def test_trial_leaves_environments_and_random_generators_as_they_were(kind):
    def future(saved):
        random.seed(3)
        np.random.seed(3)
        torch.manual_seed(3)
        envs = trained_on(kind.__name__)
        if saved:
            take_snapshot(envs)
        actions = np.random.default_rng(1).integers(2, size=(50, 2))
        return str(play(envs, actions)), random.random(), np.random.random(), torch.rand(1).item()

    assert future(saved=True) == future(saved=False)


def test_trial_leaves_no_trace_in_what_environments_share():
    envs = trained_on("ClassState")
    total = unsavable_envs.ClassState.total
    take_snapshot(envs)
    assert unsavable_envs.ClassState.total == total
    envs = ppo_continuous_action.make_envs("Noisy-v0", 2, False, "")
    envs.reset(seed=1)
    diaries = len(noisy_env.DIARIES)
    take_snapshot(envs)
    assert len(noisy_env.DIARIES) == diaries
    assert envs.envs[0].unwrapped.diary is noisy_env.DIARIES[-2]  # no copy of it


def test_trial_does_not_film(tmp_path):
    envs = make_envs("CartPole-v1", 1, True, str(tmp_path))
    envs.reset(seed=1)
    envs.step(np.ones(1, int))
    assert take_snapshot(envs) is not None
    assert not list(tmp_path.rglob("*.mp4"))
    while not list(tmp_path.rglob("*.mp4")):
        envs.step(np.ones(1, int))
    assert [path.name for path in tmp_path.rglob("*.mp4")] == ["rl-video-episode-0.mp4"]
    envs.envs[0].get_wrapper_attr("recorded_frames").clear()
    envs.close()


def test_trial_takes_place_once(monkeypatch):
    calls = []
    monkeypatch.setattr(module, "can_be_restored", lambda envs: calls.append(envs) or True)
    envs = trained_on("Steps")
    for _ in range(3):
        assert take_snapshot(envs) is not None
    assert calls == [envs]


@pytest.mark.parametrize("delay, playing_limit, trial_limit", [(0.2, 0.5, 20), (10, 3, 1)])
def test_trial_of_a_slow_environment_is_shortened_or_given_up(monkeypatch, delay, playing_limit, trial_limit):
    monkeypatch.setattr(module, "PLAYING_LIMIT", playing_limit)
    monkeypatch.setattr(module, "TRIAL_LIMIT", trial_limit)
    envs = trained_on("Steps")
    monkeypatch.setattr(unsavable_envs.Steps, "delay", delay)
    start = time.monotonic()
    assert take_snapshot(envs) is not None
    assert time.monotonic() - start < 8


def test_restored_film_does_not_show_the_episode_that_was_replaced(tmp_path):
    envs, others = (make_envs("CartPole-v1", 1, True, str(tmp_path / name)) for name in "ab")
    envs.reset(seed=1)
    envs.step(np.ones(1, int))
    others.reset(seed=2)
    restore_snapshot(others, take_snapshot(envs))
    film = others.envs[0].get_wrapper_attr("recorded_frames")
    assert film == []
    others.step(np.ones(1, int))
    envs.step(np.ones(1, int))
    np.testing.assert_array_equal(film[0], envs.render()[0])
    for x in (envs, others):
        x.envs[0].get_wrapper_attr("recorded_frames").clear()
        x.close()


# Fresh seeds where nothing can be restored


@pytest.mark.parametrize(
    "env_id, options",
    [
        ("Drift-v0", {}),
        ("BreakoutNoFrameskip-v4", {}),  # with FIRE after each reset, so that the next one is always in mid-game
        ("ALE/Breakout-v5", {}),  # sticky: the emulator has a random generator of its own
        ("ALE/SpaceInvaders-v5", {"max_num_frames_per_episode": 300}),
    ],
)
@pytest.mark.parametrize("steps", [0, 30])
def test_fresh_seeds_start_the_same_games_as_new_environments_have(env_id, options, steps):
    new, envs, seeded_as_usual = (atari(env_id, seed, **options) for seed in (77, 1, 1))
    actions = np.random.default_rng(1).integers(3, size=(60, 2))
    play_atari(envs, actions[:steps])
    play_atari(seeded_as_usual, actions[:steps])
    obs = reset_with_fresh_seeds(envs, 77)
    np.testing.assert_array_equal(obs, new._observations)
    expected = play_atari(new, actions)
    assert play_atari(envs, actions) == expected
    if steps:  # what it is needed for
        seeded_as_usual.reset(seed=77)
        assert play_atari(seeded_as_usual, actions) != expected
    other = atari(env_id, 1, **options)
    reset_with_fresh_seeds(other, 78)
    assert play_atari(other, actions) != expected


class KeepsSeed(gym.Wrapper):
    def reset(self, **kwargs):
        return self.env.reset()


@pytest.mark.parametrize("kind", ["Steps", "NoSeed", "OwnGenerator"])
def test_seeds_arrive_beneath_a_wrapper_that_keeps_them_and_in_an_environment_that_forgets_them(kind):
    def first_observations(seed):
        thunks = [lambda: KeepsSeed(gym.make(f"{kind}-v0"))] * 2
        envs = gym.vector.SyncVectorEnv(thunks, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
        envs.reset(seed=1)
        return reset_with_fresh_seeds(envs, seed).tolist()

    first = first_observations(77)
    assert first == first_observations(77)
    assert first != first_observations(78)
    assert first[0] != first[1]


def test_fresh_seeds_do_not_film_the_episode_that_is_given_up(tmp_path):
    envs = make_envs("CartPole-v1", 1, True, str(tmp_path))
    envs.reset(seed=1)
    reset_with_fresh_seeds(envs, 5)
    assert not list(tmp_path.rglob("*.mp4"))
    envs.envs[0].get_wrapper_attr("recorded_frames").clear()
    envs.close()


@pytest.mark.skipif(sys.platform != "linux", reason="the trial needs a fork")
def test_resumed_run_says_that_an_environment_with_state_on_its_class_starts_again(runner):
    flags = [*SHORT, "--env-id", "unsavable_envs:ClassState-v0"]
    run_dir = runner.train(*flags, modules=MODULES)
    resumed = runner.run(ROOT / "cleanrl" / "ppo.py", "--resume", run_dir, "--total-timesteps", 2560, modules=MODULES)
    assert "cannot be saved" in resumed.stderr
