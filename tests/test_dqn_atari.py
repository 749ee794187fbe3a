"""dqn_atari.py: a replay buffer that stores each frame once, the network, what a run stores and promises, learning."""

import dataclasses
import inspect
import io
import itertools
import resource
import runpy
import shutil
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT, Runner, curves
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from test_ppo_atari import NaiveAtari, assert_one_clear_line, cut_short, has_atari, needs_atari

from cleanrl import dqn, dqn_atari
from cleanrl.dqn_atari import Args, QNetwork, ReplayBuffer, dqn_loss, load_policy, make_envs
from cleanrl_utils import checkpoint, run
from cleanrl_utils.evaluate import evaluate

SCRIPT = ROOT / "cleanrl" / "dqn_atari.py"
MODULES = ROOT / "tests" / "modules"
PIXEL_GAME = MODULES / "pixel_game.py"
SHORT = ["--no-cuda", "--total-timesteps", "240", "--learning-starts", "100", "--buffer-size", "150"]
SHORT += ["--batch-size", "4", "--env-id", "Drift-v0"]
LONGER = [*SHORT, "--total-timesteps", "320", "--exploration-fraction", "0.9"]

if "Drift-v0" not in gym.registry:
    runpy.run_path(str(PIXEL_GAME))


def run_script(monkeypatch, folder, *flags) -> dict:
    """Train in this process; returns the variables of the script."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, flags)])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    try:
        return runpy.run_path(str(SCRIPT), run_name="__main__")
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def no_endless_search(monkeypatch):
    """A buffer without a single transition whose frames are all there would draw again forever."""
    randint, calls = torch.randint, itertools.count()

    def counted(*args, **kwargs):
        assert next(calls) < 100_000
        return randint(*args, **kwargs)

    monkeypatch.setattr(torch, "randint", counted)


# The replay buffer


def picture(number: int) -> np.ndarray:
    """A frame of four pixels, different for each number."""
    return np.frombuffer(np.uint32(number + 1).tobytes(), np.uint8).reshape(2, 2)


def small_buffer(size: int, spare_frames: int) -> ReplayBuffer:
    """A buffer as it is, but of frames of four pixels, and with room for a few more of them than transitions."""
    buffer = ReplayBuffer(size, 4, 1, "cpu")
    buffer.frames = buffer.frames[: size + spare_frames, :2, :2].clone()
    return buffer


def saved_and_loaded(buffer: ReplayBuffer) -> dict:
    """The buffer's part of a checkpoint, as it comes back from the disk."""
    file = io.BytesIO()
    torch.save(checkpoint.saved_form("buffer", buffer), file)
    file.seek(0)
    return torch.load(file, weights_only=False)


class NaiveBuffer:
    """Every transition there ever was, in a list, with whole stacks of frames; plays the environments as well."""

    def __init__(self, num_envs: int):
        self.transitions, self.num_frames = [], 0
        self.stacks = [None] * num_envs  # None: an episode is about to start

    def new_frame(self) -> int:
        self.num_frames += 1
        return self.num_frames - 1

    def step(self, ends: list[str]) -> list[np.ndarray]:
        """All environments make a step, which ends some of their episodes; returns what a script adds to its buffer."""
        for idx, end in enumerate(ends):
            obs, number = self.stacks[idx] or [self.new_frame()] * 4, len(self.transitions)
            next_obs = [*obs[1:], self.new_frame()]
            self.transitions.append((obs, next_obs, number % 5, number, end == "terminated"))
            self.stacks[idx] = None if end else next_obs
        obs, next_obs, *outcomes = map(list, zip(*self.transitions[-len(ends) :]))
        truncations = np.array([end == "truncated" for end in ends])
        return [self.pictures(obs), self.pictures(next_obs), *map(np.array, outcomes), truncations]

    @staticmethod
    def pictures(numbers: list[list[int]]) -> np.ndarray:
        return np.stack([[picture(x) for x in stack] for stack in numbers])

    def within_reach(self, size: int, num_frames: int) -> list[int]:
        """Which of the last `size` transitions consist of the last `num_frames` frames."""
        first = max(len(self.transitions) - size, 0)
        oldest = self.num_frames - num_frames
        return [i for i in range(first, len(self.transitions)) if min(self.transitions[i][0]) >= oldest]


def assert_samples_equal(buffer: ReplayBuffer, naive: NaiveBuffer, expected: list[int]) -> None:
    """All that can be drawn are these transitions, and each is what the naive buffer says it is."""
    obs, next_obs, actions, rewards, terminations = buffer.sample(30 * len(expected))
    assert obs.dtype == next_obs.dtype == torch.uint8 and obs.shape[1:] == next_obs.shape[1:] == (4, 2, 2)
    assert actions.shape == rewards.shape == terminations.shape == (len(obs), 1)
    assert actions.dtype == rewards.dtype == terminations.dtype == torch.float32
    drawn = rewards[:, 0].long().tolist()  # a reward is the number of its transition
    assert set(drawn) == set(expected)
    stacks, next_stacks, *outcomes = map(list, zip(*[naive.transitions[i] for i in drawn]))
    np.testing.assert_array_equal(obs, naive.pictures(stacks))
    np.testing.assert_array_equal(next_obs, naive.pictures(next_stacks))
    assert [x[:, 0].tolist() for x in (actions, rewards, terminations)] == outcomes


steps = st.tuples(*[st.sampled_from(["", "", "terminated", "truncated"])] * 3)
patterns = st.lists(st.one_of(steps, st.sampled_from(["sample", "copy"])), min_size=1, max_size=12)


@settings(max_examples=80, deadline=None)
@given(
    size=st.integers(1, 24),
    spare_frames=st.integers(4, 30),
    num_envs=st.integers(1, 3),
    what_happens=st.lists(st.tuples(patterns, st.integers(1, 8)), max_size=3),
)
def test_buffer_holds_the_last_transitions_as_a_naive_list_of_them_does(size, spare_frames, num_envs, what_happens):
    torch.manual_seed(1)
    buffer, naive = small_buffer(size, spare_frames), NaiveBuffer(num_envs)
    for event in [event for pattern, times in what_happens for event in pattern * times] + ["sample"]:
        if event == "copy":  # what resuming does
            saved, buffer = saved_and_loaded(buffer), small_buffer(size, spare_frames)
            buffer.load_state_dict(saved)
        elif event != "sample":
            buffer.add(*naive.step(event[:num_envs]))
        elif expected := naive.within_reach(size, len(buffer.frames)):
            assert_samples_equal(buffer, naive, expected)
    assert buffer.num_frames == naive.num_frames  # each frame once


@pytest.mark.parametrize("num_envs, size", [(1, 1), (1, 1500), (4, 1000), (50, 10), (100, 500)])
def test_all_of_the_last_transitions_can_be_drawn_if_episodes_have_25_steps(num_envs, size):
    torch.manual_seed(1)
    buffer, naive = small_buffer(size, spare_frames=10**9), NaiveBuffer(num_envs)  # all frames that it has
    for step in range(2 * len(buffer.frames) // num_envs + 10):
        buffer.add(*naive.step(["truncated" if (step + 5 * idx) % 25 == 24 else "" for idx in range(num_envs)]))
    assert buffer.num_frames > 2 * len(buffer.frames)
    last = list(range(len(naive.transitions) - size, len(naive.transitions)))
    assert naive.within_reach(size, len(buffer.frames)) == last
    assert_samples_equal(buffer, naive, last)


def test_all_within_reach_are_drawn_equally_often():
    torch.manual_seed(1)
    buffer, naive = small_buffer(20, spare_frames=8), NaiveBuffer(1)
    for _ in range(60):
        buffer.add(*naive.step(["terminated"]))  # two frames a transition: only half of the last ones are there
    expected = naive.within_reach(20, len(buffer.frames))
    assert len(expected) == 14
    drawn = torch.cat([buffer.sample(140)[3] for _ in range(100)])
    counts = torch.bincount(drawn[:, 0].long() - expected[0], minlength=14)
    assert len(counts) == 14 and (counts - 1000).abs().max() < 150  # a deviation is about 30


def test_number_of_frames_is_steps_and_starts_of_episodes():
    buffer, naive = small_buffer(1000, spare_frames=8), NaiveBuffer(2)
    for step in range(200):
        buffer.add(*naive.step(["terminated" if step % 10 == 9 else "", "truncated" if step % 40 == 39 else ""]))
    assert buffer.num_frames == 2 * 200 + 20 + 5
    stored = buffer.frames[: buffer.num_frames].flatten(1).numpy()
    assert len(np.unique(stored, axis=0)) == buffer.num_frames
    assert (buffer.frames[buffer.num_frames :] == 0).all()


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_episode_starts_after_one_of_the_environment_has_ended_and_at_no_other_time(end):
    """Even where all frames of all episodes look alike: nobody looks at them."""
    buffer, frame = small_buffer(100, spare_frames=50), np.zeros((2, 4, 2, 2), np.uint8)
    nothing, ended = np.zeros(2, bool), np.array([False, True])
    terminations, truncations = (ended, nothing) if end == "terminated" else (nothing, ended)
    for ends in ((nothing, nothing), (nothing, nothing), (terminations, truncations), (nothing, nothing)):
        buffer.add(frame, frame, np.zeros(2, int), np.zeros(2), *ends)
    first, second = buffer.rows[0:8:2, :8], buffer.rows[1:8:2, :8]
    assert first.tolist() == [
        [0, 0, 0, 0, 0, 0, 0, 1],
        [0, 0, 0, 1, 0, 0, 1, 4],
        [0, 0, 1, 4, 0, 1, 4, 6],
        [0, 1, 4, 6, 1, 4, 6, 8],
    ]
    assert second.tolist() == [
        [2, 2, 2, 2, 2, 2, 2, 3],
        [2, 2, 2, 3, 2, 2, 3, 5],
        [2, 2, 3, 5, 2, 3, 5, 7],
        [9, 9, 9, 9, 9, 9, 9, 10],  # another episode
    ]


def test_a_million_transitions_take_less_than_eight_gigabytes():
    buffer = ReplayBuffer(1_000_000, 4, 1, "meta")
    size = sum(x.nbytes for x in vars(buffer).values() if isinstance(x, torch.Tensor | np.ndarray))
    assert size == 1_041_000 * 84 * 84 + 1_000_000 * 11 * 8 <= 7.5e9
    assert 7.5 * size < 1_000_000 * 2 * 4 * 84 * 84  # whole stacks of obs and next_obs


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
def test_empty_buffer_takes_hardly_any_memory():
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    before = resident()
    buffer = ReplayBuffer(1_000_000, 4, 1, "cpu")
    assert buffer.frames.nbytes > 7.3e9
    assert resident() - before < 0.2e9


def test_checkpoint_holds_only_what_was_stored():
    buffer, naive = small_buffer(1000, spare_frames=8), NaiveBuffer(1)
    for _ in range(10):
        buffer.add(*naive.step([""]))
    saved = saved_and_loaded(buffer)
    assert saved["rows"].untyped_storage().nbytes() == 10 * 11 * 8
    assert saved["frames"].untyped_storage().nbytes() == 11 * 2 * 2


def test_small_buffer_of_many_environments_has_the_frames_it_needs(monkeypatch, tmp_path):
    run_script(monkeypatch, tmp_path, *SHORT, "--num-envs", 8, "--buffer-size", 10)


# The network


@pytest.fixture
def network():
    torch.manual_seed(1)
    return QNetwork(SimpleNamespace(single_action_space=gym.spaces.Discrete(4)))


def pixels(*shape):
    return torch.randint(0, 256, (*shape, 4, 84, 84), dtype=torch.uint8)


def naive_network(network, x):
    """Predictions, layer by layer and in double precision."""
    weights = {name: w.double() for name, w in network.named_parameters()}
    x = x.double() / 255
    for layer, stride in ("layer1", 4), ("layer2", 2), ("layer3", 1):
        x = F.conv2d(x, weights[f"{layer}.weight"], weights[f"{layer}.bias"], stride).clamp(min=0)
    x = (x.reshape(len(x), -1) @ weights["layer4.weight"].T + weights["layer4.bias"]).clamp(min=0)
    return x @ weights["head.weight"].T + weights["head.bias"]


def test_network_is_the_one_in_nature_on_pixels_from_zero_to_one(network):
    shared = (4 * 8 * 8 + 1) * 32 + (32 * 4 * 4 + 1) * 64 + (64 * 3 * 3 + 1) * 64 + (64 * 7 * 7 + 1) * 512
    assert sum(p.numel() for p in network.parameters()) == shared + (512 + 1) * 4
    x = pixels(5)
    torch.testing.assert_close(network(x).double(), naive_network(network, x), rtol=1e-4, atol=1e-5)
    assert (network.get_action(x) == naive_network(network, x).argmax(-1)).all()


def test_bytes_and_floats_of_the_same_pixels_are_the_same_to_the_network(network):
    x = pixels(5)
    assert (network(x) == network(x.float())).all()  # minibatches are bytes, observations to act on are floats
    assert (network.get_action(x) == network.get_action(x.float())).all()


def test_gradient_of_the_loss_equals_that_of_the_naive_network(network):
    x, actions = pixels(6), torch.randint(0, 4, (6, 1)).float()
    rewards, terminations, next_q_values = torch.randn(6, 1), torch.randint(0, 2, (6, 1)).float(), torch.randn(6, 4)
    losses = [
        dqn_loss(q_values, next_q_values, actions, rewards, terminations, 0.99)[0]
        for q_values in (network(x), naive_network(network, x))
    ]
    gradients, expected = (torch.autograd.grad(loss, list(network.parameters())) for loss in losses)
    for got, wanted in zip(gradients, expected, strict=True):
        assert wanted.abs().max() > 0
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4 * wanted.abs().max().item())


@pytest.mark.parametrize("name", ["dqn_loss", "linear_schedule", "update_target"])
def test_function_is_that_of_dqn(name):
    """There it is compared with a naive version."""
    assert inspect.getsource(getattr(dqn_atari, name)) == inspect.getsource(getattr(dqn, name))


# The script: flags, what it stores, how often it learns


def test_flags_and_defaults_are_those_of_the_published_file():
    published = {
        "exp_name": "dqn_atari", "seed": 1, "torch_deterministic": True, "cuda": True, "track": False,
        "wandb_project_name": "cleanRL", "wandb_entity": None, "capture_video": False, "save_model": False,
        "upload_model": False, "hf_entity": "", "env_id": "BreakoutNoFrameskip-v4", "total_timesteps": 10_000_000,
        "learning_rate": 1e-4, "num_envs": 1, "buffer_size": 1_000_000, "gamma": 0.99, "tau": 1.0,
        "target_network_frequency": 1000, "batch_size": 32, "start_e": 1, "end_e": 0.01, "exploration_fraction": 0.1,
        "learning_starts": 80_000, "train_frequency": 4,
    }  # fmt: skip
    assert published.items() <= dataclasses.asdict(Args()).items()


def test_every_flag_is_used():
    source = "".join(path.read_text() for path in (SCRIPT, *(ROOT / "cleanrl_utils").rglob("*.py")))
    for field in dataclasses.fields(Args):
        assert f"args.{field.name}" in source, field.name


@needs_atari
@pytest.mark.parametrize("num_envs", [1, 2])
def test_stored_transitions_are_those_of_the_naive_view_of_the_games(monkeypatch, tmp_path, num_envs):
    env_id = cut_short("Breakout", 260)
    flags = ["--env-id", env_id, "--num-envs", num_envs, "--total-timesteps", 300, "--buffer-size", 1000]
    variables = run_script(monkeypatch, tmp_path, *SHORT, *flags, "--exploration-fraction", 1, "--train-frequency", 50)
    buffer = variables["buffer"]
    assert buffer.num_added == variables["global_step"] == 300
    rows = buffer.rows[:300]
    numbers, actions = rows[:, :8].astype(int), rows[:, 8].astype(int)
    happened, starts, games = set(), 0, []
    for idx in range(num_envs):
        naive = NaiveAtari(env_id, 1 + idx)
        obs, starts = naive.reset(), starts + 1
        for i in range(idx, 300, num_envs):
            np.testing.assert_array_equal(buffer.frames[numbers[i, :4]], obs)
            obs, reward, termination, truncation = naive.step(actions[i])
            np.testing.assert_array_equal(buffer.frames[numbers[i, 4:]], obs)  # the final one at an episode's end
            assert (reward, termination) == tuple(rows[i, 9:])
            happened |= {"truncation"} if truncation else {"termination"} if termination else set()
            games += [(i + 1, naive.score, naive.length)] if naive.over else []
            if truncation or termination:
                obs, starts = naive.reset(), starts + (i + num_envs < 300)
    assert happened == {"truncation", "termination"}
    assert buffer.num_frames == 300 + starts
    logged = curves(tmp_path / variables["run_dir"])  # raw scores of whole games
    returns, lengths = logged["charts/episodic_return"], logged["charts/episodic_length"]
    assert [(step, score, length) for (step, score), (_, length) in zip(returns, lengths)] == sorted(games)


@pytest.mark.parametrize("num_envs, frequency", [(1, 4), (2, 4), (3, 7), (16, 4)])
def test_updates_per_step_do_not_depend_on_the_number_of_environments(monkeypatch, tmp_path, num_envs, frequency):
    updates = []
    step = torch.optim.Adam.step
    monkeypatch.setattr(torch.optim.Adam, "step", lambda self: (updates.append(1), step(self)))
    flags = ["--accelerate", "off", "--num-envs", num_envs, "--train-frequency", frequency]
    variables = run_script(monkeypatch, tmp_path, *SHORT, *flags)
    assert variables["global_step"] == variables["buffer"].num_added == 240 // num_envs * num_envs
    assert abs(len(updates) - (variables["global_step"] - 100) / frequency) <= 1 + num_envs / frequency


# A run, its folder, and that it can be repeated and resumed


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run with its output."""
    if not has_atari:
        pytest.skip("needs cleanrl[atari]")
    runner = Runner(tmp_path_factory.mktemp("atari"))
    result = runner.run(PIXEL_GAME, SCRIPT, *LONGER, "--save-model")
    (run_dir,) = runner.folder.glob("runs/*")
    return SimpleNamespace(run_dir=run_dir, output=result.stdout, curves=curves(run_dir))


def test_metrics_are_those_of_the_published_file(finished):
    assert finished.run_dir.name.startswith("Drift-v0__dqn_atari__1__")
    losses, charts = {"losses/td_loss", "losses/q_values"}, {"charts/episodic_return", "charts/episodic_length"}
    assert finished.curves.keys() == losses | charts | {"charts/SPS", "eval/episodic_return"}
    assert [step for step, _ in finished.curves["charts/SPS"]] == [100, 200, 300]
    for tag in losses:
        assert [step for step, _ in finished.curves[tag]] == [200, 300]


def test_saved_model_is_evaluated(finished):
    logged = [value for _, value in finished.curves["eval/episodic_return"]]
    assert len(logged) == 10 and "evaluation: mean return" in finished.output
    model = finished.run_dir / "dqn_atari.safetensors"
    again = evaluate(model, "Drift-v0", make_envs, load_policy, seed=1 + 1_000_000, device="cpu")
    assert again.returns == logged


def test_loaded_policy_is_the_trained_one(finished):
    envs = make_envs("Drift-v0", 2, False, "")
    network = QNetwork(envs)
    network.load_state_dict(load_file(finished.run_dir / "dqn_atari.safetensors"))
    x = pixels(6)
    actions = load_policy(finished.run_dir / "dqn_atari.safetensors", envs)(x.numpy())
    np.testing.assert_array_equal(actions, naive_network(network, x).argmax(-1))


def assert_same_end(run_a, run_b):
    """Equal curves and equal last checkpoints, to the bit: networks, optimizer, replay buffer."""
    a, b = (torch.load(run / "checkpoint.pt", weights_only=False) for run in (run_a, run_b))
    assert a["global_step"] == b["global_step"] and a["buffer"]["num_added"] > len(a["buffer"]["rows"])
    for name in ("q_network", "target_network", "optimizer", "buffer"):
        torch.testing.assert_close(a[name], b[name], rtol=0, atol=0)
    curves_a, curves_b = curves(run_a), curves(run_b)
    for tag in curves_a.keys() - {"charts/SPS", "eval/episodic_return"}:
        assert curves_a[tag] == curves_b[tag], tag


@needs_atari
def test_same_seed_gives_the_same_run_and_another_seed_another(monkeypatch, tmp_path):
    runs = [
        tmp_path / run_script(monkeypatch, tmp_path, *SHORT, "--exp-name", name, "--seed", seed)["run_dir"]
        for name, seed in (("first", 1), ("same", 1), ("other", 2))
    ]
    assert_same_end(*runs[:2])
    assert curves(runs[0])["losses/td_loss"] != curves(runs[2])["losses/td_loss"]


@needs_atari
def test_killed_and_resumed_run_equals_one_that_never_stopped(runner, finished):
    process = runner.start(PIXEL_GAME, SCRIPT, *LONGER, "--exp-name", "killed", "--checkpoint-frequency", "30")
    checkpoint = runner.wait_for("runs/*killed*/checkpoint.pt", process)
    while (step := torch.load(checkpoint, weights_only=False)["global_step"]) < 180:  # the buffer has wrapped around
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.communicate()
    assert step < 320
    result = runner.run(PIXEL_GAME, SCRIPT, "--resume", checkpoint.parent)
    assert "episodes start again" not in result.stderr
    assert_same_end(finished.run_dir, checkpoint.parent)


@needs_atari
def test_interrupted_and_resumed_run_of_two_games_of_breakout_equals_one_that_never_stopped(monkeypatch, tmp_path):
    flags = [*LONGER, "--env-id", "BreakoutNoFrameskip-v4", "--num-envs", "2"]
    never_stopped = run_script(monkeypatch, tmp_path, *flags)["run_dir"]
    save_checkpoint = run.save_checkpoint

    def save_and_stop(*args, **kwargs):
        save_checkpoint(*args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "save_checkpoint", save_and_stop)
    with pytest.raises(KeyboardInterrupt):
        run_script(monkeypatch, tmp_path, *flags, "--exp-name", "stopped", "--checkpoint-frequency", 222)
    monkeypatch.setattr(run, "save_checkpoint", save_checkpoint)
    (stopped,) = tmp_path.glob("runs/*stopped*")
    assert torch.load(stopped / "checkpoint.pt", weights_only=False)["global_step"] == 222
    run_script(monkeypatch, tmp_path, "--resume", stopped)
    assert_same_end(tmp_path / never_stopped, stopped)


@needs_atari
def test_environments_that_cannot_be_restored_start_new_episodes_in_the_buffer_as_well(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(checkpoint, "take_snapshot", lambda envs: None)
    flags = [*SHORT, "--num-envs", 2, "--buffer-size", 1000]
    run_dir = run_script(monkeypatch, tmp_path, *flags, "--total-timesteps", 210)["run_dir"]
    saved = torch.load(tmp_path / run_dir / "checkpoint.pt", weights_only=False)["buffer"]
    assert saved["stacks"].keys() == {0, 1}  # both are in the midst of an episode
    script = run_script(monkeypatch, tmp_path, "--resume", run_dir, "--total-timesteps", 240)
    assert "their episodes start again" in capsys.readouterr().err
    buffer = script["buffer"]
    before, after, later = buffer.rows[208:210, :8], buffer.rows[210:212, :8], buffer.rows[212:214, :8]
    assert all(len(set(stack)) == 1 for stack in after[:, :4]) and after.min() > before.max()
    assert (later[:, :4] == after[:, 4:]).all()


@needs_atari
@pytest.mark.parametrize("size", [100, 200])
def test_resuming_with_another_size_of_the_buffer_is_refused(monkeypatch, tmp_path, size):
    run_dir = run_script(monkeypatch, tmp_path, *SHORT)["run_dir"]
    with pytest.raises(SystemExit, match="--buffer-size"):
        run_script(monkeypatch, tmp_path, "--resume", run_dir, "--buffer-size", size, "--total-timesteps", 300)


@needs_atari
def test_copied_out_file_trains_in_an_empty_folder_without_the_repository(runner):
    script = Path(shutil.copy(SCRIPT, runner.folder / "mine.py"))
    run_dir = runner.train(
        *SHORT, "--env-id", "BreakoutNoFrameskip-v4", script=script, modules=MODULES / "without_utils"
    )
    assert len(curves(run_dir)["losses/td_loss"]) == 1


# Learning


@pytest.mark.slow
@needs_atari
def test_direction_of_a_drifting_bar_is_learned_from_the_stack_of_frames(runner):
    flags = [*SHORT, "--total-timesteps", "800", "--buffer-size", "500", "--batch-size", "16", "--gamma", "0.5"]
    flags += ["--train-frequency", "2", "--target-network-frequency", "50", "--learning-rate", "5e-4"]
    flags += ["--exploration-fraction", "0.6"]
    runner.run(PIXEL_GAME, SCRIPT, *flags)
    (run_dir,) = runner.folder.glob("runs/*")
    returns = [value for _, value in curves(run_dir)["charts/episodic_return"]]
    # of 34 to 63 points in a game: a third of them by chance
    assert np.mean(returns[:10]) < 24 and np.mean(returns[-20:]) > 36, (returns[:10], returns[-20:])


# Mistakes


@needs_atari
@pytest.mark.parametrize(
    "flags, words",
    [
        (["--env-id", "BreakoNoFrameskip-v4"], ["no such Atari game"]),
        (["--env-id", "ALE/Breako-v5"], ["no such Atari game"]),
        (["--total-timesteps", "80000"], ["--learning-starts 80000"]),
        (["--train-frequency", "0"], ["at least 1"]),
        (["--buffer-size", "0"], ["at least 1"]),
    ],
)
def test_mistake_ends_the_run_with_one_line_and_leaves_nothing_on_disk(monkeypatch, tmp_path, flags, words):
    with pytest.raises(SystemExit) as error:
        run_script(monkeypatch, tmp_path, *flags)
    assert "\n" not in error.value.code and all(word in error.value.code for word in words)
    assert not list(tmp_path.iterdir())


@needs_atari
@pytest.mark.parametrize(
    "env_id, words",
    [("CartPole-v1", ["no Atari game", "BreakoutNoFrameskip-v4"]), ("PongNoFrameskip-v7", ["v7", "`v4`"])],
)
def test_nothing_but_that_line_is_printed(runner, env_id, words):
    assert_one_clear_line(runner.run(SCRIPT, "--env-id", env_id, check=False), *words)
    assert not list(runner.folder.iterdir())


def test_missing_extra_is_named(runner):
    result = runner.run(SCRIPT, modules=MODULES / "without_stable_baselines3", check=False)
    assert_one_clear_line(result, 'pip install "cleanrl[atari]"')
    assert not list(runner.folder.iterdir())


def test_atari_game_given_to_dqn_gets_the_name_of_this_file(runner):
    result = runner.run(ROOT / "cleanrl" / "dqn.py", "--env-id", "BreakoutNoFrameskip-v4", check=False)
    assert_one_clear_line(result, "dqn_atari.py")
