"""Scripts in JAX need no PyTorch: what they use of cleanrl_utils does not import it, and does the same without it."""

import importlib.util
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ROOT, curves
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter as PyTorchWriter

from cleanrl_utils import backend, jax_globals
from cleanrl_utils import evaluate as evaluation
from cleanrl_utils.checkpoint import find_tensor, has_nan, is_not_finite
from cleanrl_utils.writer import SummaryWriter

IS_IMPORTED = "import sys; print([name for name in ('torch', 'jax') if name in sys.modules])"
needs_jax = pytest.mark.skipif(not importlib.util.find_spec("flax"), reason="needs the extra jax")


def test_importing_the_tools_of_a_run_imports_neither_pytorch_nor_jax(runner):
    process = runner.start("-c", f"import cleanrl_utils.run; {IS_IMPORTED}")
    assert process.communicate()[0].strip() == "[]"


@needs_jax
def test_script_in_jax_trains_stops_resumes_and_evaluates_without_pytorch(runner, monkeypatch):
    script = ROOT / "cleanrl" / "dqn_jax.py"
    flags = "--no-cuda --total-timesteps 600 --learning-starts 100 --checkpoint-frequency 200 --save-model"
    program = "import runpy, sys; runpy.run_path(sys.argv[0], run_name='__main__');" + IS_IMPORTED
    process = runner.start("-c", f"import sys; sys.argv = {[str(script), *flags.split()]}; {program}")
    said, errors = process.communicate()
    assert said.splitlines()[-1] == "['jax']", errors
    run_dir = next(runner.folder.glob("runs/*"))
    assert backend.load(run_dir / "checkpoint.pt")["torch_random"] is None
    assert json.loads((run_dir / "args.json").read_text())["total_timesteps"] == 600

    runner.run(script, "--resume", run_dir, "--total-timesteps", 800)  # in a process that has imported PyTorch
    logged = curves(run_dir)
    assert [step for step, _ in logged["charts/SPS"]] == list(range(100, 801, 100))
    assert len(logged["eval/episodic_return"]) == 20

    monkeypatch.setenv("JAX_PLATFORMS", "tpu")
    for tool in ("evaluate", "export"):
        process = runner.start("-m", f"cleanrl_utils.{tool}", run_dir)
        said, errors = process.communicate()
        assert process.returncode == 1 and "JAX_PLATFORMS=tpu" in errors, errors
        assert len(errors.strip().splitlines()) == 1, errors


@needs_jax
def test_policy_in_jax_is_evaluated_where_the_flag_says(monkeypatch):
    """Its `load_policy` leaves the device to JAX."""
    import jax

    monkeypatch.setattr(evaluation, "evaluate", lambda *names, **options: jax.config.jax_default_device)
    run = {"seed": 1, "env_id": "CartPole-v1"}, SimpleNamespace(make_envs=None, load_policy=None), None
    assert evaluation.evaluate_run(*run) is None
    assert evaluation.evaluate_run(*run, device="cpu") == jax.devices("cpu")[0]
    monkeypatch.setattr(jax, "devices", lambda platform=None: [] if platform is None else fail(platform))
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    with pytest.raises(OSError, match="^JAX_PLATFORMS=cuda leaves the CPU out: add ,cpu to it$"):
        evaluation.evaluate_run(*run, device="cpu")


def fail(platform):
    raise RuntimeError(f"unknown backend {platform}")


@pytest.fixture
def no_pytorch(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")


def test_file_without_pytorch_is_read_with_and_without_it(tmp_path, monkeypatch):
    value = {"global_step": 3, "rows": np.arange(6.0).reshape(2, 3)}
    with monkeypatch.context() as context:
        context.delitem(sys.modules, "torch")
        with open(tmp_path / "pickle", "wb") as file:
            backend.save(value, file)
    with open(tmp_path / "zip", "wb") as file:
        backend.save(value | {"tensor": torch.ones(2)}, file)
    for name in ("pickle", "zip"):
        loaded = backend.load(tmp_path / name)
        assert loaded["global_step"] == 3 and (loaded["rows"] == value["rows"]).all()
    assert (backend.load(tmp_path / "zip")["tensor"] == 1).all()


def test_arrays_are_written_as_they_are_even_where_pytorch_is_imported(tmp_path):
    rows = np.random.default_rng(1).integers(0, 256, 10**6, dtype=np.uint8)
    with open(tmp_path / "checkpoint.pt", "wb") as file:
        backend.save({"buffer": {"rows": rows}} | backend.random_states(), file)
    assert (tmp_path / "checkpoint.pt").stat().st_size < 1.1 * rows.nbytes
    assert (backend.load(tmp_path / "checkpoint.pt")["buffer"]["rows"] == rows).all()


def test_random_states_of_python_and_numpy_are_set_back_without_pytorch(no_pytorch):
    states = backend.random_states()
    assert states["torch_random"] is None
    before = np.random.rand(3)
    backend.set_random_states(states)
    assert (np.random.rand(3) == before).all()


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
def test_numbers_that_are_not_finite_are_found_in_arrays_and_tensors(kind):
    tree = {"a": [kind([1.0, 2.0]), {"b": kind([[1.0], [np.inf]])}], "steps": kind([1, 2])}
    assert find_tensor("state", tree, has_nan) is None
    assert find_tensor("state", tree, is_not_finite) == "state.a.1.b"
    assert find_tensor("state", [kind([0.0]), kind([np.nan])], has_nan) == "state.1"


def events_of(writer_class, folder):
    """Everything that TensorBoard finds in a folder after a run, a kill and a resumed run."""
    writer = writer_class(str(folder))
    writer.add_text("hyperparameters", "|param|value|\n|-|-|\n|seed|1|", 0)
    for step in (100, 200, 300):
        writer.add_scalar("losses/td_loss", np.float32(step / 7), step)
    writer.close()
    writer = writer_class(str(folder), purge_step=201)
    writer.add_scalar("losses/td_loss", 5, 400)
    writer.flush()
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    text = found.Tensors("hyperparameters/text_summary")[0]
    scalars = [(x.step, x.value) for x in found.Scalars("losses/td_loss")]
    return scalars, text.tensor_proto.string_val[0], found.SummaryMetadata("hyperparameters/text_summary").plugin_data


def test_writer_writes_what_that_of_pytorch_writes(tmp_path, monkeypatch):
    clock = iter(range(10**9, 10**9 + 100))  # a file is named after the second in which it was made
    monkeypatch.setattr("time.time", lambda: next(clock))
    ours, theirs = (events_of(kind, tmp_path / kind.__module__) for kind in (SummaryWriter, PyTorchWriter))
    assert ours[:2] == theirs[:2]
    assert ours[2].plugin_name == theirs[2].plugin_name
    assert [step for step, _ in ours[0]] == [100, 200, 400]  # what came after the checkpoint is gone


@needs_jax
@pytest.mark.parametrize(
    "name, flags",
    [
        ("dqn_jax", ["--total-timesteps", "200", "--learning-starts", "100"]),
        ("ppo_jax", ["--total-timesteps", "1024", "--num-seeds", "2", "--log-frequency", "1"]),
    ],
)
@pytest.mark.parametrize(
    "edit, message",
    [
        ("args.gamma = 0.9", "args.gamma cannot change once the training has begun: JAX reads"),
        ("optimizer = optax.sgd(1e-3)", "`optimizer` has changed, and `"),
    ],
)
def test_an_edit_in_the_loop_of_a_script_in_jax_that_would_have_no_effect_stops_it(runner, name, flags, edit, message):
    """Compiled functions would not see the change, and nobody would know."""
    text = (ROOT / "cleanrl" / f"{name}.py").read_text()
    end = text.index("        # Checkpoint: ")
    edited = runner.folder / f"{name}.py"
    edited.write_text(text[:end] + f"        {edit}\n" + text[end:])
    result = runner.run(edited, "--no-cuda", *flags, check=False)
    assert result.returncode == 1
    assert message in result.stderr


@needs_jax
def test_variables_that_compiled_functions_read_are_found_through_functions_methods_and_objects():
    script = """
import jax
from functools import partial
RATE, STEPS, SCALE, OTHER, LIMIT = 0.5, [3], 2.0, 1.0, 4.0

def helper(x):
    return [x * RATE for _ in range(STEPS[0])][-1]

class Network:
    @property
    def scale(self):
        return SCALE
    def __call__(self, x):
        return x * self.scale

network = Network()

@partial(jax.jit, donate_argnums=0)
def update(x):
    def inner(y):
        return min(y, LIMIT)
    return inner(helper(network(x)))

def not_compiled():
    return OTHER
"""
    variables = {"__name__": "a_script"}
    exec(compile(script, "a_script.py", "exec"), variables)
    jax_globals.watch(variables)
    assert set(jax_globals.read) == {"helper", "RATE", "STEPS", "network", "SCALE", "LIMIT"}
    variables["OTHER"] = 2.0  # what no compiled function reads may change
    jax_globals.check()
    variables["SCALE"] = 3.0
    with pytest.raises(RuntimeError, match="`SCALE` has changed, and `update` does not know it"):
        jax_globals.check()
    jax_globals.watch({})


@needs_jax
@pytest.mark.parametrize("env_id", ["Breakout-v5", "BreakoutNoFrameskip-v4"])
def test_args_that_a_script_reads_are_those_that_are_frozen(env_id, monkeypatch):
    """Also if the name of a game is changed to the file's own spelling, which makes a copy of them."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    from cleanrl import ppo_atari_envpool_xla_jax
    from cleanrl_utils import run

    args, _ = run.prepare(ppo_atari_envpool_xla_jax.Args(env_id=env_id), ppo_atari_envpool_xla_jax.__file__)
    assert args is run.prepared_args
