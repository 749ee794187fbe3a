"""Steps per second of each algorithm file, one after the other, on its default task with its default flags.

Usage:
    python benchmark/speed_files.py --csv-file benchmark/results/speed_files.csv        # every file, on a CPU core
    python benchmark/speed_files.py --files ppo_atari dqn_atari_jax --cuda --core None  # these, on the GPU

Measured is the time in which a file learns: from the first third of `--seconds` after its first loss, when all is
compiled, to their end. A replay buffer starts to be used after 1,000 steps, and exploration ends there, so that the
network acts as it does in the rest of a run. QDagger needs a teacher: `--flags "--teacher-model-path FILE"`.
A file that cannot be run here, because a package or a GPU is missing, is named with the reason and left out.
"""

import csv
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cleanrl_utils import command_line, progress
from cleanrl_utils.git import git
from cleanrl_utils.provenance import hardware

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted(path.stem for path in (ROOT / "cleanrl").glob("[a-z]*.py"))
COLUMNS = ["contestant", "env_id", "version", "hardware", "steps_per_second"]
PATIENCE = 300.0  # seconds in which a file should have learned for the first time
LEARNING_STARTS = 1000
ENDLESS = 10**9  # steps


class NotMeasured(Exception):
    """Why a file has no speed."""


def command(name: str, cuda: bool, flags: list[str]) -> list[str]:
    source = (ROOT / "cleanrl" / f"{name}.py").read_text()
    words = [sys.executable]
    if name.endswith("multigpu"):
        words += ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    words += [str(ROOT / "cleanrl" / f"{name}.py"), "--cuda" if cuda else "--no-cuda", "--checkpoint-frequency", "0"]
    words += ["--total-timesteps", str(ENDLESS)]
    if "learning_starts:" in source:
        words += ["--learning-starts", str(LEARNING_STARTS)]
    if "exploration_fraction:" in source:
        words += ["--exploration-fraction", str(LEARNING_STARTS / ENDLESS)]
    return words + flags


def curves(folder: Path) -> EventAccumulator:
    path = next(folder.rglob("events.out.tfevents.*"), None)
    if path is None:
        raise NotMeasured("it has logged nothing: raise --seconds")
    return EventAccumulator(str(path.parent), size_guidance={"scalars": 0}).Reload()


def noted_step(folder: Path) -> int:
    """How far it is, which files note every second; their curves reach the disk minutes later."""
    return max((progress.read(path.parent).get("step") or 0 for path in folder.rglob("progress.json")), default=0)


def measure(words: list[str], seconds: float) -> float:
    """Train with this command for so long; steps per second. NotMeasured if it ends by itself."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with open(folder / "output.txt", "w") as output:
            environment = os.environ | {"OMP_NUM_THREADS": "1", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
            pipes = {"stdout": output, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
            process = subprocess.Popen(words, cwd=folder, env=environment, start_new_session=True, **pipes)
        try:
            start, started = time.monotonic(), None
            while started is None or time.monotonic() < started + seconds:
                if process.poll() is not None:
                    lines = (folder / "output.txt").read_text().strip().splitlines()
                    raise NotMeasured(lines[-1] if lines else f"it ended with code {process.returncode}")
                if started is None and noted_step(folder) > LEARNING_STARTS:
                    started = time.monotonic()
                if started is None and time.monotonic() > start + PATIENCE:
                    raise NotMeasured(f"it has not learned within {PATIENCE:.0f} seconds")
                time.sleep(0.2)
            os.killpg(process.pid, signal.SIGINT)  # then it writes its curves
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                pass
            events = curves(folder)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    losses = [tag for tag in events.Tags()["scalars"] if tag.startswith("losses/")]
    if not losses:
        raise NotMeasured("it has logged no loss: raise --seconds")
    first_loss = min(events.Scalars(tag)[0].wall_time for tag in losses)
    points = [x for x in events.Scalars("charts/SPS") if x.wall_time >= first_loss + seconds / 3]
    if len(points) < 2:
        raise NotMeasured("it has logged too little: raise --seconds")
    return (points[-1].step - points[0].step) / (points[-1].wall_time - points[0].wall_time)


def append(csv_file: Path, row: list) -> None:
    is_new = not csv_file.exists()
    try:
        csv_file.parent.mkdir(parents=True, exist_ok=True)
        with open(csv_file, "a", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([COLUMNS] * is_new + [row])
    except OSError as error:
        sys.exit(f"--csv-file {csv_file}: {error.strerror}")


def main(
    files: list[str] = FILES,
    seconds: float = 30.0,
    cuda: bool = False,
    core: int | None = 0,
    flags: str = "",
    csv_file: Path | None = None,
) -> None:
    """Measure the speed of algorithm files.

    Args:
        files: their names
        seconds: how long each one is watched
        cuda: train on the GPU
        core: the core that each is pinned to (Linux); None: not pinned
        flags: further flags for every file, in quotes
        csv_file: append the speeds to this file
    """
    if unknown := sorted(set(files) - set(FILES)):
        sys.exit(f"--files: no {', '.join(unknown)} in cleanrl/; there are {', '.join(FILES)}")
    if seconds <= 0:
        sys.exit(f"--seconds {seconds:g} must be more than 0")
    if cuda:
        import torch  # from here on, `hardware` knows the GPU

        if not torch.cuda.is_available():
            sys.exit("there is no GPU: leave out --cuda")
    if core is not None and platform.system() == "Linux":
        try:
            os.sched_setaffinity(0, [core])  # and all that it starts
        except (OSError, ValueError):
            cores = ", ".join(map(str, sorted(os.sched_getaffinity(0))))
            sys.exit(f"--core {core}: this program may use {cores}, or None for all of them")
    commit = git("rev-parse", "--short", "HEAD", cwd=ROOT)
    for name in files:
        words = command(name, cuda, flags.split())
        default = re.search(r'env_id: str = "(\S+)"', (ROOT / "cleanrl" / f"{name}.py").read_text())[1]
        env_id = words[words.index("--env-id") + 1] if "--env-id" in words else default
        try:
            speed = measure(words, seconds)
        except NotMeasured as reason:
            print(f"{name:<35} not measured: {reason}", flush=True)
            continue
        print(f"{name:<35} {env_id:<28} {speed:10,.0f} steps/s", flush=True)
        if csv_file:
            append(csv_file, [f"{name}.py", env_id, commit, hardware(), round(speed, 1)])


if __name__ == "__main__":
    command_line.run(main, prog="python benchmark/speed_files.py")
