"""Where a replay buffer is put: on the GPU, in the machine's memory, or nowhere; the error then says what would fit."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ROOT
from test_ppo_atari import assert_one_clear_line, needs_atari

from cleanrl import dqn, dqn_atari
from cleanrl_utils import memory

VECTORS, PIXELS = (4, 1), (4, 1)  # what dqn.py gives for CartPole, and dqn_atari.py for a stack of 4 frames
CUDA, CPU = torch.device("cuda"), torch.device("cpu")


class Buffer:
    """A kilobyte a row. It remembers its device, but is never there: tests run without a GPU."""

    def __init__(self, size, obs_dim, action_dim, device):
        self.device, self.rows = device, torch.zeros((size, 256), device="meta")


@pytest.fixture
def machine(monkeypatch):
    """Sets what is free, in bytes."""

    def set_free(free: float, on_gpu: float = 0) -> None:
        monkeypatch.setattr(memory, "free_memory", lambda: free)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (on_gpu, 10**12))

    return set_free


# Which memory


def test_buffer_is_on_the_gpu_if_there_is_room(machine, capsys):
    machine(free=0, on_gpu=1024 * 1000 / memory.GPU_SHARE + 5000)
    assert memory.place_buffer(Buffer, 1000, *VECTORS, CUDA).device == CUDA
    assert capsys.readouterr().out == ""


def test_buffer_that_leaves_the_gpu_too_little_is_kept_in_the_memory_of_the_machine(machine, capsys):
    machine(free=1024 * 1000, on_gpu=1024 * 1100)  # it would fit, but networks and graphs need room as well
    assert memory.place_buffer(Buffer, 1000, *VECTORS, CUDA).device == CPU
    out = capsys.readouterr().out
    assert "(0.0 GB) does not fit on the GPU" in out and len(out.splitlines()) == 1


def test_buffer_that_fits_nowhere_is_an_error_on_a_machine_with_a_gpu_as_well(machine):
    machine(free=1024 * 500, on_gpu=1024 * 500)
    with pytest.raises(SystemExit, match="--buffer-size 1000 takes 0.0 GB.*at most 500 fit"):
        memory.place_buffer(Buffer, 1000, *VECTORS, CUDA)


def test_memory_of_the_gpu_does_not_matter_without_one(machine):
    machine(free=1024 * 1000, on_gpu=10**12)
    assert memory.place_buffer(Buffer, 1000, *VECTORS, CPU).device == CPU
    with pytest.raises(SystemExit, match="at most 1000 fit"):
        memory.place_buffer(Buffer, 1001, *VECTORS, CPU)


class HalfBuffer(Buffer):
    """Its rows are an array in the memory of the machine, half as large as its tensor."""

    def __init__(self, size, obs_dim, action_dim, device):
        super().__init__(size, obs_dim, action_dim, device)
        self.numbers = np.zeros((size, 128), dtype=np.float32)


def test_arrays_of_a_buffer_on_the_gpu_must_fit_into_the_memory_of_the_machine(machine):
    machine(free=512 * 1000, on_gpu=10**12)
    assert memory.place_buffer(HalfBuffer, 1000, *VECTORS, CUDA).device == CUDA
    with pytest.raises(SystemExit, match="--buffer-size 1001 takes 0.0 GB.*at most 1000 fit"):
        memory.place_buffer(HalfBuffer, 1001, *VECTORS, CUDA)
    machine(free=1024 * 1500, on_gpu=0)
    assert memory.place_buffer(HalfBuffer, 1000, *VECTORS, CUDA).device == CPU
    with pytest.raises(SystemExit, match="at most 1000 fit"):
        memory.place_buffer(HalfBuffer, 1001, *VECTORS, CUDA)


def test_device_may_be_given_by_its_name(machine):
    machine(free=10**9)
    assert memory.place_buffer(Buffer, 1000, *VECTORS, device=CPU).device == CPU


@pytest.mark.parametrize("free", [10e6, 50e6, 500e6])
@pytest.mark.parametrize("file, shape", [(dqn, VECTORS), (dqn_atari, PIXELS)])
def test_as_many_fit_as_the_error_says(machine, file, shape, free):
    machine(free=free)
    with pytest.raises(SystemExit, match="at most") as error:
        memory.place_buffer(file.ReplayBuffer, 20_000_000, *shape, CPU)
    most = int(re.search(r"at most (\d+) fit", str(error.value))[1])
    buffer = memory.place_buffer(file.ReplayBuffer, most, *shape, CPU)
    assert len(buffer.rows) == most
    with pytest.raises(SystemExit, match="at most"):
        memory.place_buffer(file.ReplayBuffer, int(1.01 * most) + 1, *shape, CPU)


def test_buffer_of_dqn_atari_is_counted_with_rows_and_frames(machine):
    machine(free=7.4e9)
    with pytest.raises(SystemExit, match="takes 7.4 GB, 7.4 GB of memory are free; at most 99"):
        memory.place_buffer(dqn_atari.ReplayBuffer, 1_000_000, *PIXELS, CPU)


# How much is free


@pytest.fixture
def files(monkeypatch, tmp_path):
    """Writes files of the kernel, in the place of the real ones."""

    def write(**contents: str) -> None:
        for name, text in contents.items():
            path = tmp_path / PATHS[name]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    monkeypatch.setattr(memory, "Path", lambda path: tmp_path / Path(path).relative_to("/"))
    monkeypatch.setattr(memory.os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1_000_000}.get)
    return write


PATHS = {
    "meminfo": "proc/meminfo",
    "limit": "sys/fs/cgroup/memory.max",
    "used": "sys/fs/cgroup/memory.current",
    "statistics": "sys/fs/cgroup/memory.stat",
    "old_limit": "sys/fs/cgroup/memory/memory.limit_in_bytes",
    "old_used": "sys/fs/cgroup/memory/memory.usage_in_bytes",
    "old_statistics": "sys/fs/cgroup/memory/memory.stat",
}
MEMINFO = (
    "MemTotal:        4000000 kB\nMemFree:          100000 kB\nMemAvailable:    3000000 kB\nHugePages_Total:       0\n"
)


def test_without_files_of_a_kernel_all_of_the_memory_counts(files):
    assert memory.free_memory() == 4096 * 1_000_000


def test_memory_that_other_programs_use_is_not_free(files):
    files(meminfo=MEMINFO)
    assert memory.free_memory() == 3_000_000 * 1024  # what is free and what the kernel would give back


def test_limit_of_a_container_counts_without_what_it_uses_and_with_files_it_has_read(files):
    files(meminfo=MEMINFO, limit="1000000\n", used="700000\n", statistics="anon 500000\ninactive_file 150000\n")
    assert memory.free_memory() == 1_000_000 - 700_000 + 150_000


def test_limit_of_a_container_of_the_older_kind_counts_as_well(files):
    statistics = "cache 300000\ninactive_file 1\ntotal_inactive_file 200000\n"  # its own, and with those below it
    files(meminfo=MEMINFO, old_limit="1000000\n", old_used="900000\n", old_statistics=statistics)
    assert memory.free_memory() == 1_000_000 - 900_000 + 200_000


def test_container_without_a_limit_or_with_a_generous_one_has_what_the_machine_has(files):
    files(meminfo=MEMINFO, limit="max\n", used="700000\n", statistics="inactive_file 0\n")
    assert memory.free_memory() == 3_000_000 * 1024
    files(old_limit="9223372036854771712\n", old_used="1\n", old_statistics="total_inactive_file 0\n")
    assert memory.free_memory() == 3_000_000 * 1024


def test_this_machine_has_memory():
    assert 10e6 < memory.free_memory() < 100e12


# The scripts


@needs_atari
@pytest.mark.parametrize("times", [3, 1000])
@pytest.mark.parametrize("script, bytes_per_row", [("dqn.py", 44), ("dqn_atari.py", 7426)])
def test_too_large_a_buffer_ends_the_run_with_one_line_and_leaves_nothing_on_disk(runner, script, bytes_per_row, times):
    size = int(times * memory.free_memory() / bytes_per_row)
    result = runner.run(ROOT / "cleanrl" / script, "--no-cuda", "--buffer-size", size, check=False)
    assert_one_clear_line(result, f"--buffer-size {size} takes", "memory are free; at most", " fit")
    assert result.returncode == 1
    assert not list(runner.folder.iterdir())


CHECKPOINT = """
import resource, sys, torch
from cleanrl_utils.backend import save
x = torch.randint(0, 255, (200_000_000,), dtype=torch.uint8)
peaks = [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]
with open("checkpoint.pt", "wb") as file:
    save({"x": x, "global_step": 7}, file)
peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
assert torch.load("checkpoint.pt", weights_only=False, mmap=True)["global_step"] == 7
peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
assert (torch.load("checkpoint.pt", weights_only=False, mmap=True)["x"] == x).all()
scale = 1 if sys.platform == "darwin" else 1024
print(*(peak * scale for peak in peaks))
"""


def test_checkpoint_of_a_large_buffer_takes_no_second_copy_of_it(runner):
    """Nor does finding out its step, as Ctrl+C does."""
    before, saved, looked = map(int, runner.run("-c", CHECKPOINT).stdout.split())
    assert saved - before < 50e6 and looked - saved < 50e6
