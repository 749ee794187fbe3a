"""The experiments as processes on this machine, `--workers` at a time, each on its own share of the CPUs."""

import os
import selectors
import signal
import subprocess
from collections import deque
from typing import Any

from cleanrl_utils.engines import Engine, spec, supervisor
from cleanrl_utils.experiment import Experiment
from cleanrl_utils.system import gpus


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
        self.last_words: dict[str, str] = {}
        self.selector = selectors.DefaultSelector()
        # A command that brings its own processes (torchrun) wants all GPUs
        self.gpus = [] if "torchrun" in args.command else visible_gpus()

    def submit(self, experiments: list[Experiment]) -> None:
        self.queue.extend(experiments)

    def alive(self) -> set[str]:
        for slot, (experiment, process) in list(self.slots.items()):
            if process.poll() is not None:
                self.hear(experiment.name, process)
                if process.stderr in self.selector.get_map():
                    self.selector.unregister(process.stderr)
                process.stdin.close()
                process.stderr.close()
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
        process = subprocess.Popen(
            supervisor(spec(experiment), *arguments),
            stdin=subprocess.PIPE,  # the leash: closed by our end, however that comes
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment,
            process_group=0,  # its own: Ctrl+C is for us to hand on
        )
        self.selector.register(process.stderr, selectors.EVENT_READ, (experiment.name, process))
        self.slots[slot] = experiment, process

    def wait(self, seconds: float) -> None:
        """Until a supervisor ends: then its pipe is closed."""
        for key, _ in self.selector.select(seconds):
            self.hear(*key.data)

    def hear(self, name: str, process: subprocess.Popen) -> None:
        """What a supervisor complains about; normally it says nothing, until its end closes the pipe."""
        if process.stderr not in self.selector.get_map():
            return
        if words := os.read(process.stderr.fileno(), 1 << 16):
            self.last_words[name] = words.decode(errors="replace").strip()
        else:
            self.selector.unregister(process.stderr)
            process.wait()  # the pipe closes a moment before the process has ended

    def drop_waiting(self) -> None:
        self.queue.clear()

    def stop(self) -> None:
        self.queue.clear()
        for _, process in self.slots.values():
            process.send_signal(signal.SIGINT)

    def reason(self, name: str) -> str:
        return self.last_words.get(name, "").split("\n")[-1] or super().reason(name)
