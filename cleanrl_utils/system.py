"""Processes and their machine: how they end together, and what they use, where Linux and NVIDIA are there to tell."""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

GPU_QUERY = ["nvidia-smi", "--query-gpu=utilization.gpu,memory.used,memory.total", "--format=csv,noheader,nounits"]


LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent() -> None:
    """Called in a new process: Linux kills it when its parent is gone, even if that was killed itself."""
    if LIBC:
        LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):  # macOS says the latter of a group of zombies
        pass


def group_usage(group: int) -> tuple[float, int]:
    """The seconds of CPU that the processes of a group have used so far, and the bytes of memory that they hold."""
    ticks, num_bytes = 0, 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()  # after the name, which may hold anything
        except OSError:  # it has just ended
            continue
        if int(fields[2]) == group:
            ticks += int(fields[11]) + int(fields[12])
            num_bytes += int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    return ticks / os.sysconf("SC_CLK_TCK"), num_bytes


class Machine:
    """The load of this machine in words, looked at every few seconds."""

    def __init__(self, interval: float = 5.0):
        self.interval, self.next_look, self.words = interval, time.monotonic() + 1, ""
        self.idle, self.total = cpu_times()

    def __str__(self) -> str:
        if time.monotonic() >= self.next_look:
            self.next_look = time.monotonic() + self.interval
            self.words = ", ".join([*self.cpu_and_memory(), *gpus()])
        return self.words

    def cpu_and_memory(self) -> list[str]:
        before = self.idle, self.total
        self.idle, self.total = cpu_times()
        try:
            lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        except OSError:
            return []
        total, free = (int(lines[name].split()[0]) / 1e6 for name in ("MemTotal", "MemAvailable"))
        busy = 1 - (self.idle - before[0]) / max(1, self.total - before[1])
        return [f"CPU {busy:.0%}", f"memory {total - free:.1f} of {total:.1f} GB"]


def cpu_times() -> tuple[int, int]:
    """The time that all CPUs together were idle, and all time."""
    try:
        times = [int(x) for x in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        return times[3] + times[4], sum(times)
    except OSError:
        return 0, 0


def gpus() -> list[str]:
    """The load of each GPU in words."""
    if not shutil.which("nvidia-smi"):
        return []
    try:
        output = subprocess.run(GPU_QUERY, capture_output=True, text=True, timeout=5).stdout
        rows = [[float(x) for x in line.split(",")] for line in output.splitlines()]
    except (OSError, ValueError, subprocess.TimeoutExpired):  # no driver, or a GPU that does not tell
        return []
    words = [f"{load:.0f}%, {used / 1024:.1f} of {total / 1024:.1f} GB" for load, used, total in rows]
    return [f"GPU {number} {load}" for number, load in enumerate(words)]
