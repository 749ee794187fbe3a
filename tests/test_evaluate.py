"""Evaluation: the policy that was trained, under the same conditions, with honest statistics."""

import json
import shutil
import time

import gymnasium as gym
import numpy as np
import pytest
from conftest import PPO, ROOT, SHORT, Runner
from imageio_ffmpeg import count_frames_and_secs
from safetensors.numpy import load_file, save_file

from cleanrl_utils import evaluate as module
from cleanrl_utils.evaluate import Evaluation, evaluate, load_run, main
from cleanrl_utils.provenance import note_step

MODULES = ROOT / "tests" / "modules"


class Episodes(gym.Env):
    """Episodes whose length and return depend on the environment's seed alone; records which were started."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.left = self.length = int(self.np_random.integers(1, 30))
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.zeros(1, np.float32), float(action), self.left == 0, False, {}


def make_envs(env_id, num_envs, capture_video, run_dir):
    mode = gym.vector.AutoresetMode.SAME_STEP
    return gym.vector.SyncVectorEnv(
        [lambda: gym.wrappers.RecordEpisodeStatistics(Episodes())] * num_envs, autoreset_mode=mode
    )


def always_one(model_path, envs, device, deterministic):
    return lambda obs: np.ones(len(obs), int)


def test_every_environment_plays_its_share_so_that_short_episodes_are_not_favoured():
    result = evaluate("", "", make_envs, always_one, episodes=200, seed=5)
    expected = []
    for seed in range(5, 15):  # ten environments, twenty episodes each
        env = Episodes()
        env.reset(seed=seed)
        for _ in range(20):
            expected.append(env.length)
            env.reset()
    assert result.lengths == expected and result.returns == expected


@pytest.mark.parametrize("episodes", [1, 3, 10, 23])
def test_number_of_episodes_is_exact(episodes):
    assert len(evaluate("", "", make_envs, always_one, episodes=episodes).returns) == episodes


def test_recurrent_policy_is_told_where_episodes_end():
    resets = []

    def load_policy(*_):
        def policy(obs):
            return np.zeros(len(obs), int)

        policy.reset = lambda dones: resets.append(dones.copy())
        return policy

    result = evaluate("", "", make_envs, load_policy, episodes=10)
    assert sum(dones.sum() for dones in resets) >= 10
    assert len(resets) == max(result.lengths)


# Episodes that do not end


class Endless(gym.Env):
    """A point for every step and no end. The observation counts the steps of the episode; 100 steps lose a life."""

    observation_space = gym.spaces.Box(0, np.inf, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}
    render_mode = "rgb_array"

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.full(1, self.steps, np.float32), 3.0, False, False, {}

    def render(self):
        return np.full((32, 32, 3), self.steps % 256, np.uint8)


class EpisodicLife(gym.Wrapper):
    """Like Stable-Baselines3's: the loss of a life ends the agent's episode, and then a reset only goes on."""

    was_real_done = True

    def __init__(self, env):
        super().__init__(env)
        self.was_real_done = True

    def reset(self, **kwargs):
        if self.was_real_done:
            return self.env.reset(**kwargs)
        return np.full(1, self.unwrapped.steps, np.float32), {}

    def step(self, action):
        obs, reward, termination, truncation, info = self.env.step(action)
        self.was_real_done = termination or truncation
        return obs, reward, self.unwrapped.steps % 100 == 0, truncation, info


def make_endless(env_id, num_envs, capture_video, run_dir):
    def thunk(idx):
        env = Endless()
        if capture_video and idx == 0:
            env = gym.wrappers.RecordVideo(env, f"{run_dir}/videos")
        env = gym.wrappers.RecordEpisodeStatistics(env)
        return gym.wrappers.TransformReward(EpisodicLife(env), np.sign)

    mode = gym.vector.AutoresetMode.SAME_STEP
    thunks = [lambda idx=idx: thunk(idx) for idx in range(num_envs)]
    return gym.vector.SyncVectorEnv(thunks, copy=False, autoreset_mode=mode)


def test_episode_without_an_end_is_cut_off_and_counts_with_its_raw_return():
    result = evaluate("", "", make_endless, always_one, episodes=23, max_episode_steps=250)
    assert result.lengths == [250] * 23 and result.returns == [750.0] * 23
    assert result.num_cut_off == 23 and "23 episodes (23 cut off after 250 steps)" in str(result)


def test_only_episodes_longer_than_the_limit_are_cut_off():
    whole = evaluate("", "", make_envs, always_one, episodes=50, seed=5)
    cut = evaluate("", "", make_envs, always_one, episodes=50, seed=5, max_episode_steps=20)
    assert "cut off" not in str(whole) and whole.num_cut_off == 0
    assert max(cut.lengths) == 20 and cut.lengths == cut.returns
    # An episode of exactly 20 steps has ended by itself. The others are as long as without the limit.
    assert cut.lengths == [min(length, 20) for length in whole.lengths]
    assert cut.num_cut_off == sum(length > 20 for length in whole.lengths) > 0


def test_policy_sees_the_first_observation_of_the_next_episode_after_one_was_cut_off():
    seen, forgotten = [], []

    def load_policy(*_):
        def policy(obs):
            seen.append(float(obs[0, 0]))
            return np.zeros(len(obs), int)

        policy.reset = lambda dones: forgotten.append(bool(dones[0]))
        return policy

    evaluate("", "", make_endless, load_policy, episodes=20, max_episode_steps=5)
    assert seen == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]
    assert forgotten == [False, False, False, False, True] * 2


def test_games_of_envpool_are_cut_off_as_well():
    envpool = pytest.importorskip("envpool")

    def make_pool(env_id, num_envs, capture_video, run_dir):
        return envpool.make_gymnasium("Breakout-v5", num_envs=num_envs, episodic_life=True, reward_clip=True, seed=3)

    def load_policy(*_):
        return lambda obs: np.ones(len(obs), np.int32)

    result = evaluate("", "", make_pool, load_policy, episodes=12, max_episode_steps=40)
    assert result.lengths == [40] * 12 and result.num_cut_off == 12  # lives are lost after 24 steps
    whole = evaluate("", "", make_pool, load_policy, episodes=2)
    assert min(whole.lengths) > 40 and whole.num_cut_off == 0


# Videos


def names(folder):
    return sorted(path.name for path in folder.rglob("*.mp4"))


def num_frames(path):
    return count_frames_and_secs(path)[0]


@pytest.mark.parametrize("episodes, films", [(1, [0]), (10, [0]), (11, [0, 1])])
def test_film_of_each_episode_in_the_share_of_the_first_environment_and_no_other(tmp_path, episodes, films):
    result = evaluate("", "", make_endless, always_one, episodes, video_dir=tmp_path, max_episode_steps=40)
    assert len(result.returns) == episodes
    assert names(tmp_path) == [f"rl-video-episode-{number}.mp4" for number in films]
    for path in tmp_path.rglob("*.mp4"):
        assert num_frames(path) == 41  # the first observation, too


def test_films_of_an_earlier_evaluation_are_replaced(tmp_path):
    evaluate("", "", make_endless, always_one, 11, video_dir=tmp_path, max_episode_steps=20)
    evaluate("", "", make_endless, always_one, 1, video_dir=tmp_path, max_episode_steps=40)
    assert names(tmp_path) == ["rl-video-episode-0.mp4"]
    assert num_frames(tmp_path / "videos" / "rl-video-episode-0.mp4") == 41


def test_film_ends_before_it_takes_all_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_FILM_BYTES", 32 * 32 * 3 * 20)
    evaluate("", "", make_endless, always_one, 1, video_dir=tmp_path, max_episode_steps=200)
    assert num_frames(tmp_path / "videos" / "rl-video-episode-0.mp4") == 21


def test_interval_covers_the_mean_of_a_known_distribution_about_as_often_as_it_says():
    generator = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        low, high = Evaluation(list(generator.normal(3.0, 2.0, 30)), []).interval
        covered += low <= 3.0 <= high
    assert 0.88 <= covered / 200 <= 0.99
    assert Evaluation([5.0, 5.0], []).interval == (5.0, 5.0)


def test_a_single_episode_has_no_spread():
    assert str(Evaluation([97.0], [97])) == "return 97.00, 1 episode"
    assert "std 1.00" in str(Evaluation([97.0, 99.0], [97, 99]))


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    return Runner(tmp_path_factory.mktemp("trained")).train(*SHORT, "--save-model", "--total-timesteps", "20480")


def test_command_prints_the_statistics_and_is_repeatable(runner, run_dir):
    outputs = {runner.run("-m", "cleanrl_utils.evaluate", run_dir, "--episodes", 5).stdout for _ in range(2)}
    assert len(outputs) == 1
    (output,) = outputs
    assert "CartPole-v1 ppo: mean return" in output and "std" in output and "95% interval" in output
    assert output.endswith("5 episodes, trained to step 20480\n")


def test_trained_policy_beats_an_untrained_one_and_random_play(run_dir):
    args, module, model_path = load_run(run_dir)
    result = evaluate(model_path, args["env_id"], module.make_envs, module.load_policy, episodes=20)
    sampled = evaluate(
        model_path, args["env_id"], module.make_envs, module.load_policy, episodes=20, deterministic=False
    )
    assert result.mean > 60 and sampled.mean > 60  # random play lasts about 22 steps
    assert result.returns != sampled.returns


def test_video_is_recorded_on_request(runner, run_dir):
    runner.run("-m", "cleanrl_utils.evaluate", run_dir, "--episodes", 1, "--capture-video", "--no-cuda")
    assert names(run_dir) == ["rl-video-episode-0.mp4"]
    assert num_frames(run_dir / "evaluation" / "videos" / "rl-video-episode-0.mp4") > 20


def test_run_is_evaluated_with_the_source_it_was_trained_with(runner, run_dir):
    changed = shutil.copytree(run_dir, runner.folder / "changed")
    source = changed / "ppo.py"
    source.write_text(source.read_text().replace("nn.Linear(64, 64)", "nn.Linear(64, 32)"))
    result = runner.run("-m", "cleanrl_utils.evaluate", changed, check=False)
    assert result.returncode != 0 and "size mismatch" in result.stderr  # i.e. the changed copy was used


@pytest.mark.parametrize(
    "missing, words", [("args.json", "not a run folder"), ("ppo.safetensors", "--save-model"), ("ppo.py", "lost")]
)
def test_folder_without_a_model_gets_one_clear_line(runner, run_dir, missing, words):
    incomplete = shutil.copytree(run_dir, runner.folder / "incomplete")
    (incomplete / missing).unlink()
    result = runner.run("-m", "cleanrl_utils.evaluate", incomplete, check=False)
    assert result.returncode != 0 and len(result.stderr.strip().splitlines()) == 1 and words in result.stderr


def cut_off(model):
    model.write_bytes(model.read_bytes()[:-100])


def rename_tensors(model):
    save_file({f"other.{name}": x for name, x in load_file(model).items()}, model)


def halve_tensors(model):
    save_file({name: x[: len(x) // 2] for name, x in load_file(model).items()}, model)


@pytest.mark.parametrize(
    "damage, words", [(cut_off, "incomplete"), (rename_tensors, "Missing key"), (halve_tensors, "size mismatch")]
)
def test_model_that_does_not_load_gets_one_clear_line(runner, run_dir, damage, words):
    damaged = shutil.copytree(run_dir, runner.folder / "damaged")
    damage(damaged / "ppo.safetensors")
    result = runner.run("-m", "cleanrl_utils.evaluate", damaged, check=False)
    assert result.returncode == 1 and not result.stdout
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert "ppo.safetensors does not load" in result.stderr and words in result.stderr


# Models that are older than their run


def test_model_of_a_run_that_went_on_is_evaluated_with_a_warning(runner):
    run_dir = runner.train(*SHORT, "--save-model")
    runner.run(PPO, "--resume", run_dir, "--no-save-model", "--total-timesteps", 2560)
    result = runner.run("-m", "cleanrl_utils.evaluate", run_dir, "--episodes", 1)
    assert result.stdout.endswith(", trained to step 1280 (the run is at step 2560)\n")
    warning = "warning: the model was trained to step 1280, but the run has gone on to step 2560 (for a newer"
    assert result.stderr.startswith(warning) and len(result.stderr.splitlines()) == 1
    runner.run(PPO, "--resume", run_dir, "--save-model")
    result = runner.run("-m", "cleanrl_utils.evaluate", run_dir, "--episodes", 1)
    assert result.stdout.endswith(", trained to step 2560\n") and not result.stderr


def test_model_of_a_branch_that_the_run_has_left_is_evaluated_with_a_warning(runner):
    run_dir = runner.train(*SHORT)
    further = ["--total-timesteps", 2560, "--checkpoint-frequency", 0, "--save-model"]
    runner.run(PPO, "--resume", run_dir, *further)  # leaves a model of step 2560 and a checkpoint of step 1280
    time.sleep(1.1)  # sessions are told apart by the second
    runner.run(PPO, "--resume", run_dir, "--total-timesteps", 1920, "--no-save-model", "--learning-rate", 0.1)
    result = runner.run("-m", "cleanrl_utils.evaluate", run_dir, "--episodes", 1)
    assert "trained to step 2560, but the run was resumed from an earlier step since" in result.stderr


@pytest.mark.parametrize("metadata", [None, {}, {"global_step": "many"}])
def test_model_that_does_not_say_its_step_is_evaluated_as_ever(runner, run_dir, metadata):
    old = shutil.copytree(run_dir, runner.folder / "old")
    save_file(load_file(old / "ppo.safetensors"), old / "ppo.safetensors", metadata)
    note_step(old, 40960)
    result = runner.run("-m", "cleanrl_utils.evaluate", old, "--episodes", 1)
    assert result.stdout.endswith(", 1 episode\n") and not result.stderr


def test_run_that_does_not_say_its_step_is_evaluated_as_ever(runner, run_dir):
    old = shutil.copytree(run_dir, runner.folder / "old")
    (old / "provenance.json").unlink()
    result = runner.run("-m", "cleanrl_utils.evaluate", old, "--episodes", 1)
    assert result.stdout.endswith("trained to step 20480\n") and not result.stderr


# Several runs


def test_several_runs_are_evaluated_at_once_and_one_that_cannot_be_does_not_stop_the_others(runner, run_dir):
    (runner.folder / "empty").mkdir()
    copy = shutil.copytree(run_dir, runner.folder / "copy")
    runs = [run_dir, "empty", copy]
    done = runner.run("-m", "cleanrl_utils.evaluate", *runs, "--episodes", 2, "--no-cuda", check=False)
    first, second = done.stdout.splitlines()
    assert done.returncode == 1 and done.stderr == (
        "cannot evaluate empty: empty is not a run folder: it has no args.json\n"
    )
    assert first.startswith(f"{run_dir}: CartPole-v1 ppo: mean return") and second.startswith(
        f"{copy}: CartPole-v1 ppo"
    )
    assert first.partition(": ")[2] == second.partition(": ")[2]


def test_results_as_json_hold_every_return(runner, run_dir):
    done = runner.run("-m", "cleanrl_utils.evaluate", run_dir, run_dir, "--episodes", 3, "--no-cuda", "--json")
    first, second = json.loads(done.stdout)
    assert first == second and first["run_dir"] == str(run_dir) and first["env_id"] == "CartPole-v1"
    assert len(first["returns"]) == 3 and first["mean"] == pytest.approx(np.mean(first["returns"]))
    assert first["returns"] == first["lengths"] and first["global_step"] == 20480  # a point for each step


# Flags and spaces


@pytest.mark.parametrize("flag", ["episodes", "max_episode_steps"])
def test_number_that_is_too_small_gets_one_clear_line(run_dir, flag):
    with pytest.raises(SystemExit, match=f"--{flag.replace('_', '-')} must be at least 1"):
        main([run_dir], **{flag: 0})


def test_limit_of_the_command_line_is_said_in_the_result(runner, run_dir):
    result = runner.run("-m", "cleanrl_utils.evaluate", run_dir, "--episodes", 3, "--max-episode-steps", 9)
    assert "mean return 9.00" in result.stdout and "3 episodes (3 cut off after 9 steps)" in result.stdout


def test_policy_for_actions_that_are_counted_from_1_is_evaluated_with_these(runner):
    flags = ["--env-id", "from_one:FromOne-v0", "--learning-rate", "0.01", "--total-timesteps", "10240", "--save-model"]
    run_dir = runner.train(*SHORT, *flags, modules=MODULES)
    result = runner.run("-m", "cleanrl_utils.evaluate", run_dir, modules=MODULES)
    assert "mean return 20.00" in result.stdout, result.stdout  # all of the points; one action earns a third of them
