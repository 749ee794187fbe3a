"""Where a run comes from, as `RUN_DIR/provenance.json`.

`commit`, `versions`, `hardware` and `tags` are those of the last session, i.e. of the last process that trained.
`sessions` tells of each one from which step on it trained and with what: the first with all of its arguments, the later
ones, which were resumed, with those that changed. `global_step` is how far the run has got.
"""

import hashlib
import importlib.metadata
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

from cleanrl_utils import backend
from cleanrl_utils.files import read_json, write_json
from cleanrl_utils.git import git

TIME = "%Y-%m-%dT%H:%M:%SZ"  # in UTC; as texts, such times are in order
PACKAGES = ("torch", "jax", "gymnasium", "numpy", "envpool", "ale-py", "mujoco")


def hardware() -> str:
    """The machine in a few words, with the cores that this process may use: JAX may round by their number."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        cpu = platform.processor() or platform.machine()
    cores = os.cpu_count()
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    parts = [f"{cpu}, {cores} cores" if usable == cores else f"{cpu}, {usable} of {cores} cores"]
    gpu = backend.gpu_name()
    if gpu:
        parts.append(gpu)
    return ", ".join(parts)


def versions() -> str:
    """Versions of what can change a result."""
    found = [f"python {platform.python_version()}"]
    for package in PACKAGES:
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            pass
    return ", ".join(found)


def provenance(script: str | Path) -> dict:
    """Of a run of `script` on this machine, now; its tags are those for Weights & Biases (WANDB_TAGS)."""
    return {
        "commit": git("describe", "--always", "--dirty", "--exclude=*", cwd=Path(script).resolve().parent),
        "versions": versions(),
        "hardware": hardware(),
        "tags": [tag for tag in os.environ.get("WANDB_TAGS", "").split(",") if tag],
    }


def read(run_dir: str | Path) -> dict:
    """The provenance of a run; empty where there is none, or where it is damaged."""
    return read_json(Path(run_dir, "provenance.json"))


def write(run_dir: str | Path, facts: dict) -> None:
    write_json(Path(run_dir, "provenance.json"), facts)


def add_session(run_dir: str | Path, script: str | Path, args: Any, global_step: int) -> None:
    """Note that training goes on from `global_step` with `args`."""
    facts = read(run_dir)
    # A session that began at this step or later was killed before its first checkpoint: nothing of it is left
    sessions = [session for session in facts.get("sessions", []) if session.get("from_step", 0) < global_step]
    trained_with: dict = {}
    for session in sessions:
        trained_with |= session["args"]
    now = provenance(script)
    sessions.append(
        {
            "from_step": global_step,
            "started": time.strftime(TIME, time.gmtime()),
            "args": changed_args(trained_with, args),
            "script": hashlib.sha256(Path(script).read_bytes()).hexdigest()[:16],
            "commit": now["commit"],
            "versions": now["versions"],
            "hardware": now["hardware"],
        }
    )
    write(run_dir, now | {"global_step": global_step, "sessions": sessions})


def changed_args(before: dict, args: Any) -> dict:
    """The arguments that differ from those before, which is all of them if there were none."""
    values = json.loads(json.dumps(vars(args)))  # as they will be read again: a tuple is a list there
    values.pop("resume", None)  # it says how the session was started, not how it trained
    return {name: value for name, value in values.items() if name not in before or before[name] != value}


def note_step(run_dir: str | Path, global_step: int) -> None:
    """Note how far the run has got."""
    write(run_dir, read(run_dir) | {"global_step": global_step})
