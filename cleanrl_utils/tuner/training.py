"""One training of a trial: a process of its own, and the curve of the metric that it logs."""

import os
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from cleanrl_utils.files import read_json
from cleanrl_utils.progress import final_step
from cleanrl_utils.rlops.events import read_scalars
from cleanrl_utils.system import die_with_parent, signal_group

TENTHS = 10  # points of a training at which the pruner is asked


@dataclass
class Training:
    """A script that trains with one environment and one seed."""

    env_id: str
    seed: int
    command: list[str]
    run_pattern: str
    """of the run's folder"""
    log: Path
    curve: list[float | None] = field(default_factory=list)
    """the mean of the metric's last values at each tenth of the training; None before the first value"""
    process: subprocess.Popen | None = None
    tags: list[str] = field(default_factory=list)
    """what it has logged so far"""
    bytes_read: int = 0

    @property
    def name(self) -> str:
        return f"{self.env_id} seed {self.seed}"

    @property
    def note(self) -> Path:
        """Where the script writes the name of its run's folder."""
        return self.log.with_suffix(".run_dir")

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def unread(self) -> bool:
        """Started, and there is more to read; the last tenth is read after its end."""
        return self.process is not None and len(self.curve) < TENTHS

    def start(self, threads: int) -> None:
        """Run the script; a session of its own lets `stop` reach whatever it starts itself."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.note.unlink(missing_ok=True)
        environment = {"OMP_NUM_THREADS": str(threads), **os.environ, "PYTHONUNBUFFERED": "1"}
        environment["CLEANRL_RUN_DIR_FILE"] = str(self.note.absolute())
        with open(self.log, "wb") as log:
            settings = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "start_new_session": True}
            self.process = subprocess.Popen(self.command, env=environment, preexec_fn=die_with_parent, **settings)

    def stop(self) -> None:
        if self.process:
            signal_group(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def find_run(self) -> Path | None:
        """The folder that the script has noted, as it may spell the environment in its own way, or else one by name."""
        if self.note.exists():
            return Path(self.note.read_text())
        return max(Path("runs").glob(self.run_pattern), key=lambda path: path.stat().st_mtime, default=None)

    def read(self, metric: str, window: int) -> bool:
        """Extend the curve by what has been logged since the last look; returns whether that was the last."""
        finished = not self.running  # before reading: what is read then is all there is
        run_dir = self.find_run()
        if run_dir is None:
            return finished
        size = sum(path.stat().st_size for path in run_dir.glob("events.out.tfevents.*"))
        if size == self.bytes_read and not finished:
            return False
        self.bytes_read = size
        curves = read_scalars(run_dir)
        self.tags = sorted(curves)
        if metric not in curves:
            return finished
        steps, values = curves[metric].steps, curves[metric].values
        total = final_step(read_json(run_dir / "args.json"))
        if not total and not finished:  # not known yet; a script that never says it is read at its end
            return False
        while len(self.curve) < TENTHS:
            step = np.inf if len(self.curve) == TENTHS - 1 else (total or steps[-1]) * (len(self.curve) + 1) / TENTHS
            if steps[-1] < step and not finished:
                break
            last = values[steps <= step][-window:]
            self.curve.append(float(np.mean(last)) if len(last) else None)
        return finished
