"""How the user calls the programs of this environment from the shell."""

import os
import shutil
import sys
from pathlib import Path


def tool(name: str) -> str:
    """A program by its name only if the environment is active, else by its path."""
    path = Path(sys.executable).with_name(name)
    if shutil.which(name) == str(path) or not path.exists():
        return name
    return os.path.relpath(path)


def resume_command(run_dir: str | Path, script: str) -> str:
    """The command that continues the run in a folder."""
    program = tool("python")
    world_size = os.environ.get("WORLD_SIZE")
    if world_size:  # this process was started by torchrun
        program = f"{tool('torchrun')} --standalone --nproc_per_node={world_size}"
    return f"{program} {os.path.relpath(script)} --resume {run_dir}"
