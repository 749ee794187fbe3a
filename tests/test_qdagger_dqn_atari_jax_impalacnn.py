"""qdagger_dqn_atari_jax_impalacnn.py: it computes what its twin in PyTorch computes, in three phases that resume."""

import ast
import dataclasses
import importlib.util
import runpy
import sys
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import ROOT, assert_same_run, curves
from test_ppo_atari import has_atari

if not importlib.util.find_spec("flax"):
    pytest.skip("the extra jax is not installed", allow_module_level=True)
if not has_atari:
    pytest.skip("needs cleanrl[atari]", allow_module_level=True)

import jax
from flax.traverse_util import flatten_dict
from jax.flatten_util import ravel_pytree
from safetensors.numpy import save_file
from test_dqn_atari_jax import make_minibatch, to_pytorch

from cleanrl import qdagger_dqn_atari_impalacnn as twin_file
from cleanrl import qdagger_dqn_atari_jax_impalacnn as qdagger
from cleanrl_utils import run

SCRIPT = ROOT / "cleanrl" / "qdagger_dqn_atari_jax_impalacnn.py"
PIXEL_GAME = ROOT / "tests" / "modules" / "pixel_game.py"
SHORT = ["--no-cuda", "--env-id", "Drift-v0", "--batch-size", "4", "--buffer-size", "50", "--teacher-steps", "40"]
SHORT += ["--offline-steps", "100", "--total-timesteps", "120", "--learning-starts", "60", "--train-frequency", "10"]
SHORT += ["--teacher-eval-episodes", "2", "--target-network-frequency", "30", "--num-envs", "2"]
THREE_ACTIONS = SimpleNamespace(single_action_space=gym.spaces.Discrete(3))

if "Drift-v0" not in gym.registry:
    runpy.run_path(str(PIXEL_GAME))


def train(monkeypatch, folder, *flags) -> dict:
    """Train in this process; returns the variables of the script."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, flags)])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    return runpy.run_path(str(SCRIPT), run_name="__main__")


def save_network(network, path) -> None:
    """A model file with new weights."""
    params = jax.jit(network.init)(jax.random.key(2), np.zeros((1, 4, 84, 84), np.uint8))
    save_file({name: np.asarray(x) for name, x in flatten_dict(params, sep=".").items()}, path)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    path = tmp_path_factory.mktemp("teacher") / "dqn_atari_jax.safetensors"
    save_network(qdagger.TeacherNetwork(3), path)
    return path


@pytest.fixture(scope="module")
def finished(teacher, tmp_path_factory):
    """A run to its end, with a model."""
    folder = tmp_path_factory.mktemp("qdagger_jax")
    with pytest.MonkeyPatch.context() as monkeypatch:
        variables = train(monkeypatch, folder, *SHORT, "--teacher-model-path", teacher, "--save-model")
    return SimpleNamespace(**variables | {"run_dir": folder / variables["run_dir"]})


def layers_of(tree) -> dict[str, torch.Tensor]:
    """The arrays of a network as its twin names and orders them; channels come last in Flax and first in PyTorch."""
    tensors = {}
    for name, x in flatten_dict(tree["params"], sep=".").items():
        x = np.array(x)
        if name == "layer4.kernel" and len(x) == 3872:  # its input was flattened from 11x11 pixels of 32 channels
            x = x.reshape(11, 11, 32, 256).transpose(3, 2, 0, 1).reshape(256, 3872)
            tensors["layer4.weight"] = torch.from_numpy(np.ascontiguousarray(x))
        elif name.endswith("kernel"):
            tensors[name.removesuffix("kernel") + "weight"] = to_pytorch(name.split(".")[0], x)
        else:
            tensors[name] = torch.from_numpy(x)
    return tensors


def twin_of(params, network_class=twin_file.QNetwork) -> torch.nn.Module:
    network = network_class(THREE_ACTIONS)
    network.load_state_dict(layers_of(params))
    return network


# Against the twin in PyTorch


@pytest.mark.parametrize("temperature", [0.3, 1.0])
def test_distillation_loss_is_that_of_the_twin_a_mean_over_the_batch(temperature):
    q_values, teacher_q_values = np.random.default_rng(1).standard_normal((2, 6, 4)).astype(np.float32)
    loss = qdagger.distillation_loss(q_values, teacher_q_values, temperature)
    expected = twin_file.distillation_loss(*map(torch.from_numpy, (q_values, teacher_q_values)), temperature)
    assert float(loss) == pytest.approx(expected.item(), rel=1e-5)


def test_network_of_the_student_is_that_of_the_twin_on_bytes():
    network, rng = qdagger.QNetwork(3), np.random.default_rng(2)
    obs = make_minibatch(rng, 2)[0]
    shapes = jax.eval_shape(network.init, jax.random.key(1), obs)
    params = jax.tree.map(lambda x: rng.normal(0, 0.1, x.shape).astype(np.float32), shapes)
    q_values = jax.jit(network.apply)(params, obs)
    with torch.no_grad():
        expected = twin_of(params)(torch.from_numpy(obs))
    assert np.abs(q_values).max() > 0.1
    np.testing.assert_allclose(q_values, expected, rtol=1e-3, atol=1e-4)


def definitions(path) -> dict[str, str]:
    """The functions and classes of a file, without its comments."""
    tree = ast.parse(path.read_text())
    return {x.name: ast.unparse(x) for x in tree.body if isinstance(x, ast.ClassDef | ast.FunctionDef)}


def test_what_is_not_its_own_is_that_of_dqn_atari_jax_and_of_the_twin():
    """Tested there."""
    ours, parent = definitions(SCRIPT), definitions(SCRIPT.with_name("dqn_atari_jax.py"))
    twin = definitions(SCRIPT.with_name("qdagger_dqn_atari_impalacnn.py"))
    for name in ("ReplayBuffer", "make_env", "make_envs", "dqn_loss", "linear_schedule", "TrainState", "load_policy"):
        assert ours[name] == parent[name]
    assert ours["TeacherNetwork"].replace("TeacherNetwork", "QNetwork") == parent["QNetwork"]
    for name in ("distillation_coefficient", "get_real_next_obs"):
        assert ours[name] == twin[name]


@pytest.mark.slow
def test_losses_gradients_and_updates_are_those_of_the_twin_in_pytorch(finished):
    """Both networks, the weighted sum of the losses, and Adam included."""
    rng = np.random.default_rng(1)
    params, target_params = jax.tree.map(np.array, finished.train_state[:2])
    target_params["params"]["head"]["bias"] += 0.5
    twin, target_twin = twin_of(params), twin_of(target_params)
    teacher_twin = twin_of(finished.teacher_params, twin_file.TeacherNetwork)
    state = qdagger.TrainState(params, target_params, finished.optimizer.init(params))
    state = jax.tree.map(jax.numpy.array, state)  # a copy: an update takes the memory of what it is given
    minibatch = make_minibatch(rng)
    state, stats = finished.update(state, minibatch, finished.teacher_params, 0.7)
    obs, next_obs, *outcomes = map(torch.from_numpy, minibatch)
    with torch.no_grad():
        next_q_values, teacher_q_values = target_twin(next_obs), teacher_twin(obs)
    q_values = twin(obs)
    td_loss, expected = twin_file.dqn_loss(q_values, next_q_values, *outcomes, 0.99)
    distill_loss = twin_file.distillation_loss(q_values, teacher_q_values, 1.0)
    loss = td_loss + 0.7 * distill_loss
    loss.backward()
    expected = {name: x.item() for name, x in (expected | {"distill_loss": distill_loss, "loss": loss}).items()}
    assert {name: float(x) for name, x in stats.items()} == pytest.approx(expected, rel=1e-3, abs=1e-5)
    assert expected["distill_loss"] > 1e-4
    moments = next(x for x in jax.tree.leaves(state.optimizer_state) if x.ndim == 1)  # a tenth of the gradients
    _, unravel = ravel_pytree(params)
    gradients = layers_of(unravel(10 * moments))
    for name, x in twin.named_parameters():
        norm = np.linalg.norm(x.grad)
        assert norm > 0
        # As wholes: where two pixels are equal but for rounding, max-pooling may let the gradient through either one
        assert np.linalg.norm(gradients[name] - x.grad.numpy()) < 0.02 * norm, name


# A run


@pytest.mark.slow
def test_metrics_are_those_of_the_three_phases(finished):
    logged = curves(finished.run_dir)
    offline = {f"charts/offline/{name}" for name in ("loss", "q_loss", "distill_loss", "avg_episodic_return")}
    charts = {f"charts/{name}" for name in ("episodic_return", "episodic_length", "epsilon", "distill_coeff", "SPS")}
    losses = {f"losses/{name}" for name in ("loss", "td_loss", "distill_loss", "q_values")}
    assert logged.keys() == offline | charts | losses | {"charts/teacher/avg_episodic_return", "eval/episodic_return"}
    assert all([step for step, _ in logged[tag]] == [100] for tag in offline)
    assert all([step for step, _ in logged[tag]] == [200] for tag in losses)
    assert finished.global_step == 220 and finished.buffer.num_added == 120
    assert finished.teacher_buffer.num_added == 40 and finished.teacher_buffer.frames.nbytes == 0


@pytest.mark.slow
def test_teacher_stays_as_it_was_and_the_policy_is_the_students(finished, teacher):
    assert layers_of(finished.teacher_params)["head.weight"].shape == (3, 512)
    saved = qdagger.unflatten_dict(qdagger.load_file(teacher), sep=".")
    assert jax.tree.all(jax.tree.map(lambda x, y: (x == y).all(), saved, finished.teacher_params))
    envs = qdagger.make_envs("Drift-v0", 1, False, "")
    policy = qdagger.load_policy(finished.run_dir / "qdagger_dqn_atari_jax_impalacnn.safetensors", envs)
    obs = make_minibatch(np.random.default_rng(4), 2)[0]
    expected = twin_of(finished.train_state.params).get_action(torch.tensor(obs))
    assert (policy(obs) == expected.numpy()).all()


@pytest.mark.slow
@pytest.mark.parametrize("stop_at", [1, 50, 150], ids=["teacher", "offline", "online"])
def test_interrupted_and_resumed_run_equals_one_that_never_stopped(finished, teacher, monkeypatch, tmp_path, stop_at):
    """In the first checkpoint of the teacher's phase, of the student's offline, and of its own games."""
    save_checkpoint = run.save_checkpoint
    lent = tmp_path / "lent.safetensors"
    lent.write_bytes(teacher.read_bytes())

    def save_and_stop(run_dir, args, script, writer, state):
        save_checkpoint(run_dir, args, script, writer, state)
        if stop_at == 1 or state["global_step"] >= stop_at:
            raise KeyboardInterrupt

    monkeypatch.setattr(run, "save_checkpoint", save_and_stop)
    with pytest.raises(KeyboardInterrupt):
        flags = [*SHORT, "--teacher-model-path", lent, "--save-model", "--checkpoint-frequency", 10]
        train(monkeypatch, tmp_path, *flags)
    monkeypatch.setattr(run, "save_checkpoint", save_checkpoint)
    lent.unlink()  # the checkpoint has the teacher as well
    (stopped,) = tmp_path.glob("runs/*")
    train(monkeypatch, tmp_path, "--resume", stopped)
    assert_same_run(finished.run_dir, stopped)


# Flags and mistakes


def test_defaults_are_those_of_the_twin_and_every_flag_is_used():
    ours, theirs = (dataclasses.asdict(module.Args()) for module in (qdagger, twin_file))
    assert theirs.items() - ours.items() == {
        ("exp_name", "qdagger_dqn_atari_impalacnn"),
        ("teacher_model_exp_name", "dqn_atari"),
        ("torch_deterministic", True),
        ("compile", False),
        ("accelerate", "auto"),
    }
    assert ours["teacher_model_exp_name"] == "dqn_atari_jax"
    source = "".join(path.read_text() for path in (SCRIPT, *(ROOT / "cleanrl_utils").rglob("*.py")))
    assert all(f"args.{name}" in source for name in ours)


def test_mistake_gets_one_clear_line_and_leaves_nothing_on_disk(monkeypatch, tmp_path):
    for flags, words in (
        (["--teacher-model-path", "nowhere"], "--teacher-model-path nowhere"),
        (["--temperature", "0"], "--temperature 0.0: must be more than 0"),
    ):
        with pytest.raises(SystemExit) as mistake:
            train(monkeypatch, tmp_path, *flags)
        line = mistake.value.code  # a text: Python prints it and exits with 1
        assert isinstance(line, str) and "\n" not in line and words in line, line
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_model_of_another_network_is_refused_as_a_teacher(monkeypatch, tmp_path):
    model = tmp_path / "model.safetensors"
    for network in (qdagger.QNetwork(3), qdagger.TeacherNetwork(4)):  # another network, another number of actions
        save_network(network, model)
        with pytest.raises(SystemExit) as mistake:
            train(monkeypatch, tmp_path, *SHORT, "--teacher-model-path", model)
        line = mistake.value.code
        assert "is no model of dqn_atari_jax.py for Drift-v0: " in line and "\n" not in line
    assert list(tmp_path.iterdir()) == [model]


@pytest.mark.slow
def test_student_takes_over_what_its_teacher_knows(runner):
    flags = ["--no-cuda", "--env-id", "Drift-v0", "--learning-starts", 100, "--buffer-size", 500, "--batch-size", 16]
    flags += ["--gamma", 0.5, "--train-frequency", 2, "--target-network-frequency", 50, "--learning-rate", 5e-4]
    taught = [*flags, "--total-timesteps", 800, "--exploration-fraction", 0.6, "--save-model"]
    runner.run(PIXEL_GAME, ROOT / "cleanrl" / "dqn_atari_jax.py", *map(str, taught))
    (teacher,) = runner.folder.glob("runs/*dqn_atari_jax__*")
    flags += ["--teacher-model-path", teacher, "--teacher-steps", 500, "--offline-steps", 400]
    flags += ["--total-timesteps", 400, "--temperature", 0.1]
    runner.run(PIXEL_GAME, SCRIPT, *map(str, flags))
    (run_dir,) = runner.folder.glob("runs/*qdagger*")
    logged = curves(run_dir)
    # of 34 to 63 points in a game: a third of them by chance
    assert logged["charts/teacher/avg_episodic_return"][0][1] > 36
    assert logged["charts/offline/avg_episodic_return"][-1][1] > 36
    assert np.mean([value for _, value in logged["charts/episodic_return"]][-10:]) > 36
