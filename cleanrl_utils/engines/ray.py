"""The experiments as tasks of a Ray cluster, each with the CPUs and GPUs it needs.

The repository lies at the same path on every node. Without a shared `runs/` its results stay on the node that ran it.
"""

import logging
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from typing import Any

from cleanrl_utils.engines import Engine, handed_on, spec, supervisor
from cleanrl_utils.experiment import Experiment, State, read_state, write_state


class Stops:
    """An actor that every task asks once a second how often it was told to stop.

    `ray.cancel` would not do: it declares a task dead at once, while its experiment is still being brought to its end.
    """

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> None:
        self.count += 1

    def get(self) -> int:
        return self.count


def run_experiment(experiment: dict, folder: str, variables: dict[str, str], stops: Any) -> dict:
    """On a worker of Ray: supervise the experiment as every engine does; returns its state."""
    import ray

    try:
        os.chdir(folder)
    except OSError:
        raise RuntimeError(f"{folder} is not on node {os.uname().nodename}: share it, or copy it there") from None
    told = ray.get(stops.get.remote())
    if not told:
        process = subprocess.Popen(
            supervisor(spec(Experiment(**experiment)), "--leash"),
            stdin=subprocess.PIPE,  # the leash: closed when Ray ends this worker
            stdout=subprocess.DEVNULL,
            env=os.environ | variables,
            process_group=0,
        )
        while process.poll() is None:
            try:
                process.wait(timeout=1)
            except subprocess.TimeoutExpired:
                if told < (told := ray.get(stops.get.remote())):
                    process.send_signal(signal.SIGINT)
    return asdict(read_state(Experiment(**experiment)))


class RayEngine(Engine):
    def __init__(self, args: Any):
        super().__init__(args)
        try:
            import ray
        except ImportError:
            sys.exit('--engine ray: pip install "cleanrl[ray]"')
        self.ray = ray
        local = {} if args.ray_address else {"include_dashboard": False}
        try:
            ray.init(args.ray_address, log_to_driver=False, logging_level=logging.ERROR, **local)
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            sys.exit(f"--ray-address {args.ray_address}: {error}; is it up, and is RAY_AUTH_TOKEN the cluster's?")
        for resource, asked in {"CPU": args.ray_num_cpus, "GPU": args.ray_num_gpus}.items():
            if asked > (there := max((node["Resources"].get(resource, 0) for node in ray.nodes()), default=0)):
                sys.exit(f"--ray-num-{resource.lower()}s {asked}: the largest node of the cluster has {there:g}")
        self.queue: list[Experiment] = []
        self.tasks: dict[Any, Experiment] = {}
        self.reasons: dict[str, str] = {}

    def submit(self, experiments: list[Experiment]) -> None:
        self.queue = list(experiments)
        # A node that is lost is Ray's to replace: the experiment goes on from its checkpoint
        needs = {"num_cpus": self.args.ray_num_cpus, "num_gpus": self.args.ray_num_gpus, "max_retries": 3}
        self.remote = self.ray.remote(**needs)(run_experiment)
        self.stops = self.ray.remote(num_cpus=0)(Stops).remote()

    def alive(self) -> set[str]:
        ended, _ = self.ray.wait(list(self.tasks), num_returns=len(self.tasks), timeout=0) if self.tasks else ([], [])
        for task in ended:
            experiment = self.tasks.pop(task)
            try:
                state = State(**self.ray.get(task))
                if read_state(experiment) != state:  # its node does not share our folder
                    write_state(experiment, state)
            except self.ray.exceptions.RayError as error:
                self.reasons[experiment.name] = str(error).strip().split("\n")[-1]
        return {experiment.name for experiment in [*self.tasks.values(), *self.queue]}

    def start_waiting(self) -> None:
        while self.queue and len(self.tasks) < (self.args.workers or len(self.queue) + len(self.tasks)):
            experiment = self.queue.pop(0)
            # As an argument, which stays in memory; Ray writes the variables of its runtime environments to logs
            arguments = asdict(experiment), os.getcwd(), handed_on(), self.stops
            self.tasks[self.remote.options(name=experiment.name).remote(*arguments)] = experiment

    def wait(self, seconds: float) -> None:
        if self.tasks:
            self.ray.wait(list(self.tasks), timeout=max(seconds, 0.01))

    def drop_waiting(self) -> None:
        self.queue.clear()

    def stop(self) -> None:
        self.queue.clear()
        self.stops.add.remote()

    def reason(self, name: str) -> str:
        return self.reasons.get(name) or super().reason(name)
