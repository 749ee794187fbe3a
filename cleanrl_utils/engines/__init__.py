"""Where the experiments of a benchmark run. Every engine starts `python -m cleanrl_utils.supervisor` for each one."""

import os
import sys
import time
from dataclasses import asdict
from importlib import import_module
from json import dumps
from shlex import quote
from typing import Any

from cleanrl_utils.experiment import Experiment

CLASSES = {"local": "LocalEngine", "ray": "RayEngine", "slurm": "SlurmEngine", "aws": "AwsEngine"}


class Engine:
    """What `cleanrl_utils.benchmark` asks of an engine; results come through the experiments' state files."""

    detaches = False  # whether the experiments go on without the benchmark, as jobs of a scheduler do
    interval = 1.0  # seconds between two looks

    def __init__(self, args: Any):
        self.args = args

    def attach(self, experiments: list[Experiment]) -> set[str]:
        """The names of those that an earlier benchmark has submitted and that still wait or run."""
        return set()

    @classmethod
    def preview(cls, args: Any, experiments: list[Experiment]) -> str:
        """What would be run, for --dry-run."""
        return "\n".join(f"{x.command} --env-id {quote(x.env_id)} --seed {x.seed}" for x in experiments)

    def submit(self, experiments: list[Experiment]) -> None:
        """Run these, which are not empty, as soon as there is room."""
        raise NotImplementedError

    def alive(self) -> set[str]:
        """The names of the experiments that wait or run."""
        raise NotImplementedError

    def start_waiting(self) -> None:
        """Start what there is room for, where nobody else does."""

    def wait(self, seconds: float) -> None:
        """Sleep, or less where the end of an experiment can be noticed."""
        time.sleep(seconds)

    def drop_waiting(self) -> None:
        """Do not start what has not started yet."""

    def stop(self) -> None:
        """Interrupt everything; called a second time, kill it."""

    def reason(self, name: str) -> str:
        """Why an experiment ended that did not say so itself."""
        return "it was killed from outside"

    def farewell(self) -> str:
        """What to do about the experiments that go on without the benchmark."""
        return ""


def spec(experiment: Experiment) -> str:
    """The experiment as `cleanrl_utils.supervisor` reads it."""
    return dumps({name: value for name, value in asdict(experiment).items() if value is not None})


def supervisor(*arguments: str, python: str = sys.executable) -> list[str]:
    """The command every engine runs for an experiment."""
    return [python, "-m", "cleanrl_utils.supervisor", *arguments]


def read_job(experiment: Experiment) -> str | None:
    """The scheduler's name for an experiment; not in its state, which belongs to the machine that runs it."""
    try:
        return (experiment.folder / "job").read_text()
    except OSError:
        return None


def write_job(experiment: Experiment, job: str) -> None:
    experiment.folder.mkdir(parents=True, exist_ok=True)
    (experiment.folder / "job").write_text(job)


def handed_on() -> dict[str, str]:
    """What an experiment elsewhere needs of our environment, keys to log in among it: never written to disk."""
    ours = {name for name in os.environ if name.startswith("WANDB_") and not name.endswith("_DIR")} | {"HF_TOKEN"}
    return {name: os.environ[name] for name in sorted(ours) if os.environ.get(name)}


def engine_class(name: str) -> type[Engine]:
    return getattr(import_module(f"cleanrl_utils.engines.{name}"), CLASSES[name])
