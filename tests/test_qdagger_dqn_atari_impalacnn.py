"""qdagger_dqn_atari_impalacnn.py: its losses, its networks, where the teacher comes from, and the three phases."""

import csv
import dataclasses
import inspect
import json
import math
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
from safetensors.torch import load_file, save_file
from test_ppo_atari import assert_one_clear_line, has_atari, needs_atari

from cleanrl import dqn_atari
from cleanrl import qdagger_dqn_atari_impalacnn as qdagger
from cleanrl.qdagger_dqn_atari_impalacnn import (
    Args,
    QNetwork,
    TeacherNetwork,
    distillation_coefficient,
    distillation_loss,
    dqn_loss,
    load_policy,
    make_envs,
    play_games,
)
from cleanrl_utils import memory, run
from cleanrl_utils.checks import find_mistake
from cleanrl_utils.evaluate import evaluate

SCRIPT = ROOT / "cleanrl" / "qdagger_dqn_atari_impalacnn.py"
MODULES = ROOT / "tests" / "modules"
PIXEL_GAME = MODULES / "pixel_game.py"
PUBLISHED = ROOT / "tests" / "published_defaults.csv"
GAME = ["--no-cuda", "--env-id", "Drift-v0", "--batch-size", 4]
TEACHING = [*GAME, "--total-timesteps", 120, "--learning-starts", 100, "--buffer-size", 150, "--seed", 2]
TEACHING += ["--exp-name", "teacher"]
SHORT = [*GAME, "--teacher-steps", 90, "--offline-steps", 100, "--total-timesteps", 150, "--learning-starts", 40]
SHORT += ["--buffer-size", 120, "--teacher-eval-episodes", 3, "--target-network-frequency", 20]
THREE_ACTIONS = SimpleNamespace(single_action_space=gym.spaces.Discrete(3))

if "Drift-v0" not in gym.registry:
    runpy.run_path(str(PIXEL_GAME))


def run_script(monkeypatch, folder, *flags, script=SCRIPT) -> dict:
    """Train in this process; returns the variables of the script."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [str(script), *map(str, flags)])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    try:
        return runpy.run_path(str(script), run_name="__main__")
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory) -> Path:
    """The folder of a run of dqn_atari.py."""
    if not has_atari:
        pytest.skip("needs cleanrl[atari]")
    folder = tmp_path_factory.mktemp("teacher")
    with pytest.MonkeyPatch.context() as monkeypatch:
        flags = [*TEACHING, "--save-model"]
        variables = run_script(monkeypatch, folder, *flags, script=ROOT / "cleanrl" / "dqn_atari.py")
    return folder / variables["run_dir"]


@pytest.fixture(scope="module")
def trained(teacher, tmp_path_factory):
    """A run to its end, and the variables of its script. Its clock is advanced by the environments alone."""
    folder = tmp_path_factory.mktemp("student")
    step, seconds = gym.vector.SyncVectorEnv.step, [0]

    def slow_step(self, actions):
        seconds[0] += 1
        return step(self, actions)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(gym.vector.SyncVectorEnv, "step", slow_step)
        monkeypatch.setattr(time, "perf_counter", lambda: float(seconds[0]))
        flags = [*SHORT, "--teacher-model-path", teacher, "--save-model", "--exp-name", "student"]
        variables = run_script(monkeypatch, folder, *flags)
    run_dir = folder / variables["run_dir"]
    return SimpleNamespace(run_dir=run_dir, curves=curves(run_dir), script=variables)


# The losses


def softmax(x: np.ndarray) -> np.ndarray:
    x = np.exp(x - x.max())
    return x / x.sum()


@pytest.mark.parametrize("temperature", [0.1, 1.0, 3.0])
def test_distillation_loss_is_the_mean_over_the_batch_of_the_divergence_from_the_teacher(temperature):
    rng = np.random.default_rng(1)
    q_values, teacher_q_values = rng.normal(size=(2, 6, 4))
    divergences, gradient = [], np.zeros((6, 4))
    for i in range(6):
        student, teacher = softmax(q_values[i] / temperature), softmax(teacher_q_values[i] / temperature)
        divergences.append(sum(p * math.log(p / q) for p, q in zip(teacher, student)))
        gradient[i] = (student - teacher) / temperature / 6
    x = torch.tensor(q_values, requires_grad=True)
    loss = distillation_loss(x, torch.tensor(teacher_q_values), temperature)
    np.testing.assert_allclose(loss.item(), np.mean(divergences), rtol=1e-9)
    loss.backward()
    np.testing.assert_allclose(x.grad, gradient, rtol=1e-9, atol=1e-12)


def test_distillation_loss_does_not_grow_with_the_batch_and_is_zero_for_equal_policies():
    torch.manual_seed(1)
    q_values, teacher_q_values = torch.randn(2, 8, 4)
    loss = distillation_loss(q_values, teacher_q_values, 1.0)
    many = distillation_loss(q_values.repeat(16, 1), teacher_q_values.repeat(16, 1), 1.0)
    torch.testing.assert_close(loss, many)
    assert distillation_loss(q_values, q_values + 5, 1.0).abs() < 1e-6  # action values of the same policy


@pytest.mark.parametrize(
    "returns, teacher_returns, expected",
    [
        ([], [10, 20], 1),
        ([30] * 9, [10, 20], 1),  # too few games to know that the student is better
        ([0] * 10, [10, 20], 1),
        ([3] * 10, [10, 20], 0.8),
        ([1000] * 50 + list(range(10)), [10, 20], 0.7),  # the last ten count, with a mean of 4.5
        ([15] * 10, [10, 20], 0),
        ([40] * 10, [10, 20], 0),
        ([-15] * 10, [10, 20], 2),
        ([-21] * 10, [-5, -5], 1),  # a teacher without a positive score is no measure: on or off
        ([-4] * 10, [-5, -5], 0),
        ([0] * 10, [0, 0], 0),
    ],
)
def test_distillation_fades_as_the_student_gets_as_good_as_its_teacher(returns, teacher_returns, expected):
    assert distillation_coefficient(returns, teacher_returns) == pytest.approx(expected)


def test_update_descends_the_loss_of_dqn_plus_the_weighted_distillation_loss(trained):
    script = trained.script
    update = getattr(script["update"], "function", script["update"])  # as written
    torch.manual_seed(1)
    obs, next_obs = torch.randint(0, 256, (2, 6, 4, 84, 84), dtype=torch.uint8)
    actions, rewards = torch.randint(0, 3, (6, 1)).float(), torch.randn(6, 1)
    terminations = torch.tensor([0.0, 1.0]).repeat(3)[:, None]
    minibatch = (obs, next_obs, actions, rewards, terminations)
    networks = {name: script[name] for name in ("q_network", "target_network", "teacher_network")}
    before = {name: [x.clone() for x in network.parameters()] for name, network in networks.items()}
    gradients = {}
    for coefficient in 0.0, 0.7:
        with torch.no_grad():
            next_q_values, teacher_q_values = networks["target_network"](next_obs), networks["teacher_network"](obs)
        q_values = networks["q_network"](obs)
        td_loss, _ = dqn_loss(q_values, next_q_values, actions, rewards, terminations, 0.99)
        distill_loss = distillation_loss(q_values, teacher_q_values, 1.0)
        expected = torch.autograd.grad(td_loss + coefficient * distill_loss, networks["q_network"].parameters())
        stats = update(*minibatch, torch.tensor(coefficient))
        for x, wanted in zip(networks["q_network"].parameters(), expected):
            torch.testing.assert_close(x.grad, wanted, rtol=1e-4, atol=1e-6)
        losses = [td_loss.item(), distill_loss.item(), td_loss.item() + coefficient * distill_loss.item()]
        got = [stats[name].item() for name in ("td_loss", "distill_loss", "loss")]
        np.testing.assert_allclose(got, losses, rtol=1e-5)
        gradients[coefficient] = torch.cat([x.flatten() for x in expected])
    assert (gradients[0.0] - gradients[0.7]).abs().max() > 1e-5
    for name, network in networks.items():
        changed = any((x != y).any() for x, y in zip(network.parameters(), before[name]))
        assert changed == (name == "q_network")


# The networks


def pixels(*shape):
    return torch.randint(0, 256, (*shape, 4, 84, 84), dtype=torch.uint8)


def naive_impala(network, x) -> torch.Tensor:
    """Predictions in double precision (Espeholt et al. 2018, figure 3, without the LSTM)."""
    weights = {name: w.double() for name, w in network.named_parameters()}

    def conv(name, x):
        return F.conv2d(x, weights[f"{name}.weight"], weights[f"{name}.bias"], padding=1)

    x = x.double() / 255
    for layer in "layer1", "layer2", "layer3":
        x = conv(f"{layer}.conv", x)
        padded = F.pad(x, (1, 1, 1, 1), value=-math.inf)
        x = padded.unfold(2, 3, 2).unfold(3, 3, 2).amax((-1, -2))
        for block in "block1", "block2":
            x = x + conv(f"{layer}.{block}.conv2", conv(f"{layer}.{block}.conv1", x.clamp(min=0)).clamp(min=0))
    x = x.clamp(min=0).reshape(len(x), -1)
    x = (x @ weights["layer4.weight"].T + weights["layer4.bias"]).clamp(min=0)
    return x @ weights["head.weight"].T + weights["head.bias"]


def test_network_of_the_student_is_that_of_impala_on_pixels_from_zero_to_one():
    torch.manual_seed(1)
    network, x = QNetwork(THREE_ACTIONS), pixels(3)
    torch.testing.assert_close(network(x).double(), naive_impala(network, x), rtol=1e-4, atol=1e-5)
    assert (network.get_action(x) == naive_impala(network, x).argmax(-1)).all()
    assert (network(x) == network(x.float())).all()  # minibatches are bytes, observations to act on are floats

    def sequence(inputs, outputs):
        return (9 * inputs + 1) * outputs + 4 * (9 * outputs + 1) * outputs

    expected = sequence(4, 16) + sequence(16, 32) + sequence(32, 32) + (32 * 11 * 11 + 1) * 256 + (256 + 1) * 3
    assert sum(p.numel() for p in network.parameters()) == expected


def test_network_of_the_teacher_is_that_of_dqn_atari():
    ours, theirs = inspect.getsource(TeacherNetwork).splitlines(), inspect.getsource(dqn_atari.QNetwork).splitlines()
    assert ours[1:] == theirs[1:]


@pytest.mark.parametrize(
    "name", ["ReplayBuffer", "make_env", "make_envs", "dqn_loss", "linear_schedule", "load_policy"]
)
def test_definition_is_that_of_dqn_atari(name):
    assert inspect.getsource(getattr(qdagger, name)) == inspect.getsource(getattr(dqn_atari, name))


# Where the teacher comes from


def arguments(**flags) -> Args:
    return dataclasses.replace(Args(), env_id="Drift-v0", **flags)


def test_teacher_is_found_in_a_run_folder_or_as_a_file(teacher, tmp_path):
    model = teacher / "teacher.safetensors"
    assert run.find_teacher(arguments(teacher_model_path=str(teacher))) == str(model)
    assert run.find_teacher(arguments(teacher_model_path=str(model))) == str(model)
    copy = shutil.copy(model, tmp_path / "elsewhere.safetensors")
    assert run.find_teacher(arguments(teacher_model_path=str(copy))) == str(copy)


@pytest.fixture
def repositories(tmp_path, monkeypatch, request):
    """The hub of tests/test_huggingface.py: its repositories."""
    pytest.importorskip("huggingface_hub")
    import test_huggingface

    monkeypatch.chdir(tmp_path)
    yield from (hub.repos for hub in inspect.unwrap(test_huggingface.hub)(tmp_path, monkeypatch))


def test_teacher_is_found_on_the_hub(teacher, repositories):
    files = {path.name: path.read_bytes() for path in (teacher / "args.json", teacher / "teacher.safetensors")}
    repositories |= {"cleanrl/Drift-v0-dqn_atari-seed1": files, "me/mine": files, "cleanrl/Drift-v0-b-seed1": files}
    weights = load_file(teacher / "teacher.safetensors")
    for flags in {}, {"teacher_policy_hf_repo": "me/mine"}, {"teacher_model_exp_name": "b"}:
        found = load_file(run.find_teacher(arguments(**flags)))
        assert all((found[name] == weights[name]).all() for name in weights)


def test_pickle_on_the_hub_is_refused(repositories):
    repositories["me/pickle"] = {"args.json": b"{}", "dqn_atari.cleanrl_model": b"\x80\x04N."}
    with pytest.raises(SystemExit, match="no teacher .*is a pickle.*refused.*--teacher-model-path"):
        run.find_teacher(arguments(teacher_policy_hf_repo="me/pickle"))
    with pytest.raises(SystemExit, match="no teacher .*no such repository.*--teacher-model-path"):
        run.find_teacher(arguments())


def test_teacher_that_is_no_such_model_is_named(teacher, tmp_path):
    for place in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(SystemExit, match=f"--teacher-model-path {place}: neither a model file nor a run folder"):
            run.find_teacher(arguments(teacher_model_path=str(place)))
    with pytest.raises(SystemExit, match="plays Drift-v0, not --env-id PongNoFrameskip-v4"):
        run.find_teacher(dataclasses.replace(Args(), env_id="PongNoFrameskip-v4", teacher_model_path=str(teacher)))


def test_teacher_that_is_older_than_its_run_is_mentioned(teacher, tmp_path, capsys):
    folder = Path(shutil.copytree(teacher, tmp_path / "copy"))
    run.find_teacher(arguments(teacher_model_path=str(folder)))
    assert capsys.readouterr().err == ""
    facts = json.loads((folder / "provenance.json").read_text())
    (folder / "provenance.json").write_text(json.dumps(facts | {"global_step": 10**6}))
    run.find_teacher(arguments(teacher_model_path=str(folder)))
    assert "the run has gone on to step 1000000" in capsys.readouterr().err


# The script


def test_flags_and_defaults_are_those_of_the_published_file():
    with open(PUBLISHED) as file:
        rows = {row[1]: row[2] for row in csv.reader(file) if row[0] == SCRIPT.name}
    defaults = dataclasses.asdict(Args())
    assert len(rows) > 25
    for name in rows.keys() - {"exp_name"}:
        assert defaults[name] == eval(rows[name], {"__builtins__": {}}), name


def test_every_flag_is_used():
    source = "".join(path.read_text() for path in (SCRIPT, *(ROOT / "cleanrl_utils").rglob("*.py")))
    for field in dataclasses.fields(Args):
        assert f"args.{field.name}" in source, field.name


@pytest.mark.parametrize(
    "flag, wrong, right",
    [
        ("teacher_eval_episodes", [0], [1]),
        ("teacher_steps", [0], [1]),
        ("offline_steps", [-1], [0, 1]),
        ("temperature", [0.0, -1.0, float("nan")], [0.1]),
    ],
)
def test_flag_out_of_range_is_named_with_its_value(flag, wrong, right):
    for value in wrong:
        assert f"--{flag.replace('_', '-')} {value}: must be" in find_mistake(vars(Args()) | {flag: value})
    for value in right:
        assert find_mistake(vars(Args()) | {flag: value}) is None


def test_metrics_are_those_of_the_published_file(trained):
    offline = {f"charts/offline/{name}" for name in ("loss", "q_loss", "distill_loss", "avg_episodic_return")}
    charts = {f"charts/{name}" for name in ("episodic_return", "episodic_length", "epsilon", "distill_coeff", "SPS")}
    losses = {f"losses/{name}" for name in ("loss", "td_loss", "distill_loss", "q_values")}
    others = {"charts/teacher/avg_episodic_return", "eval/episodic_return"}
    assert trained.curves.keys() == offline | charts | losses | others
    steps = {tag: [step for step, _ in curve] for tag, curve in trained.curves.items()}
    assert steps["charts/teacher/avg_episodic_return"] == [0]
    assert all(steps[tag] == [100] for tag in offline)  # the last one of the offline phase
    assert all(steps[tag] == [200] for tag in charts - {"charts/episodic_return", "charts/episodic_length"})
    assert min(steps["charts/episodic_return"]) > 100  # the student's own, after 100 updates offline
    assert trained.script["global_step"] == 250


def test_exploration_goes_on_from_the_updates_offline(trained):
    # from 1 at step 0 to 0.01 at a tenth of 150 steps: the 100 updates offline count
    assert trained.curves["charts/epsilon"][0][1] == pytest.approx(0.01)


def test_score_of_the_teacher_is_that_of_whole_games_with_few_random_actions(trained, teacher):
    network = TeacherNetwork(THREE_ACTIONS)
    network.load_state_dict(load_file(teacher / "teacher.safetensors"))
    args = dataclasses.replace(arguments(), teacher_eval_episodes=3, end_e=0.0)
    returns = play_games(network.get_action, args, "cpu")
    assert len(returns) == len(trained.script["teacher_returns"]) == 3
    games = evaluate(
        teacher / "teacher.safetensors", "Drift-v0", make_envs, dqn_atari.load_policy, episodes=1, seed=2, device="cpu"
    )
    assert returns[0] == games.returns[0]  # the first game has the seed after those of the training
    (_, logged) = trained.curves["charts/teacher/avg_episodic_return"][0]
    assert logged == pytest.approx(np.mean(trained.script["teacher_returns"]))
    np.random.seed(1)
    args.end_e = 1.0
    assert play_games(network.get_action, args, "cpu") != returns


def test_saved_model_is_the_student_and_is_evaluated(trained):
    assert len(trained.curves["eval/episodic_return"]) == 10
    model = trained.run_dir / "student.safetensors"
    network, x = QNetwork(THREE_ACTIONS), pixels(4)
    network.load_state_dict(load_file(model))
    np.testing.assert_array_equal(load_policy(model, THREE_ACTIONS)(x.numpy()), network.get_action(x))


def test_student_learns_in_each_step_offline_and_online_once_it_has_made_some_steps(trained):
    saved = torch.load(trained.run_dir / "checkpoint.pt", weights_only=False)
    (num_updates,) = {int(x["step"]) for x in saved["optimizer"]["state"].values()}
    online = [step for step in range(101, 251) if step > 100 + 40 and step % 4 == 0]
    assert num_updates == 100 + len(online)


def test_coefficient_is_that_of_the_last_games(trained):
    expected = distillation_coefficient(trained.script["recent_returns"], trained.script["teacher_returns"])
    assert trained.script["distill_coeff"].item() == pytest.approx(expected)
    assert len(trained.script["recent_returns"]) >= 10


class Stopped(Exception):
    pass


@pytest.fixture
def stop_at_checkpoints(monkeypatch):
    """Ends a script after each checkpoint, as a kill there would; returns what was saved."""
    states, save_checkpoint = [], run.save_checkpoint

    def save_and_stop(run_dir, args, script, writer, state):
        save_checkpoint(run_dir, args, script, writer, state)
        writer.close()
        states.append(torch.load(f"{run_dir}/checkpoint.pt", weights_only=False))
        raise Stopped

    monkeypatch.setattr(run, "save_checkpoint", save_and_stop)
    return states


def test_run_that_is_stopped_in_every_phase_equals_one_that_never_stopped(
    monkeypatch, tmp_path, trained, teacher, stop_at_checkpoints
):
    lost = Path(shutil.copytree(teacher, tmp_path / "lost"))
    flags = [*SHORT, "--teacher-model-path", lost, "--exp-name", "stopped", "--checkpoint-frequency", 60]
    with pytest.raises(Stopped):
        run_script(monkeypatch, tmp_path, *flags)
    shutil.rmtree(lost)  # the checkpoint has the teacher
    (run_dir,) = tmp_path.glob("runs/*stopped*")
    while stop_at_checkpoints[-1]["global_step"] < 250:
        with pytest.raises(Stopped):
            run_script(monkeypatch, tmp_path, "--resume", run_dir)
    at = [(x["phase"], x["teacher_buffer"]["num_added"], x["global_step"]) for x in stop_at_checkpoints]
    assert at == [
        ("teacher", 30, 0),
        ("teacher", 90, 0),  # the last step of the teacher: its games end here
        ("student", 90, 40),
        ("student", 90, 100),  # the last update offline
        ("student", 90, 160),
        ("student", 90, 220),
        ("student", 90, 250),
    ]
    a, b = torch.load(trained.run_dir / "checkpoint.pt", weights_only=False), stop_at_checkpoints[-1]
    assert a["teacher_returns"] == b["teacher_returns"] and a["recent_returns"] == b["recent_returns"]
    for name in ("q_network", "target_network", "teacher_network", "optimizer", "buffer", "distill_coeff", "next_obs"):
        torch.testing.assert_close(a[name], b[name], rtol=0, atol=0)
    ours, theirs = curves(run_dir), trained.curves
    for tag in theirs.keys() - {"charts/SPS", "eval/episodic_return"}:
        assert ours[tag] == theirs[tag], tag
    learning = stop_at_checkpoints[2]  # after 40 updates offline, at the last of which the target network was copied
    torch.testing.assert_close(learning["q_network"], learning["target_network"], rtol=0, atol=0)
    # The teacher's transitions are in the checkpoints as long as they are learned from
    sizes = [len(x["teacher_buffer"]["rows"]) for x in stop_at_checkpoints]
    assert sizes == [30, 90, 90, 90, 0, 0, 0]
    assert [len(x["buffer"]["rows"]) for x in stop_at_checkpoints] == [0, 0, 0, 0, 60, 120, 120]


def test_teacher_explores_less_and_less_and_the_student_starts_new_games(
    monkeypatch, tmp_path, teacher, stop_at_checkpoints
):
    monkeypatch.setattr(np.random, "rand", lambda n: np.full(n, 0.25))
    flags = [*SHORT, "--teacher-model-path", teacher, "--num-envs", 2, "--offline-steps", 2]
    with pytest.raises(Stopped):
        run_script(monkeypatch, tmp_path, *flags, "--teacher-eval-episodes", 1, "--end-e", 0.0)
    (run_dir,) = tmp_path.glob("runs/*")
    with pytest.raises(Stopped):
        run_script(monkeypatch, tmp_path, "--resume", run_dir)
    played, learning = stop_at_checkpoints
    rows, frames = played["teacher_buffer"]["rows"], played["teacher_buffer"]["frames"]
    assert played["phase"] == "teacher" and len(rows) == 90
    network = TeacherNetwork(THREE_ACTIONS)
    network.load_state_dict(load_file(teacher / "teacher.safetensors"))
    greedy = network.get_action(frames[rows[:, :4].long()])
    # epsilon falls from 1 to 0 over the 90 steps of the two games, and is above 0.25 in 68 of them
    assert (rows[:68, 8] == 0).all() and (rows[68:, 8] == greedy[68:]).all()
    assert (greedy != 0).any()
    first_obs, _ = make_envs("Drift-v0", 2, False, "").reset(seed=1)
    assert learning["phase"] == "student" and (played["next_obs"] != first_obs).any()
    np.testing.assert_array_equal(learning["next_obs"], first_obs)


def test_speed_counts_only_steps_that_were_made(trained):
    """One a second by the clock of that run. With the updates offline, which take no step, it would be two."""
    assert trained.curves["charts/SPS"] == [(200, 1.0)]


def test_resuming_with_other_phases_or_another_teacher_is_refused(monkeypatch, trained):
    for flag, value in ("--teacher-steps", 100), ("--offline-steps", 10), ("--teacher-model-path", "other"):
        with pytest.raises(SystemExit, match=f"{flag} is .* there and cannot change"):
            run_script(monkeypatch, trained.run_dir.parents[1], "--resume", trained.run_dir, flag, value)


def test_finished_run_has_nothing_left_to_train(monkeypatch, trained, capsys):
    variables = run_script(monkeypatch, trained.run_dir.parents[1], "--resume", trained.run_dir)
    assert "is complete at step 250" in capsys.readouterr().out
    assert variables["global_step"] == 250 and run.final_step(vars(variables["args"])) == 250


def test_copied_out_file_trains_with_a_model_file_without_the_repository(tmp_path, teacher):
    runner = Runner(tmp_path)
    script = Path(shutil.copy(SCRIPT, tmp_path / "mine.py"))
    flags = [*SHORT, "--teacher-model-path", teacher / "teacher.safetensors", "--total-timesteps", 60]
    flags += ["--teacher-steps", 20, "--offline-steps", 40]
    run_dir = runner.train(script, *flags, script=PIXEL_GAME, modules=MODULES / "without_utils")
    assert len(curves(run_dir)["charts/offline/avg_episodic_return"]) == len(curves(run_dir)["losses/loss"]) == 1


# Memory


class Buffer:
    """A kilobyte a row."""

    def __init__(self, size, device):
        self.rows = torch.zeros((size, 256), device="meta")


def test_memory_of_both_replay_buffers_is_checked_in_advance(monkeypatch):
    """The first one has not taken its memory yet when the second one is made."""
    monkeypatch.setattr(memory, "free_memory", lambda: 1024 * 1500)
    first = memory.place_buffer(Buffer, 1000, device=torch.device("cpu"))
    words = "--teacher-steps 501 takes 0.0 GB, 0.0 GB of memory are free beside the 0.0 GB of another replay buffer"
    with pytest.raises(SystemExit, match=f"{words}; at most 500 fit"):
        memory.place_buffer(Buffer, 501, device=torch.device("cpu"), flag="--teacher-steps", beside=first)
    memory.place_buffer(Buffer, 500, device=torch.device("cpu"), flag="--teacher-steps", beside=first)


# Mistakes


@needs_atari
def test_mistake_gets_one_clear_line(runner, teacher):
    for flags, words in (
        (["--teacher-model-path", "nowhere"], "--teacher-model-path nowhere"),
        (["--teacher-model-path", teacher], "plays Drift-v0, not --env-id BreakoutNoFrameskip-v4"),
        (["--temperature", "0"], "--temperature"),
    ):
        assert_one_clear_line(runner.run(SCRIPT, *flags, check=False), words)
    assert not list(runner.folder.iterdir())


def test_teacher_that_was_stopped_is_to_be_resumed_first(monkeypatch, tmp_path):
    run_dir = tmp_path / "stopped"
    run_dir.mkdir()
    (run_dir / "checkpoint.pt").touch()
    with pytest.raises(SystemExit, match="the run has no model; --resume it to its end with --save-model"):
        run_script(monkeypatch, tmp_path, *SHORT, "--teacher-model-path", run_dir)
    assert list(tmp_path.iterdir()) == [run_dir]


def test_model_of_another_file_is_refused(monkeypatch, tmp_path):
    model = tmp_path / "model.safetensors"
    save_file(QNetwork(THREE_ACTIONS).state_dict(), model)
    with pytest.raises(SystemExit) as error:
        run_script(monkeypatch, tmp_path, *SHORT, "--teacher-model-path", model)
    assert "is no model of dqn_atari.py for Drift-v0: " in error.value.code and "\n" not in error.value.code
    assert list(tmp_path.iterdir()) == [model]


# Learning


@pytest.mark.slow
@needs_atari
def test_student_takes_over_what_its_teacher_knows(runner):
    flags = [*GAME, "--learning-starts", 100, "--buffer-size", 500, "--batch-size", 16, "--gamma", 0.5]
    flags += ["--train-frequency", 2, "--target-network-frequency", 50, "--learning-rate", 5e-4]
    taught = [*flags, "--total-timesteps", 800, "--exploration-fraction", 0.6, "--save-model"]
    runner.run(PIXEL_GAME, ROOT / "cleanrl" / "dqn_atari.py", *map(str, taught))
    (teacher,) = runner.folder.glob("runs/*dqn_atari__*")
    flags += ["--teacher-model-path", teacher, "--teacher-steps", 500, "--offline-steps", 400]
    flags += ["--total-timesteps", 400, "--temperature", 0.1]
    runner.run(PIXEL_GAME, SCRIPT, *map(str, flags))
    (run_dir,) = runner.folder.glob("runs/*qdagger*")
    logged = curves(run_dir)
    # of 34 to 63 points in a game: a third of them by chance
    assert logged["charts/teacher/avg_episodic_return"][0][1] > 36
    assert logged["charts/offline/avg_episodic_return"][-1][1] > 36
    assert np.mean([value for _, value in logged["charts/episodic_return"]][-10:]) > 36
    assert logged["charts/distill_coeff"][-1][1] < 0.3
