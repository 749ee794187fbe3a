"""What a run says when it ends before its time: one line that says why and how to go on, a traceback only for bugs."""

import errno
import io
import os
import re
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from safetensors import SafetensorError

from cleanrl_utils import stop
from cleanrl_utils.checkpoint import saved_step
from cleanrl_utils.commands import resume_command
from cleanrl_utils.lock import unlock

FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


def install(run_dir: str, script: str) -> None:
    """Explain from now on what ends the run."""
    sys.excepthook = explain(run_dir, script)
    threading.excepthook = explain_thread


def uninstall() -> None:
    """The run is over: what goes wrong from now on, in `python -i`, is not the run."""
    sys.excepthook = sys.__excepthook__
    threading.excepthook = threading.__excepthook__


def hide_ctrl_c() -> None:
    """Before the run has begun, Ctrl+C needs no explanation."""

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            sys.__excepthook__(kind, error, traceback)

    sys.excepthook = hook


def disk_is_full(error: BaseException | None) -> bool:
    """Also where safetensors, which is written in Rust, says so in words of its own."""
    if isinstance(error, SafetensorError):
        number = re.search(r"os error (\d+)", str(error))
        return number is not None and int(number[1]) in FULL
    return isinstance(error, OSError) and error.errno in FULL


def explain_thread(crash: threading.ExceptHookArgs) -> None:
    """Leave a full disk to the main thread, where TensorBoard's writer raises it again."""
    if not disk_is_full(crash.exc_value):
        threading.__excepthook__(crash)


def explain(run_dir: str, script: str) -> Callable:
    """An exception hook: no traceback for Ctrl+C, a full disk or a diverged run, and always how to go on."""

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        sys.excepthook = sys.__excepthook__  # what goes wrong later, in `python -i`, is not the run
        stop.uninstall()
        unlock(run_dir)
        if stop.ended:  # it has said everything already
            return
        if kind is KeyboardInterrupt:
            reason = "interrupted"
        elif disk_is_full(error) or kind is FloatingPointError:
            reason = " ".join(str(error).split())
        else:
            reason = kind.__name__
            sys.__excepthook__(kind, error, traceback)
        if Path(run_dir, "checkpoint.pt").exists():
            step = saved_step(run_dir)
            how = f"the last checkpoint is of step {step}: {resume_command(run_dir, script)}"
        else:
            how = "there was no checkpoint yet"
        print(f"\nstopped: {reason}; {how}", file=sys.stderr)

    return hook


class ForgivingPipe:
    """An output stream that falls silent when nobody reads it any more: `python ppo.py | head -1` trains to its end."""

    def __init__(self, stream: io.TextIOWrapper):
        self.stream = stream

    def write(self, text: str) -> int:
        try:
            return self.stream.write(text)
        except BrokenPipeError:
            self.fall_silent()
            return len(text)

    def flush(self) -> None:
        try:
            self.stream.flush()
        except BrokenPipeError:
            self.fall_silent()

    def fall_silent(self) -> None:
        """Whatever is written from now on, and what waits in the buffer, goes nowhere."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def forgive_closed_pipes() -> None:
    """Let no reader that goes away end the training. Lines are sent when they are whole, not when a buffer is full."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and is_pipe(stream):
            stream.reconfigure(line_buffering=True)
            setattr(sys, name, ForgivingPipe(stream))


def is_pipe(stream: io.TextIOWrapper) -> bool:
    try:
        mode = os.fstat(stream.fileno()).st_mode
    except (OSError, ValueError):  # no file at all
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
