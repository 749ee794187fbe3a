"""One experiment of a benchmark: a script, an environment and a seed, and how far it is.

Everything that is known about it lies in `runs/benchmark/{name}/`: `state.json`, `log.txt` and `lock`.
"""

import hashlib
import json
import os
import re
import shlex
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from cleanrl_utils.files import read_json, write_json
from cleanrl_utils.lock import take

ROOT = Path("runs/benchmark")
PROGRESS = ("step", "total_steps", "sps", "episodic_return")  # what a run itself tells: see cleanrl_utils/progress.py


@dataclass(frozen=True)
class Experiment:
    """What to run, and under which limits; the limits do not make it another experiment."""

    command: str
    env_id: str
    seed: int
    timeout: float | None = None
    retries: int = 0
    threads: int | None = None
    max_log_mb: float = 10.0

    @property
    def argv(self) -> list[str]:
        """The whole command; `python` is the Python that runs this."""
        argv = [*shlex.split(self.command), "--env-id", self.env_id, "--seed", str(self.seed)]
        if argv[0] in ("python", "python3"):
            argv[0] = sys.executable
        return ["env", *argv] if "=" in argv[0] else argv  # VARIABLE=value in front, as in a shell

    @property
    def script(self) -> str | None:
        return next((word for word in shlex.split(self.command) if word.endswith(".py")), None)

    @property
    def name(self) -> str:
        """Readable, and unique: the same name with other flags has another number at its end."""
        digest = hashlib.sha256(json.dumps([shlex.split(self.command), self.env_id, self.seed]).encode()).hexdigest()
        script = Path(self.script or shlex.split(self.command)[-1]).stem
        env_id = re.sub(r"[^-.\w]", "_", self.env_id)
        return f"{env_id}__{script}__{self.seed}__{digest[:8]}"

    @property
    def folder(self) -> Path:
        return ROOT / self.name

    @property
    def log(self) -> Path:
        return self.folder / "log.txt"

    @property
    def note(self) -> Path:
        return self.folder / "run_dir"


@dataclass
class State:
    """How far an experiment is; what the live table shows, and what a later benchmark finds."""

    status: str = "waiting"  # waiting, running, done, failed, interrupted
    reason: str = ""  # why it failed
    exit_code: int | None = None
    attempts: int = 0
    run_dir: str | None = None
    script_digest: str | None = None
    host: str | None = None
    pid: int | None = None
    started: float | None = None  # of the last attempt, seconds since 1970
    seconds: float = 0.0  # of all attempts together
    step: int = 0
    total_steps: int | None = None
    sps: float | None = None
    episodic_return: float | None = None
    cpu: float | None = None  # percent of one CPU, over the last seconds
    memory: int | None = None  # bytes

    def update(self, facts: dict) -> None:
        """Take over what a run tells of its progress."""
        for name in PROGRESS:
            setattr(self, name, facts.get(name, getattr(self, name)))

    @property
    def is_done(self) -> bool:
        """Finished, and its results are still there."""
        return self.status == "done" and (self.run_dir is None or Path(self.run_dir).exists())

    @property
    def is_resumable(self) -> bool:
        return self.run_dir is not None and Path(self.run_dir, "checkpoint.pt").exists()


def read_state(experiment: Experiment) -> State:
    saved = read_json(experiment.folder / "state.json")
    state = State(**{name: value for name, value in saved.items() if name in State.__dataclass_fields__})
    state.run_dir = state.run_dir or read_note(experiment)  # its supervisor may have been killed before it saw this
    return state


def forget(experiment: Experiment) -> None:
    """Its next run starts from the beginning; run folder and log stay."""
    for name in ("state.json", "run_dir", "job"):
        (experiment.folder / name).unlink(missing_ok=True)


def read_note(experiment: Experiment) -> str | None:
    """The run folder, as `cleanrl_utils.run.start` tells it."""
    try:
        return experiment.note.read_text() or None
    except OSError:
        return None


def write_state(experiment: Experiment, state: State, durable: bool = True) -> None:
    experiment.folder.mkdir(parents=True, exist_ok=True)
    aside = experiment.folder / f"state.{os.getpid()}.tmp"
    write_json(experiment.folder / "state.json", asdict(state), durable, aside)


def is_locked(experiment: Experiment) -> bool:
    """Whether some process runs this experiment now."""
    try:
        with open(experiment.folder / "lock") as file:
            return not take(file)
    except OSError:  # never run
        return False


def digest_of(script: str | None) -> str | None:
    try:
        return hashlib.sha256(Path(script).read_bytes()).hexdigest()[:16] if script else None
    except OSError:
        return None
