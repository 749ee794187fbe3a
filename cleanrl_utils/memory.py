"""Where a replay buffer has room: on the GPU, else in the memory of the machine, else nowhere."""

import inspect
import math
import os
import sys
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
    row_of_arrays = (array_bytes(large) - array_bytes(small)) / trial
    row_of_tensors = (tensor_bytes(large) - tensor_bytes(small)) / trial
    arrays = array_bytes(small) + (size - trial) * row_of_arrays
    tensors = tensor_bytes(small) + (size - trial) * row_of_tensors
    need, row = arrays + tensors, row_of_arrays + row_of_tensors
    if takes_device and device.type == "cuda":
        if tensors <= GPU_SHARE * backend.pytorch().cuda.mem_get_info(device)[0]:
            need, row = arrays, row_of_arrays
        else:
            print(
                f"the replay buffer ({tensors / 1e9:.1f} GB) does not fit on the GPU: it stays in the machine's memory"
            )
            device = cpu
    promised = array_bytes(beside) + tensor_bytes(beside) if beside else 0
    free = free_memory() - promised
    if need > free:
        most = max(size - math.ceil((need - free) / row), 0)
        left = f" beside the {promised / 1e9:.1f} GB of another replay buffer" if beside else ""
        sys.exit(
            f"{flag} {size} takes {need / 1e9:.1f} GB, {max(free, 0) / 1e9:.1f} GB of memory are free{left}; "
            f"at most {most} fit"
        )
    return make(size, device)


def array_bytes(buffer: Any) -> int:
    return sum(x.nbytes for x in vars(buffer).values() if isinstance(x, np.ndarray))


def tensor_bytes(buffer: Any) -> int:
    """Of the tensors in the memory of the machine."""
    return sum(x.nbytes for x in vars(buffer).values() if is_tensor(x) and not x.is_cuda)


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
