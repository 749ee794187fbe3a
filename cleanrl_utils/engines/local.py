"""The experiments as processes on this machine, `--workers` at a time, each on its own share of the CPUs."""

import os
import signal
import subprocess
import time
from collections import deque
from typing import Any

from cleanrl_utils.engines import Engine, spec, supervisor
from cleanrl_utils.experiment import ROOT, Experiment
from cleanrl_utils.logs import tail
from cleanrl_utils.system import gpus

COMPLAINTS = "supervisor.txt"  # what the supervisor of an experiment complains about: normally nothing


def available_cpus() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def share(cpus: list[int], workers: int, slot: int) -> list[int]:
    """The CPUs of a worker: neighbours, and every CPU belongs to one; all of them where there are too few to share."""
    if workers > len(cpus):
        return cpus
    return cpus[slot * len(cpus) // workers : (slot + 1) * len(cpus) // workers]


def visible_gpus() -> list[str]:
    """The GPUs to go round, if there are several: a script takes the first it sees."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return [gpu for gpu in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if gpu]
    return [str(number) for number, _ in enumerate(gpus())]


class LocalEngine(Engine):
    def __init__(self, args: Any):
        super().__init__(args)
        self.queue: deque[Experiment] = deque()
        self.slots: dict[int, tuple[Experiment, subprocess.Popen]] = {}
        # A command that brings its own processes (torchrun) wants all GPUs
        self.gpus = [] if "torchrun" in args.command else visible_gpus()

    def submit(self, experiments: list[Experiment]) -> None:
        self.queue.extend(experiments)

    def alive(self) -> set[str]:
        for slot, (_, process) in list(self.slots.items()):
            if process.poll() is not None:
                process.stdin.close()
                del self.slots[slot]
        return {experiment.name for experiment, _ in self.slots.values()} | {x.name for x in self.queue}

    def start_waiting(self) -> None:
        for slot in range(self.args.workers):
            if slot not in self.slots and self.queue:
                self.start(slot, self.queue.popleft())

    def start(self, slot: int, experiment: Experiment) -> None:
        arguments = ["--leash"]
        if self.args.pin:
            arguments += ["--cpus", ",".join(map(str, share(available_cpus(), self.args.workers, slot)))]
        environment = dict(os.environ)
        if len(self.gpus) > 1:
            environment["CUDA_VISIBLE_DEVICES"] = self.gpus[slot % len(self.gpus)]
        with open(experiment.folder / COMPLAINTS, "wb") as stderr:
            process = subprocess.Popen(
                supervisor(spec(experiment), *arguments),
                stdin=subprocess.PIPE,  # the leash: closed by our end, however that comes
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                env=environment,
                process_group=0,  # its own: Ctrl+C is for us to hand on
            )
        self.slots[slot] = experiment, process

    def wait(self, seconds: float) -> None:
        """Until a supervisor ends."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and all(process.poll() is None for _, process in self.slots.values()):
            time.sleep(0.05)

    def drop_waiting(self) -> None:
        self.queue.clear()

    def stop(self) -> None:
        self.queue.clear()
        for _, process in self.slots.values():
            process.send_signal(signal.SIGINT)

    def reason(self, name: str) -> str:
        return tail(ROOT / name / COMPLAINTS, 1) or super().reason(name)
