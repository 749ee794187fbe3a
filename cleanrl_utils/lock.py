"""One process to a run folder: a second one would overwrite checkpoints and mix up the curves.

The lock belongs to the open file `RUN_DIR/.lock`. When its process ends, however that happens, the kernel releases it.
"""

import atexit
import os
import sys
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None

held: dict[str, IO[str]] = {}  # the locks of this process, by folder


def lock(run_dir: str | Path) -> None:
    """Take the lock of a run folder, or end the program with one line if another process has it."""
    folder = os.path.realpath(run_dir)
    path = Path(folder, ".lock")
    if fcntl is None or folder in held:
        return
    while True:
        file = open(path, "a+")  # noqa: SIM115 (it stays open for as long as the run goes on)
        if not take(file):
            file.seek(0)
            sys.exit(f"{run_dir}: another process trains in this folder ({file.read().strip() or 'just started'})")
        if is_current(path, file):
            break
        file.close()  # its last owner has just deleted it
    file.truncate(0)
    file.write(f"process {os.getpid()} on {os.uname().nodename}\n")
    file.flush()
    held[folder] = file


def take(file: IO[str]) -> bool:
    """Lock an open file, unless another process has locked it. On a file system without locks, nobody has."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def is_current(path: Path, file: IO[str]) -> bool:
    """Whether the open file is still the one that its path leads to."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def forget() -> None:
    """In a fork of this process: the lock is not its own, and must not outlive the process that has it."""
    for file in held.values():
        file.close()
    held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forget)


@atexit.register
def unlock_all() -> None:
    for folder in list(held):
        unlock(folder)


def unlock(run_dir: str | Path) -> None:
    """Release the lock; the file goes first, while nobody else can have it."""
    file = held.pop(os.path.realpath(run_dir), None)
    if file:
        Path(run_dir, ".lock").unlink(missing_ok=True)
        file.close()
