"""Checkpoints: all that a resumed run needs, in `RUN_DIR/checkpoint.pt`.

A checkpoint holds the `state` of the script under the names that it has there, the arguments, and the states of the
random generators. It is written aside and renamed into place, so that a kill at any moment leaves the last good one.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cleanrl_utils import backend, jax_globals, jax_trees, provenance, ranks, stop
from cleanrl_utils.backend import is_tensor
from cleanrl_utils.commands import resume_command
from cleanrl_utils.files import replacing
from cleanrl_utils.lock import unlock
from cleanrl_utils.snapshot import take_snapshot

MINUTES = 10  # at most so much work is lost when a run is killed
LARGE_SECONDS = 0.5  # checkpoints that take longer are not saved at every multiple of --checkpoint-frequency
OURS = {"script", "args", *backend.RANDOM_STATES}  # what is not the script's state
last_saved = time.monotonic()
save_seconds = 0.0  # what the last checkpoint took


# When


def start_clock(seconds: float = 0.0) -> None:
    """The ten minutes until the next checkpoint begin now, after one that took `seconds`."""
    global last_saved, save_seconds
    last_saved = time.monotonic()
    save_seconds = seconds


def checkpoint_due(args: Any, global_step: int, steps: int) -> bool:
    """Whether to save now, after the last `steps` steps.

    That is if they crossed a multiple of --checkpoint-frequency or ended the run, if ten minutes have passed since the
    last checkpoint, or if the run was asked to stop. With a frequency of 0, only the latter counts. Multiples that come
    too soon after a large checkpoint are passed over, so that a fast run with a large state spends at most a tenth of
    its time on saving: thousands of robots take 100,000 steps in a tenth of a second.
    """
    if global_step % 100 < steps:  # often enough: the check takes time, and a small step is short
        jax_globals.check()
    seconds = time.monotonic() - last_saved
    is_late = seconds > 60 * MINUTES
    is_too_soon = save_seconds > LARGE_SECONDS and seconds < 9 * save_seconds
    if ranks.are_connected():
        stop.install()  # `start` has done this already, but not in every process
        stop.requested, is_late, is_too_soon = ranks.largest([stop.requested, is_late, is_too_soon])
    if stop.requested:
        return True
    frequency = args.checkpoint_frequency
    if frequency == 0:
        return False
    is_last = global_step + steps > args.total_timesteps
    is_multiple = global_step % frequency < steps
    return bool(is_late or is_last or (is_multiple and not is_too_soon))


# Save


def save_checkpoint(run_dir: str, args: Any, script: str, writer: Any, state: dict) -> None:
    """Save the state whole. If the run was asked to stop, it ends here.

    With several processes all of them call this, as all of them end here; the first one alone writes.
    """
    if not ranks.is_first():
        if stop.requested:
            sys.exit()  # with success: torchrun then leaves the first process the time to save
        start_clock()
        return
    save_checkpoints([run_dir], [args], script, [writer], [state])


def save_checkpoints(run_dirs: list[str], run_args: list, script: str, writers: list, states: list[dict]) -> None:
    """Save the runs of the seeds that one program trains side by side. If it was asked to stop, it ends here."""
    start_time = time.monotonic()
    for run_dir, args, writer, state in zip(run_dirs, run_args, writers, states, strict=True):
        save_state(run_dir, args, script, writer, state)
    start_clock(time.monotonic() - start_time)
    if stop.requested:
        for run_dir in run_dirs:
            unlock(run_dir)
        command = resume_command(run_dirs[0], script)
        if len(run_dirs) > 1:
            command += f" --num-seeds {len(run_dirs)}"
        step = states[0]["global_step"]
        stop.end(f"stopped by {stop.NAMES[stop.requested]}: step {step} is saved. Go on with: {command}")


def save_state(run_dir: str, args: Any, script: str, writer: Any, state: dict) -> None:
    global_step = state["global_step"]
    saved = {name: saved_form(name, value) for name, value in state.items()}
    broken = find_broken(state, saved)
    if broken:
        raise FloatingPointError(f"{broken} is not finite at global_step={global_step}")
    saved["script"] = Path(script).name
    saved["args"] = vars(args) | {"resume": None}
    saved |= backend.random_states()
    writer.flush()  # the curve up to here is on disk before the checkpoint that continues it
    with replacing(Path(run_dir, "checkpoint.pt"), "wb", durable=True) as file:
        backend.save(saved, file)
        # Before the checkpoint is in place: if the run is killed in between, the model only seems too old
        provenance.note_step(run_dir, global_step)


def saved_form(name: str, value: Any) -> Any:
    """What a checkpoint holds of a value in the state."""
    if name == "envs":
        return take_snapshot(value)
    if jax_trees.is_tree(value):
        return jax_trees.to_numpy(value)
    if hasattr(value, "state_dict"):
        value = value.state_dict()
    return compact(value)


def compact(value: Any) -> Any:
    """The value without the rest of the memory that its tensors are views of, which would be saved as well."""
    if is_tensor(value):
        is_view = value.untyped_storage().nbytes() > value.nbytes
        return value.clone() if is_view else value
    if type(value) is dict:
        return {key: compact(x) for key, x in value.items()}
    if type(value) in (list, tuple):
        return type(value)(compact(x) for x in value)
    return value


def find_broken(state: dict, saved: dict) -> str | None:
    """The name of a tensor that must not be in a checkpoint, since no training goes on from it.

    Parameters and what an optimizer knows are finite. Other tensors may be infinite, such as a mask, but never NaN.
    """
    torch = backend.pytorch()
    for name, value in state.items():
        if torch and isinstance(value, torch.nn.Module):
            broken = find_tensor(name, dict(value.named_parameters()), is_not_finite)
            broken = broken or find_tensor(name, dict(value.named_buffers()), has_nan)
        elif torch and isinstance(value, torch.optim.Optimizer):
            broken = find_tensor(name, saved[name]["state"], is_not_finite)
        elif jax_trees.is_tree(value):
            broken = find_tensor(name, saved[name], is_not_finite)
        elif name != "envs":
            broken = find_tensor(name, saved[name], has_nan)
        else:
            broken = None
        if broken:
            return broken
    return None


def is_not_finite(x: Any) -> bool:
    return not (x.isfinite() if is_tensor(x) else np.isfinite(x)).all()


def has_nan(x: Any) -> bool:
    return bool((x.isnan() if is_tensor(x) else np.isnan(x)).any())


def find_tensor(name: str, value: Any, is_broken: Callable) -> str | None:
    """The name of the first tensor or array of floating point numbers for which `is_broken` holds."""
    is_array = isinstance(value, np.ndarray) and np.issubdtype(value.dtype, np.floating)
    if is_array or (is_tensor(value) and value.is_floating_point()):
        numbers = value.reshape(-1)
        starts = range(0, len(numbers), 10_000_000)  # in parts, as a replay buffer is large
        return name if any(is_broken(numbers[start : start + 10_000_000]) for start in starts) else None
    if isinstance(value, list | tuple):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        for key, x in value.items():
            broken = find_tensor(f"{name}.{key}", x, is_broken)
            if broken:
                return broken
    return None


# How far


def last_step(run_dir: str | Path) -> int | None:
    """How far the training of a run is known to have got: the global_step of its last checkpoint, or of its end.

    A model whose metadata says a smaller `global_step` is older than its run. Before its first checkpoint a run is at
    step 0, or at the step from which it was resumed. None for a run from before steps were noted. Only JSON is read,
    nothing is executed.
    """
    step = provenance.read(run_dir).get("global_step")
    return step if isinstance(step, int) else None


def saved_step(run_dir: str | Path) -> int:
    """The step of the checkpoint itself, without reading the rest of it; it is a pickle, see `restore.load`."""
    return backend.load(Path(run_dir, "checkpoint.pt"))["global_step"]
