"""Evaluation: the policy that was trained, under the same conditions, with honest statistics."""

import shutil

import gymnasium as gym
import numpy as np
import pytest
from conftest import SHORT, Runner
from safetensors.numpy import load_file, save_file

from cleanrl_utils.evaluate import Evaluation, evaluate, load_run


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


def test_interval_covers_the_mean_of_a_known_distribution_about_as_often_as_it_says():
    generator = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        low, high = Evaluation(list(generator.normal(3.0, 2.0, 30)), []).interval
        covered += low <= 3.0 <= high
    assert 0.88 <= covered / 200 <= 0.99
    assert Evaluation([5.0, 5.0], []).interval == (5.0, 5.0)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    return Runner(tmp_path_factory.mktemp("trained")).train(*SHORT, "--save-model", "--total-timesteps", "20480")


def test_command_prints_the_statistics_and_is_repeatable(runner, run_dir):
    outputs = {runner.run("-m", "cleanrl_utils.evaluate", run_dir, "--episodes", 5).stdout for _ in range(2)}
    assert len(outputs) == 1
    (output,) = outputs
    assert "CartPole-v1 ppo: mean return" in output and "std" in output and "95% interval" in output


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
    video = run_dir / "evaluation" / "videos" / "rl-video-episode-0.mp4"
    assert video.stat().st_size > 1000


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
