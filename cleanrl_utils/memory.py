"""Where a replay buffer has room: on the GPU, else in the memory of the machine, else nowhere."""

import os
from pathlib import Path
from typing import Any

import torch

GPU_SHARE = 0.8  # of the memory free on the GPU; the rest is for networks, graphs and libraries


def fit(buffer_class: type, size: int, widths: tuple[int, ...], device: torch.device) -> Any:
    """The replay buffer, on `device` if it fits there, else on the CPU; an error that says so if it will not fit."""
    small, large = (num_bytes(buffer_class(rows, widths, torch.device("cpu"))) for rows in (1000, 2000))
    row = (large - small) / 1000
    need = small + (size - 1000) * row
    if device.type == "cuda":
        if need < GPU_SHARE * torch.cuda.mem_get_info(device)[0]:
            return buffer_class(size, widths, device)
        print(f"the replay buffer ({need / 1e9:.1f} GB) does not fit on the GPU: it is kept in the machine's memory")
    free = free_memory()
    if need > free:
        raise ValueError(
            f"--buffer-size {size} takes {need / 1e9:.1f} GB, {free / 1e9:.1f} GB of memory are free; "
            f"at most {max(int(1000 + (free - small) / row), 0)} fit"
        )
    return buffer_class(size, widths, torch.device("cpu"))


def num_bytes(buffer: Any) -> int:
    return sum(x.nbytes for x in vars(buffer).values() if isinstance(x, torch.Tensor))


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
