"""Ctrl+C and SIGTERM ask a run to save its state and to stop; a second Ctrl+C stops it at once.

A signal can come at any moment, in the middle of an update even. So its handler only notes it, and the run stops where
its state is whole: at its next checkpoint, which comes right then.
"""

import os
import signal
import sys
import threading
import time
from types import FrameType

from cleanrl_utils import ranks

NAMES = {signal.SIGINT: "Ctrl+C", signal.SIGTERM: "SIGTERM"}
HANGUP = getattr(signal, "SIGHUP", None)  # Windows has no such signal
if HANGUP:
    NAMES[HANGUP] = "a closed terminal"

requested: int = 0  # the signal that asked the run to stop; 0: none has
ended = False  # the run has stopped as it was asked to, and has said so
first_ctrl_c: float | None = None
handlers: dict[int, object] = {}  # those that were there before ours


def install() -> None:
    """From now on, signals ask the run to stop. Only the main thread of a program can receive them."""
    global requested, ended, first_ctrl_c
    if handlers or threading.current_thread() is not threading.main_thread():
        return
    requested, ended, first_ctrl_c = 0, False, None
    for number in NAMES:
        if number == HANGUP and signal.getsignal(number) == signal.SIG_IGN:
            continue  # started with nohup: a closed terminal does not matter
        handlers[number] = signal.signal(number, request)


def stop_at_once(line: str) -> None:
    """From now on there is nothing more to save: a signal ends the program at once, with a line.

    So does one that has come in the meantime.
    """
    if not handlers:  # we are not in the main thread
        return

    def handler(number: int, frame: FrameType | None) -> None:
        global requested
        requested = number
        if number == HANGUP:
            silence()
        end(f"stopped by {NAMES[number]}: {line}")

    for number in handlers:
        signal.signal(number, handler)
    if requested:
        handler(requested, None)


def uninstall() -> None:
    """Signals do again what they did before."""
    for number, handler in handlers.items():
        signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: a handler that is not Python's
    handlers.clear()


def request(number: int, frame: FrameType | None) -> None:
    """The signal handler. It writes without Python's buffers, one of which may be in use right now."""
    global requested, first_ctrl_c
    if number == signal.SIGINT:
        if first_ctrl_c is not None and not is_repeated_by_torchrun():
            uninstall()
            raise KeyboardInterrupt
        first_ctrl_c = first_ctrl_c or time.monotonic()
    if number == HANGUP:
        silence()
    if not requested:
        requested = number
        if ranks.is_first():
            say(f"{NAMES[number]}: the run saves its state and stops (a second Ctrl+C stops it at once)")


def is_repeated_by_torchrun() -> bool:
    """In a terminal, Ctrl+C reaches each process, and then torchrun hands it on to them once more."""
    return "TORCHELASTIC_RUN_ID" in os.environ and time.monotonic() - first_ctrl_c < 1


def say(line: str) -> None:
    try:
        stream = sys.__stderr__.fileno()
        start = "\n" if os.isatty(stream) else ""  # below the progress bar
        os.write(stream, f"{start}{line}\n".encode())
    except (OSError, ValueError, AttributeError):  # nobody listens any more
        pass


def silence() -> None:
    """What is printed from now on goes nowhere: the terminal has been closed."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)


def end(line: str) -> None:
    """Stop the run that was asked to: with KeyboardInterrupt after Ctrl+C, so that `python -i` keeps all variables."""
    global ended
    uninstall()
    ended = True
    if line:
        say(line)
    if requested == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + requested)
