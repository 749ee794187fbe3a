"""dqn_atari_jax.py: it computes and stores what dqn_atari.py does, and learns, resumes and refuses mistakes like it."""

import dataclasses
import importlib.util
import runpy
import signal
import sys
import time
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import ROOT, assert_same_run, curves
from test_dqn_atari import NaiveBuffer
from test_ppo_atari import cut_short, has_atari

if not importlib.util.find_spec("flax"):
    pytest.skip("the extra jax is not installed", allow_module_level=True)
if not has_atari:
    pytest.skip("needs cleanrl[atari]", allow_module_level=True)

import jax
from jax.flatten_util import ravel_pytree

from cleanrl import dqn_atari, dqn_atari_jax
from cleanrl_utils import checkpoint, run

SCRIPT = ROOT / "cleanrl" / "dqn_atari_jax.py"
PIXEL_GAME = ROOT / "tests" / "modules" / "pixel_game.py"
SHORT = ["--no-cuda", "--total-timesteps", "240", "--learning-starts", "100", "--buffer-size", "150"]
SHORT += ["--batch-size", "4", "--env-id", "Drift-v0", "--target-network-frequency", "50"]
SHORT += ["--exploration-fraction", "0.5", "--num-envs", "2"]

if "Drift-v0" not in gym.registry:
    runpy.run_path(str(PIXEL_GAME))


def train(monkeypatch, folder, *flags, script=SCRIPT) -> dict:
    """Train in this process; returns the variables of the script."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [str(script), *map(str, flags)])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    try:
        return runpy.run_path(str(script), run_name="__main__")
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run to its end, with a model."""
    folder = tmp_path_factory.mktemp("dqn_atari_jax")
    with pytest.MonkeyPatch.context() as monkeypatch:
        variables = train(monkeypatch, folder, *SHORT, "--save-model")
    return SimpleNamespace(**variables | {"run_dir": folder / variables["run_dir"]})


def to_pytorch(name, kernel) -> torch.Tensor:
    """Weights of a layer, or their gradients, in PyTorch's order; channels come last in Flax and first there."""
    kernel = np.array(kernel)
    if kernel.ndim == 4:
        kernel = kernel.transpose(3, 2, 0, 1)
    elif name == "layer4":  # its input was flattened from 7x7 pixels of 64 channels
        kernel = kernel.reshape(7, 7, 64, 512).transpose(3, 2, 0, 1).reshape(512, 3136)
    else:
        kernel = kernel.T
    return torch.from_numpy(np.ascontiguousarray(kernel))


def twin_of(params, num_actions) -> dqn_atari.QNetwork:
    """The network of dqn_atari.py with the weights of this one."""
    network = dqn_atari.QNetwork(SimpleNamespace(single_action_space=gym.spaces.Discrete(num_actions)))
    for name, layer in params["params"].items():
        getattr(network, name).weight.data = to_pytorch(name, layer["kernel"])
        getattr(network, name).bias.data = torch.tensor(np.array(layer["bias"]))
    return network


def make_minibatch(rng, size=4):
    """As both buffers give them: bytes, and columns of float32."""
    obs, next_obs = rng.integers(0, 256, (2, size, 4, 84, 84), dtype=np.uint8)
    columns = [rng.integers(0, 3, (size, 1)), rng.standard_normal((size, 1)), rng.random((size, 1)) < 0.3]
    return [obs, next_obs, *(x.astype(np.float32) for x in columns)]


# Against the twin in PyTorch


def test_loss_gradients_and_updates_are_those_of_the_twin_in_pytorch(finished):
    """From minibatches of bytes; Adam and the target network included."""
    rng = np.random.default_rng(1)
    params, target_params = jax.tree.map(np.array, finished.train_state[:2])
    target_params["params"]["head"]["bias"] += 0.5
    twin, target_twin = twin_of(params, 3), twin_of(target_params, 3)
    state = dqn_atari_jax.TrainState(params, target_params, finished.optimizer.init(params))
    state = jax.tree.map(jax.numpy.array, state)  # a copy: an update takes the memory of what it is given
    optimizer = torch.optim.Adam(twin.parameters(), 1e-4)
    for i in range(3):
        minibatch = make_minibatch(rng)
        state, stats = finished.update(state, minibatch)
        obs, next_obs, *outcomes = map(torch.from_numpy, minibatch)
        with torch.no_grad():
            next_q_values = target_twin(next_obs)
        optimizer.zero_grad()
        loss, twin_stats = dqn_atari.dqn_loss(twin(obs), next_q_values, *outcomes, 0.99)
        loss.backward()
        optimizer.step()
        assert {name: float(x) for name, x in stats.items()} == pytest.approx(
            {name: x.item() for name, x in twin_stats.items()}, rel=1e-3, abs=1e-4
        )
        if i == 0:  # Adam's first moments are a tenth of the gradients
            moments = next(x for x in jax.tree.leaves(state.optimizer_state) if x.ndim == 1)  # one vector for all
            _, unravel = ravel_pytree(params)
            gradients = unravel(10 * moments)
            for name, layer in gradients["params"].items():
                theirs = getattr(twin, name).weight.grad
                np.testing.assert_allclose(
                    to_pytorch(name, layer["kernel"]), theirs, rtol=1e-3, atol=1e-4 * theirs.abs().max().item()
                )
    for name, layer in state.params["params"].items():
        assert np.abs(layer["kernel"] - params["params"][name]["kernel"]).max() > 2e-4  # it moved
        ours, theirs = to_pytorch(name, layer["kernel"]), getattr(twin, name).weight.detach()
        assert (ours - theirs).abs().mean() < 2e-6  # Adam divides tiny gradients by themselves: single ones may differ
    state = finished.update_target(state)  # with tau = 1
    assert jax.tree.all(jax.tree.map(lambda x, y: (x == y).all(), state.params, state.target_params))


def small_buffer(size: int, spare_frames: int) -> dqn_atari_jax.ReplayBuffer:
    """A buffer as it is, but of frames of four pixels, and with room for a few more of them than transitions."""
    buffer = dqn_atari_jax.ReplayBuffer(size, 4, 1)
    buffer.frames = buffer.frames[: size + spare_frames, :2, :2].copy()
    return buffer


@pytest.mark.parametrize("num_envs, spare_frames", [(1, 6), (3, 12), (3, 100)])
def test_buffer_holds_the_last_transitions_as_a_naive_list_of_them_does(num_envs, spare_frames):
    """Those whose frames are all there, whole, even if it was saved and restored in between."""
    rng, size = np.random.default_rng(num_envs), 30
    buffer, naive = small_buffer(size, spare_frames), NaiveBuffer(num_envs)
    for step in range(100):
        buffer.add(*naive.step(list(rng.choice(["", "", "", "", "terminated", "truncated"], num_envs))))
        if step % 20 != 19:
            continue
        if step == 59:  # what resuming does
            saved, buffer = checkpoint.saved_form("buffer", buffer), small_buffer(size, spare_frames)
            buffer.load_state_dict(saved)
        expected = naive.within_reach(size, len(buffer.frames))
        obs, next_obs, actions, rewards, terminations = buffer.sample(30 * len(expected))
        assert obs.dtype == next_obs.dtype == np.uint8
        drawn = rewards[:, 0].astype(int)  # a reward is the number of its transition
        assert set(drawn) == set(expected)
        stacks, next_stacks, *outcomes = map(list, zip(*[naive.transitions[i] for i in drawn]))
        np.testing.assert_array_equal(obs, naive.pictures(stacks))
        np.testing.assert_array_equal(next_obs, naive.pictures(next_stacks))
        assert [x[:, 0].tolist() for x in (actions, rewards, terminations)] == outcomes
    assert buffer.num_frames == naive.num_frames  # each frame once


def test_a_million_transitions_take_less_than_eight_gigabytes():
    buffer = dqn_atari_jax.ReplayBuffer(1_000_000, 4, 1)
    assert buffer.rows.nbytes + buffer.frames.nbytes == 1_041_000 * 84 * 84 + 1_000_000 * 11 * 8 < 7.5e9


@pytest.mark.slow
def test_stored_games_of_breakout_are_those_of_the_twin(monkeypatch, tmp_path):
    """Lost lives, truncated games and several environments included; dqn_atari.py is compared with the emulator."""
    flags = ["--no-cuda", "--env-id", cut_short("Breakout", 260), "--num-envs", 2, "--total-timesteps", 240]
    flags += ["--buffer-size", 1000, "--learning-starts", 0, "--train-frequency", 1000, "--end-e", 1]
    buffers = [train(monkeypatch, tmp_path, *flags, script=file)["buffer"] for file in (SCRIPT, dqn_atari.__file__)]
    ours, theirs = buffers
    assert ours.num_added == theirs.num_added == 240 and ours.num_frames == theirs.num_frames > 250
    np.testing.assert_array_equal(ours.rows, theirs.rows)
    np.testing.assert_array_equal(ours.frames, theirs.frames)
    assert ours.rows[:, -1].any()


# A run


def test_metrics_and_evaluation(finished):
    logged = curves(finished.run_dir)
    names = {"charts/episodic_return", "charts/episodic_length", "charts/SPS", "losses/td_loss", "losses/q_values"}
    assert logged.keys() == names | {"eval/episodic_return"}
    assert [step for step, _ in logged["losses/td_loss"]] == [200]
    assert len(logged["eval/episodic_return"]) == 10


def test_saved_policy_is_the_greedy_one(finished):
    envs = dqn_atari_jax.make_envs("Drift-v0", 1, False, "")
    policy = dqn_atari_jax.load_policy(finished.run_dir / "dqn_atari_jax.safetensors", envs)
    obs = make_minibatch(np.random.default_rng(4), 2)[0]
    expected = twin_of(finished.train_state.params, 3).get_action(torch.tensor(obs))
    assert (policy(obs) == expected.numpy()).all()


def test_interrupted_and_resumed_run_equals_one_that_never_stopped(finished, monkeypatch, tmp_path):
    """Once the buffer has wrapped around."""
    save_checkpoint = run.save_checkpoint

    def save_and_stop(*args, **kwargs):
        save_checkpoint(*args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "save_checkpoint", save_and_stop)
    with pytest.raises(KeyboardInterrupt):
        train(monkeypatch, tmp_path, *SHORT, "--save-model", "--checkpoint-frequency", 180)
    monkeypatch.setattr(run, "save_checkpoint", save_checkpoint)
    (stopped,) = tmp_path.glob("runs/*")
    checkpoint_bytes = (stopped / "checkpoint.pt").stat().st_size  # arrays are written as they are, not as text
    arrays = jax.tree.leaves(finished.train_state)
    assert checkpoint_bytes < 1.1 * (182 * 84 * 84 + 150 * 11 * 8 + sum(x.nbytes for x in arrays))
    resumed = train(monkeypatch, tmp_path, "--resume", stopped)
    assert_same_run(finished.run_dir, stopped)
    for name in ("rows", "frames", "num_added", "num_frames", "stacks"):
        np.testing.assert_array_equal(getattr(finished.buffer, name), getattr(resumed["buffer"], name))
    leaves, leaves_resumed = map(jax.tree.leaves, (finished.train_state, resumed["train_state"]))
    assert all((x == y).all() for x, y in zip(leaves, leaves_resumed, strict=True))


@pytest.mark.slow
def test_environments_that_cannot_be_restored_start_new_episodes_in_the_buffer_as_well(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(checkpoint, "take_snapshot", lambda envs: None)
    flags = [*SHORT, "--buffer-size", 1000]
    run_dir = train(monkeypatch, tmp_path, *flags, "--total-timesteps", 210)["run_dir"]
    script = train(monkeypatch, tmp_path, "--resume", run_dir, "--total-timesteps", 240)
    assert "their episodes start again" in capsys.readouterr().err
    rows = script["buffer"].rows
    before, after = rows[208:210, :8], rows[210:212, :8]
    assert all(len(set(stack)) == 1 for stack in after[:, :4]) and after.min() > before.max()


@pytest.mark.slow
def test_killed_and_resumed_run_equals_one_that_never_stopped(runner):
    flags = [*SHORT, "--total-timesteps", "600", "--save-model", "--checkpoint-frequency", "30"]
    runner.run(PIXEL_GAME, SCRIPT, *flags)
    (never_stopped,) = runner.folder.glob("runs/*")
    process = runner.start(PIXEL_GAME, SCRIPT, *flags, "--exp-name", "killed")
    saved = runner.wait_for("runs/*killed*/checkpoint.pt", process)
    time.sleep(0.5)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    runner.run(PIXEL_GAME, SCRIPT, "--resume", saved.parent)
    assert_same_run(never_stopped, saved.parent)


# Flags and mistakes


def test_defaults_are_those_of_the_twin_and_every_flag_is_used():
    ours, theirs = (dataclasses.asdict(module.Args()) for module in (dqn_atari_jax, dqn_atari))
    assert theirs.items() - ours.items() == {
        ("exp_name", "dqn_atari"),
        ("torch_deterministic", True),
        ("compile", False),
        ("accelerate", "auto"),
    }
    source = "".join(path.read_text() for path in (SCRIPT, *(ROOT / "cleanrl_utils").rglob("*.py")))
    assert all(f"args.{name}" in source for name in ours)


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--env-id", "BreakoNoFrameskip-v4"], ["no such Atari game"]),
        (["--env-id", "CartPole-v1"], ["no Atari game"]),
        (["--total-timesteps", "80000"], ["--learning-starts 80000"]),
        (["--batch-size", "0"], ["--batch-size 0: must be at least 1"]),
    ],
)
def test_mistake_gets_one_clear_line_and_leaves_nothing_on_disk(monkeypatch, tmp_path, flags, words):
    with pytest.raises(SystemExit) as mistake:
        train(monkeypatch, tmp_path, *flags)
    line = mistake.value.code  # a text: Python prints it and exits with 1
    assert isinstance(line, str) and "\n" not in line and all(word in line for word in words), line
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_buffer_that_does_not_fit_is_refused_in_one_line(monkeypatch, tmp_path):
    with pytest.raises(SystemExit, match="--buffer-size 10000000000 takes .* fit"):
        train(monkeypatch, tmp_path, *SHORT, "--buffer-size", 10_000_000_000)


@pytest.mark.slow
def test_direction_of_a_drifting_bar_is_learned_from_the_stack_of_frames(runner):
    flags = [*SHORT, "--num-envs", "1", "--total-timesteps", "800", "--buffer-size", "500", "--batch-size", "16"]
    flags += ["--gamma", "0.5", "--train-frequency", "2", "--learning-rate", "5e-4", "--exploration-fraction", "0.6"]
    runner.run(PIXEL_GAME, SCRIPT, *flags)
    (run_dir,) = runner.folder.glob("runs/*")
    returns = [value for _, value in curves(run_dir)["charts/episodic_return"]]
    # of 34 to 63 points in a game: a third of them by chance
    assert np.mean(returns[:10]) < 24 and np.mean(returns[-20:]) > 36, (returns[:10], returns[-20:])
