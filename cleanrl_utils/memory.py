"""Where a replay buffer has room: on the GPU, else in the memory of the machine, else nowhere."""

import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cleanrl_utils import backend
from cleanrl_utils.backend import is_tensor

GPU_SHARE = 0.8  # of the memory free on the GPU; the rest is for networks, graphs and libraries


def place_buffer(
    buffer_class: type,
    size: int,
    *arguments: Any,
    device: Any = None,
    flag: str = "--buffer-size",
    beside: Any = None,
    trial: int = 1000,
) -> Any:
    """The replay buffer `buffer_class(size, *arguments, device)`; if its tensors do not fit there, on the CPU.

    The device is given by its name or as the last argument; a class that takes none stays in the machine's memory. If
    the buffer fits nowhere, the program ends with a line that says what would fit; `flag` sets the size.
    `beside` is a buffer that the script made before: it will fill memory of the machine that still counts as free. Two
    small ones, of `trial` and twice as many rows, tell how large a row is.
    """
    shape = arguments
    takes_device = "device" in inspect.signature(buffer_class).parameters
    cpu = backend.pytorch().device("cpu") if takes_device else None
    if takes_device and device is None:
        shape, device = arguments[:-1], arguments[-1]

    def make(rows: int, device: Any) -> Any:
        return buffer_class(rows, *shape, device) if takes_device else buffer_class(rows, *shape)

    small, large = make(trial, cpu), make(2 * trial, cpu)

    def estimate(rows: int, counts: Callable) -> float:
        """The bytes of a buffer of so many rows, in the values that count."""
        row = (num_bytes(large, counts) - num_bytes(small, counts)) / trial
        return num_bytes(small, counts) + (rows - trial) * row

    on_gpu = takes_device and device.type == "cuda"
    on_device = estimate(size, is_tensor)
    if on_gpu and on_device > GPU_SHARE * backend.pytorch().cuda.mem_get_info(device)[0]:
        print(f"the replay buffer ({on_device / 1e9:.1f} GB) does not fit on the GPU: it stays in the machine's memory")
        device, on_gpu = cpu, False
    in_machine = is_array if on_gpu else is_array_or_tensor
    promised = num_bytes(beside, is_in_machine) if beside else 0
    need, free = estimate(size, in_machine), free_memory() - promised
    if need > free:
        row = estimate(1, in_machine) - estimate(0, in_machine)
        most = max(int((free - estimate(0, in_machine)) / row), 0)
        left = f" beside the {promised / 1e9:.1f} GB of another replay buffer" if beside else ""
        sys.exit(
            f"{flag} {size} takes {need / 1e9:.1f} GB, {max(free, 0) / 1e9:.1f} GB of memory are free{left}; "
            f"at most {most} fit"
        )
    return make(size, device)


def num_bytes(buffer: Any, counts: Callable) -> int:
    return sum(x.nbytes for x in vars(buffer).values() if counts(x))


def is_array(x: Any) -> bool:
    return isinstance(x, np.ndarray)


def is_array_or_tensor(x: Any) -> bool:
    return is_array(x) or is_tensor(x)


def is_in_machine(x: Any) -> bool:
    return is_array(x) or (is_tensor(x) and not x.is_cuda)


def free_memory() -> float:
    """Bytes that this process can still get from the machine and, in a container, from its limit."""
    amounts = [float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))]
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        lines = dict(line.split(":") for line in meminfo.read_text().splitlines())
        amounts.append(1024.0 * int(lines["MemAvailable"].split()[0]))
    group = Path("/sys/fs/cgroup")
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        if (group / limit).exists() and (group / limit).read_text().strip() != "max":
            cached = inactive_files(group / limit)
            amounts.append(int((group / limit).read_text()) - int((group / used).read_text()) + cached)
    return min(amounts)


def inactive_files(limit: Path) -> int:
    """Bytes counted as used that the kernel gives back when they are needed: files read before."""
    statistics = dict(line.split() for line in limit.with_name("memory.stat").read_text().splitlines())
    return int(statistics.get("total_inactive_file", statistics.get("inactive_file", 0)))
