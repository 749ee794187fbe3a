"""Run an experiment of a benchmark, and watch it until it ends.

Usage (the engines of `cleanrl_utils.benchmark` call it, each on the machine that trains):
    python -m cleanrl_utils.supervisor SPEC [LINE] [--cpus 0,1] [--leash] [--echo]

SPEC is an `Experiment` as JSON, or a file of them, one a line. Only the standard library is imported: it starts fast.
"""

import argparse
import json
import os
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO

from cleanrl_utils import progress
from cleanrl_utils.experiment import PROGRESS, Experiment, State, digest_of, read_note, read_state, write_state
from cleanrl_utils.lock import take
from cleanrl_utils.logs import CappedLog, tail
from cleanrl_utils.system import die_with_parent, group_usage, signal_group

# Seconds that a script has after Ctrl+C, to save its state and to stop, and again after SIGTERM, before it is killed.
# Slurm and AWS kill what is left of a job 30 s after they have asked it to stop.
GRACE = 30.0
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
USAGE_ERROR = 2  # the exit code of a program that was called with wrong flags
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
LOOK = 1.0  # seconds between two looks at the progress of the run
MEASURE = 5.0  # seconds between two looks at what it uses
TOLD = "progress: "  # the beginning of a line that tells a scheduler's log how far the run is


class Supervisor:
    """Runs an experiment's command until it ends, is too late, or this process is told to stop."""

    def __init__(self, experiment: Experiment, leash: bool = False, echo: bool = False):
        self.experiment, self.echo = experiment, echo
        self.stops = 0  # how often we were told to stop
        self.written: State | None = None  # what the state file holds
        self.selector = selectors.DefaultSelector()
        # Signals (the child's end among them) wake up the selector: no polling while nothing happens.
        self.wakeup, wake = socket.socketpair()
        for end in (self.wakeup, wake):
            end.setblocking(False)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        self._wake = wake  # keeps it open
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in STOPS:
            signal.signal(number, self.ask_to_stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {*STOPS, signal.SIGCHLD})  # Ray's workers block some
        self.selector.register(self.wakeup, selectors.EVENT_READ, "signal")
        if leash:  # the engine holds the other end of our input: its end, by kill -9 even, is ours
            self.selector.register(sys.stdin, selectors.EVENT_READ, "leash")

    def ask_to_stop(self, *_: object) -> None:
        self.stops += 1

    def wait(self, seconds: float | None) -> bytes:
        """Sleep until something happens; returns what the script printed meanwhile."""
        output = b""
        for key, _ in self.selector.select(seconds):
            if key.data == "output":
                output = os.read(key.fd, 1 << 20)
                if not output:
                    self.selector.unregister(key.fd)
            elif key.data == "signal":
                self.wakeup.recv(4096)
            elif not os.read(key.fd, 1):
                self.selector.unregister(key.fileobj)
                self.stops += 1
        return output

    @contextmanager
    def locked(self) -> Iterator[int | None]:
        """Wait until nobody else runs this experiment; yields the lock, or None when told to stop.

        The script inherits the lock: should all else be killed, it holds it for as long as it lives.
        """
        self.experiment.folder.mkdir(parents=True, exist_ok=True)
        with open(self.experiment.folder / "lock", "w") as file:
            while not self.stops and not take(file):
                self.wait(0.5)
            yield None if self.stops else file.fileno()

    def run(self) -> State:
        """Run the experiment, and again where it failed and may be retried."""
        with self.locked() as lock:
            state = read_state(self.experiment)
            if lock is None or state.is_done:  # or another process has finished it while we waited
                return state
            log = CappedLog(self.experiment.log, int(self.experiment.max_log_mb * 1e6))
            for _ in range(self.experiment.retries + 1):
                self.attempt(state, lock, log)
                if state.status != "failed" or state.exit_code == USAGE_ERROR or self.stops:
                    break
            write_state(self.experiment, state)  # a failure that is retried is nobody's business
            return state

    def attempt(self, state: State, lock: int, log: CappedLog) -> None:
        """Start the script, from its checkpoint if it has one, and follow it to its end."""
        experiment = self.experiment
        argv = experiment.argv
        if state.is_resumable:
            argv += ["--resume", state.run_dir]
        else:
            state.step, state.seconds, state.sps, state.episodic_return = 0, 0.0, None, None
            if state.run_dir and Path(state.run_dir).exists():  # of no use, and a second curve of one seed confuses
                abandon(Path(state.run_dir), experiment.folder / "abandoned")
            state.run_dir = None
        experiment.note.unlink(missing_ok=True)
        state.status, state.reason, state.exit_code = "running", "", None
        state.attempts += 1
        state.started, state.host, state.pid = time.time(), socket.gethostname(), os.getpid()
        state.script_digest = digest_of(experiment.script)
        log.write(f"[{time.strftime('%F %T')}] attempt {state.attempts}: {shlex.join(argv)}\n".encode())
        environment = dict(os.environ) | {
            "PYTHONUNBUFFERED": "1",
            "CLEANRL_RUN_DIR_FILE": str(experiment.note.absolute()),
        }
        for variable in THREAD_VARIABLES if experiment.threads else ():
            environment.setdefault(variable, str(experiment.threads))  # who has set one knows better
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                process_group=0,  # its own, to be stopped as a whole; a session of its own would escape `nice` on Linux
                pass_fds=(lock,),
                pipesize=1 << 20 if sys.platform == "linux" else -1,
                preexec_fn=prepare_child,
            )
        except OSError as error:
            state.status, state.reason = "failed", f"cannot start {argv[0]}: {error.strerror}"
            return
        stopped = self.follow(process, state, log)
        seconds = time.time() - state.started
        state.seconds += seconds
        state.exit_code, state.pid, state.cpu, state.memory = process.returncode, None, None, None
        if stopped:
            state.status, state.reason = ("interrupted", "") if self.stops else ("failed", stopped)
        elif process.returncode == 0:
            state.status = "done"
        else:
            state.status, state.reason = "failed", explain(process.returncode)
        outcome = f"{state.status}: {state.reason}" if state.reason else state.status
        log.write(f"[{time.strftime('%F %T')}] {outcome} after {seconds:.1f} s\n".encode())

    def follow(self, process: subprocess.Popen, state: State, log: CappedLog) -> str:
        """Copy its output into the log and its progress into the state; returns why it was stopped, if it was."""
        start, stopped, signals = time.monotonic(), "", iter(())
        next_look, next_measure, next_signal, echoed = start, start + MEASURE, float("inf"), 0
        measured_at, cpu_seconds = start, 0.0
        self.selector.register(process.stdout, selectors.EVENT_READ, "output")
        deadline = start + (self.experiment.timeout or float("inf"))
        stops = 0
        while process.poll() is None:
            now = time.monotonic()
            if self.stops > stops or (now > deadline and not stopped):
                stopped = "told to stop" if self.stops else f"timed out after {self.experiment.timeout:g} s"
                insist = stops > 0  # told twice: at once
                stops, next_signal = self.stops, now
                signals = iter([signal.SIGKILL] if insist else [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
            if now >= next_signal:
                signal_group(process.pid, next(signals, signal.SIGKILL))
                next_signal = now + GRACE
            if now >= next_measure:
                before, (cpu_seconds, state.memory) = cpu_seconds, group_usage(process.pid)
                state.cpu = 100 * (cpu_seconds - before) / (now - measured_at)
                measured_at, next_measure = now, now + MEASURE
                self.tell(state)
            if now >= next_look:
                self.note_progress(state)
                next_look = now + LOOK
            until = min(deadline if not stopped else float("inf"), next_signal, next_look)
            output = self.wait(max(0.0, until - now))
            if output:
                log.write(output)
                echoed += self.repeat(output, echoed)
        signal_group(process.pid, signal.SIGKILL)  # what it left behind
        os.set_blocking(process.stdout.fileno(), False)
        while output := read_available(process.stdout):
            log.write(output)
            echoed += self.repeat(output, echoed)
        if process.stdout.fileno() in {key.fd for key in self.selector.get_map().values()}:
            self.selector.unregister(process.stdout)
        process.stdout.close()
        self.note_progress(state)
        self.tell(state)
        return stopped

    def repeat(self, output: bytes, echoed: int) -> int:
        """Where asked, print the output as well, for a scheduler that collects it; as much as the log may hold."""
        if self.echo and echoed < self.experiment.max_log_mb * 1e6:
            sys.stdout.buffer.write(output)
            sys.stdout.buffer.flush()
        return len(output)

    def note_progress(self, state: State) -> None:
        """Read where the run folder is, and what the run itself says of its progress."""
        state.run_dir = state.run_dir or read_note(self.experiment)
        if state.run_dir:
            state.update(progress.read(state.run_dir))
        if state != self.written:
            self.written = replace(state)
            write_state(self.experiment, state, durable=False)

    def tell(self, state: State) -> None:
        """Where asked, print the progress for a scheduler whose log is all that the benchmark sees."""
        if self.echo:
            facts = {name: getattr(state, name) for name in PROGRESS}
            print(TOLD + json.dumps(facts), flush=True)


def abandon(run_dir: Path, folder: Path) -> None:
    """Move a run out of the way, and out of TensorBoard's sight, which finds event files by their names."""
    folder.mkdir(exist_ok=True)
    moved = Path(shutil.move(run_dir, folder))
    for path in moved.glob("events.out.tfevents.*"):
        path.rename(path.with_name(path.name.replace("tfevents", "abandoned")))


def read_available(pipe: IO[bytes]) -> bytes:
    try:
        return os.read(pipe.fileno(), 1 << 20)
    except BlockingIOError:  # a process that left the group still holds the pipe: do not wait for it
        return b""


def prepare_child() -> None:
    """In the new process: heed Ctrl+C even if the benchmark runs in the background, and die with the supervisor."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    die_with_parent()


def explain(exit_code: int) -> str:
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    return f"killed by {name}" + (" (out of memory?)" if exit_code == -signal.SIGKILL else "")


def load(spec: str, line: int | None) -> Experiment:
    """An experiment from its JSON, or from a line of a file of them."""
    if line is not None:
        spec = Path(spec).read_text().splitlines()[line]
    return Experiment(**json.loads(spec))


def main() -> None:
    keep_lines = {"description": __doc__, "formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = argparse.ArgumentParser("python -m cleanrl_utils.supervisor", **keep_lines)
    parser.add_argument("spec", help="an experiment as JSON, or a file with one a line")
    parser.add_argument("line", nargs="?", type=int, help="which line of the file, from 0 on")
    parser.add_argument("--cpus", help="the CPUs it may use, such as 0,1")
    parser.add_argument("--leash", action="store_true", help="stop when the standard input is closed")
    parser.add_argument("--echo", action="store_true", help="print what the script prints")
    args = parser.parse_args()
    if args.cpus and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, [int(cpu) for cpu in args.cpus.split(",")])
    experiment = load(args.spec, args.line)
    state = Supervisor(experiment, args.leash, args.echo).run()
    if args.echo:  # once more the end, should the output have been too long to be printed
        print(tail(experiment.log))
    sys.exit(USAGE_ERROR if state.exit_code == USAGE_ERROR else state.status != "done")


if __name__ == "__main__":
    main()
