"""Where a run comes from: commit, versions, hardware and tags, as `RUN_DIR/provenance.json`."""

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

PACKAGES = ("torch", "jax", "gymnasium", "numpy", "envpool", "ale-py", "mujoco")


def git(*command: str, cwd: Path | None = None) -> str:
    """The output of a git command, empty where there is no git or no repository."""
    try:
        return subprocess.run(["git", *command], capture_output=True, text=True, cwd=cwd).stdout.strip()
    except OSError:
        return ""


def hardware() -> str:
    """The machine in a few words."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        cpu = platform.processor() or platform.machine()
    parts = [f"{cpu}, {os.cpu_count()} cores"]
    import torch

    if torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name(0))
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
