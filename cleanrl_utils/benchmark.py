"""Run a script on several environments with several seeds: here, on Ray, on Slurm or on AWS Batch.

Usage:
    python -m cleanrl_utils.benchmark --env-ids CartPole-v1 Acrobot-v1 --command "python cleanrl/ppo.py" --workers 2

The same command again skips what is finished and resumes what was interrupted. See docs/get-started/benchmark.md.
"""

import os
import re
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cleanrl_utils import command_line
from cleanrl_utils.benchmark_view import View, print_summary
from cleanrl_utils.engines import Engine, engine_class
from cleanrl_utils.engines.local import available_cpus
from cleanrl_utils.experiment import Experiment, State, digest_of, forget, is_locked, read_state, write_state
from cleanrl_utils.git import git
from cleanrl_utils.supervisor import STOPS, USAGE_ERROR
from cleanrl_utils.words import plural


@dataclass
class Args:
    env_ids: list[str]
    """the ids of the environments"""
    command: str
    """what to run; `--env-id` and `--seed` are added to it"""
    num_seeds: int = 3
    """seeds per environment"""
    start_seed: int = 1
    """the first seed"""
    workers: int | None = None
    """experiments at a time (by default 1 with the local engine, elsewhere as many as there is room for)"""
    engine: Literal["local", "ray", "slurm", "aws"] = "local"
    """where to run them"""
    timeout: float | None = None
    """seconds after which an experiment is stopped and has failed"""
    retries: int = 0
    """how often a failed experiment is tried again, from its last checkpoint"""
    restart: bool = False
    """run everything again, also what is finished; the old run folders stay"""
    dry_run: bool = False
    """only print the commands, or what Slurm or AWS Batch would be given"""
    wait: bool = True
    """with Slurm and AWS: stay until all experiments have ended"""
    auto_tag: bool = True
    """tag the runs on Weights & Biases with the git tag, the commit and, where it is known, the pull request"""
    pin: bool = True
    """with the local engine: give each worker its own CPUs"""
    max_log_mb: float = 10.0
    """the size of a log file beyond which its middle is left out"""

    ray_address: str | None = None
    """the Ray cluster, such as auto or ray://host:10001 (by default one is started here)"""
    ray_num_cpus: float = 1
    """CPUs of each experiment on Ray"""
    ray_num_gpus: float = 0
    """GPUs of each experiment on Ray; half a one is 0.5"""

    slurm_job_name: str | None = None
    """the name of the array job (by default the script's)"""
    slurm_gpus_per_task: int = 0
    """GPUs of each task"""
    slurm_total_cpus: int = 1
    """CPUs of each experiment, all its tasks together"""
    slurm_ntasks: int = 1
    """tasks of each experiment"""
    slurm_nodes: int | None = None
    """nodes of each experiment"""
    slurm_template_path: Path | None = None
    """the batch script to fill in (by default benchmark/cleanrl_1gpu.slurm_template); implies `--engine slurm`"""

    aws_job_queue: str = "cleanrl"
    """the queue of AWS Batch; cloud/ has the Terraform that makes it"""
    aws_job_definition: str = "cleanrl"
    """the job definition of AWS Batch, i.e. the container"""
    aws_vcpus: int = 1
    """CPUs of each experiment"""
    aws_memory: int = 4000
    """MiB of memory of each experiment"""
    aws_gpus: int = 0
    """GPUs of each experiment"""


def check(args: Args) -> None:
    """Say what is wrong with the arguments before anything is started."""
    try:
        words = shlex.split(args.command)
    except ValueError as error:
        sys.exit(f"--command: {error}")
    for message, wrong in {
        "--env-ids: name at least one environment": not args.env_ids,
        "--command is empty": not words,
        "--num-seeds must be at least 1": args.num_seeds < 1,
        "--start-seed must not be negative": args.start_seed < 0,
        "--workers must be at least 1; --dry-run only prints the commands": args.workers is not None
        and args.workers < 1,
        "--timeout must be more than 0 seconds": args.timeout is not None and args.timeout <= 0,
        "--retries must not be negative": args.retries < 0,
        "--max-log-mb must be more than 0": args.max_log_mb <= 0,
    }.items():
        if wrong:
            sys.exit(message)
    for flag, instead in {"--env-id": "--env-ids", "--seed": "--start-seed", "--resume": "the same command"}.items():
        if flag in [word.split("=")[0].replace("_", "-") for word in words]:
            sys.exit(f"--command has {flag}: leave it out and use {instead}, the benchmark adds it to each experiment")
    experiment = Experiment(args.command, "", 0)
    if args.engine in ("local", "ray") and not shutil.which(experiment.argv[0]):
        sys.exit(f"--command: there is no program {experiment.argv[0]} here")
    if experiment.script and not Path(experiment.script).exists():
        sys.exit(f"--command: there is no file {experiment.script} in {Path.cwd()}")


def find_tags() -> list[str]:
    """The git tag, the commit and the pull request, as far as they can be known without the network."""
    tags = [git("describe", "--tags"), git("rev-parse", "--short", "HEAD")]
    branch = git("rev-parse", "--abbrev-ref", "HEAD")
    for text, pattern in (
        (os.environ.get("GITHUB_REF", ""), r"^refs/pull/(\d+)/"),
        (git("config", f"branch.{branch}.merge"), r"^refs/pull/(\d+)/"),  # `gh pr checkout` leaves this
        (git("for-each-ref", "--points-at", "HEAD", "--format=%(refname)"), r"/(?:pull|pr)/(\d+)(?:/|$)"),
        (git("log", "-1", "--format=%s"), r"\(#(\d+)\)$|^Merge pull request #(\d+)"),
    ):
        if found := re.search(pattern, text, re.MULTILINE):
            tags.append(f"pr-{found[1] or found[2]}")
            break
    return [tag for tag in tags if tag]


@contextmanager
def counted_stops() -> Iterator[list[int]]:
    """Ctrl+C, SIGTERM and a closed terminal are collected instead of ending this process."""
    stops: list[int] = []
    before = {number: signal.signal(number, lambda number, _: stops.append(number)) for number in STOPS}
    try:
        yield stops
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stamp_of(experiment: Experiment) -> tuple[int, int] | None:
    """Another one whenever the state has been written."""
    try:
        status = (experiment.folder / "state.json").stat()
        return status.st_mtime_ns, status.st_ino
    except OSError:
        return None


def follow(engine: Engine, todo: list[Experiment], states: dict[str, State], view: View, stops: list[int]) -> bool:
    """Until every experiment has ended, or we are told to stop: read the states, tell what has changed.

    Returns whether the script does not take the command, so that there is nothing to go on with.
    """
    pending, obeyed, dropped, next_look = {experiment.name: experiment for experiment in todo}, 0, False, 0.0
    seen, stamps = {name: "waiting" for name in pending}, {}
    while pending:
        if len(stops) > obeyed:
            obeyed += 1
            if engine.detaches:
                return False
            stopping = "stopping: the trainings save their state; once more to kill them"
            view.say(stopping if obeyed == 1 else "killing", "yellow")
            engine.stop()
        before = len(pending)
        alive = engine.alive()
        if time.monotonic() >= next_look or not pending.keys() <= alive:
            next_look = time.monotonic() + engine.interval
            for name, experiment in list(pending.items()):
                if stamp_of(experiment) != stamps.get(name):  # thousands that wait need not be read every second
                    stamps[name] = stamp_of(experiment)
                    states[name] = read_state(experiment)
                state = states[name]
                if name not in alive:
                    del pending[name]
                    if state.status == "running" or (state.status == "waiting" and not obeyed and not dropped):
                        state.status = "interrupted" if obeyed else "failed"
                        state.reason = "" if obeyed else engine.reason(name)
                        write_state(experiment, state)
                if state.status != seen[name]:
                    seen[name] = state.status
                    if not dropped or (state.status != "running" and state.exit_code != USAGE_ERROR):
                        view.event(experiment, state)  # else it was started before, to fail in the same way
                    unstarted = not any(state.run_dir or state.status == "done" for state in states.values())
                    if state.status == "failed" and state.exit_code == USAGE_ERROR and unstarted and not dropped:
                        view.say("the script does not take this command: the others are not started", "bold red")
                        engine.drop_waiting()
                        dropped = True
            engine.start_waiting()  # not before the ends are looked at: they may say that nothing is to be started
            view.refresh()
            if len(pending) < before:  # others have taken their places and will say so in a moment
                next_look = time.monotonic() + 0.2
        if pending and len(pending) == before:
            engine.wait(max(0.0, next_look - time.monotonic()))
    return dropped


def run(args: Args) -> int:
    """Run what is not finished yet; returns the exit code."""
    threads = {
        "local": max(1, len(available_cpus()) // (args.workers or 1)),
        "ray": max(1, int(args.ray_num_cpus)),
        "slurm": max(1, args.slurm_total_cpus // args.slurm_ntasks),
        "aws": args.aws_vcpus,
    }[args.engine]
    limits = {"timeout": args.timeout, "retries": args.retries, "threads": threads, "max_log_mb": args.max_log_mb}
    seeds = range(args.start_seed, args.start_seed + args.num_seeds)
    env_ids = dict.fromkeys(args.env_ids)  # each once
    experiments = [Experiment(args.command, env_id, seed, **limits) for seed in seeds for env_id in env_ids]
    if args.dry_run:
        print(engine_class(args.engine).preview(args, experiments))
        return 0
    if args.auto_tag:
        tags = [*filter(None, os.environ.pop("WANDB_TAGS", "").split(",")), *find_tags()]
        if tags:  # Weights & Biases rejects empty ones, and those longer than this
            os.environ["WANDB_TAGS"] = ",".join(dict.fromkeys(tag[:64] for tag in tags))
    states = {experiment.name: read_state(experiment) for experiment in experiments}
    todo = [experiment for experiment in experiments if args.restart or not states[experiment.name].is_done]
    view = View(experiments, states, args.workers or len(experiments))
    view.say(f"{plural(len(experiments), 'experiment')}: {args.command}")
    if len(todo) < len(experiments):
        finished = plural(len(experiments) - len(todo), "experiment")
        view.say(f"{finished} finished earlier, skipped; --restart runs everything again")
        digests = {states[x.name].script_digest for x in experiments if x not in todo}
        if digests - {None, digest_of(experiments[0].script)}:
            view.say(f"note: {experiments[0].script} has changed since they were run", "yellow")
    for experiment in todo if args.restart else ():
        forget(experiment)
    engine = engine_class(args.engine)(args)
    attached = engine.attach(todo)
    new = [experiment for experiment in todo if experiment.name not in attached]
    for experiment in new:
        state = states[experiment.name] = read_state(experiment)
        if state.is_resumable:
            view.say(f"{experiment.env_id} seed {experiment.seed} resumes from {state.run_dir}")
        if not is_locked(experiment):  # nobody else is about to write it
            state.status = "waiting"
            write_state(experiment, state, durable=False)
    with counted_stops() as stops:
        if new:
            engine.submit(new)
        if attached:
            view.say(f"{plural(len(attached), 'experiment')} submitted earlier, still waiting or running")
        if engine.detaches and not args.wait and todo:
            view.say(engine.farewell())
            return 0
        with view:
            refused = follow(engine, todo, states, view, stops)
    print_summary(view.console, experiments, states, refused)
    if stops:
        if engine.detaches:
            view.say(engine.farewell())
        return 128 + stops[0]
    return int(any(state.status != "done" for state in states.values()))


def main() -> None:
    args = command_line.parse(Args, description=__doc__, prog="python -m cleanrl_utils.benchmark")
    if args.slurm_template_path:
        args.engine = "slurm"
    if args.engine == "local" and args.workers is None:
        args.workers = 1
    check(args)
    try:
        sys.exit(run(args))
    except OSError as error:
        sys.exit(f"cannot go on: {error}")


if __name__ == "__main__":
    main()
