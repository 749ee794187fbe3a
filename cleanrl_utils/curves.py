"""Curves at less cost, and in the right order: events reach TensorBoard's writer in batches."""

import atexit
import contextlib
import os
import socket
import time
from pathlib import Path
from typing import Any

INTERVAL = 1.0  # seconds between two batches of events


def event_file(writer: Any) -> Any:
    """What a writer, PyTorch's or that of writer.py, adds its events to."""
    return writer.file if hasattr(writer, "file") else writer.file_writer.event_writer


def wait_for_the_last_name(run_dir: str) -> None:
    """Let a run that is resumed within a second of its last start wait for the next second, if need be.

    The name of an event file has the second, the host and the process, and TensorBoard reads the files of a run in the
    order of their names: process 1000 before process 999 of the same second.
    """
    newest = max((path.name for path in Path(run_dir).glob("events.out.tfevents.*")), default="")
    end = time.time() + 1  # not longer: the clock may have been set back
    while time.time() < end:
        if f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}." > newest:
            return
        time.sleep(0.02)


def write_in_batches(writer: Any) -> None:
    """From now on, hand events over to TensorBoard's thread once a second, those of the same step as one.

    To wake that thread for every single event costs a training as much time as all else about logging. Every event also
    has a checksum, which TensorBoard computes in Python.
    """
    file = event_file(writer)
    add_event, flush, close = file.add_event, file.flush, file.close
    held = []
    next_batch = 0.0

    def hand_over() -> None:
        events = held.copy()
        held.clear()
        for event in events:
            add_event(event)

    def hold(event: Any) -> None:
        nonlocal next_batch
        if held and held[-1].step == event.step and held[-1].HasField("summary") and event.HasField("summary"):
            held[-1].summary.MergeFrom(event.summary)
        else:
            held.append(event)
        if time.monotonic() >= next_batch:
            next_batch = time.monotonic() + INTERVAL
            hand_over()

    def flush_all() -> None:
        hand_over()
        flush()

    def close_all() -> None:
        atexit.unregister(flush_at_exit)
        hand_over()
        close()

    def flush_at_exit() -> None:
        with contextlib.suppress(OSError):  # a full disk has been told of by now
            flush_all()

    file.add_event, file.flush, file.close = hold, flush_all, close_all
    # A run that ends with an error keeps the end of its curves. TensorBoard's thread does not outlive the program, so
    # we wait until it has written everything.
    atexit.register(flush_at_exit)
