"""A training without training, for the tests of the tools around it: it keeps the promises an algorithm file makes to
`cleanrl_utils.benchmark` (flags, progress lines, run folder, checkpoints, `--resume`) and starts at once.

Its environments are ways to go wrong. `history.txt` tells who ran when, and whether two of the same ran at once.
"""

import argparse
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--env-id", default="ok")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--steps", type=int, default=5)
parser.add_argument("--delay", type=float, default=0.02)
parser.add_argument("--gigabytes", type=float, default=1.0)
parser.add_argument("--quiet", action="store_true")
parser.add_argument("--resume")
args = parser.parse_args()


def tell(*words):
    with open("history.txt", "a") as file:  # short lines are appended whole
        file.write(" ".join(map(str, (args.env_id, args.seed, *words))) + "\n")


alone = open(f"{args.env_id}-{args.seed}.alone", "w")  # noqa: SIM115 (held until the end)
try:
    fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    tell("overlap")

if args.env_id == "exit1":
    sys.exit("this environment cannot be made")
if args.env_id == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if args.env_id == "family":  # a child that ignores Ctrl+C
    child = [sys.executable, "-c", "import signal, time; signal.signal(2, signal.SIG_IGN); time.sleep(60)"]
    tell("child", subprocess.Popen(child).pid)
if args.env_id == "stubborn":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if args.env_id in ("hang", "family", "stubborn"):
    print("hanging", flush=True)
    time.sleep(60)
if args.env_id == "flood":
    print("the flood begins", flush=True)
    megabyte = b"all work and no play makes a very long log\n" * 23_000
    for _ in range(int(args.gigabytes * 1000)):
        os.write(1, megabyte)
    print("the flood has ended")

run_dir = args.resume or f"runs/{args.env_id}__stand_in__{args.seed}__{time.time_ns()}"
step = int(Path(run_dir, "checkpoint.pt").read_text()) if args.resume else 0
Path(run_dir).mkdir(parents=True, exist_ok=True)
Path(run_dir, "args.json").write_text(json.dumps({"total_timesteps": args.steps}))
if "CLEANRL_RUN_DIR_FILE" in os.environ:
    Path(os.environ["CLEANRL_RUN_DIR_FILE"]).write_text(run_dir)
variables = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "WANDB_TAGS", "WANDB_API_KEY")
Path(run_dir, "surroundings.json").write_text(
    json.dumps(
        {name: os.environ.get(name) for name in variables}
        | {"cpus": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None}
    )
)
if args.env_id == "early":  # fails before its first checkpoint, once
    Path(run_dir, "events.out.tfevents.1.host").write_text("a curve")
    if not list(Path("runs").glob("benchmark/early*/abandoned/*")):
        sys.exit("too early")
tell("start", step)
while step < args.steps:
    time.sleep(args.delay)
    step += 1
    if not args.quiet:
        print(f"global_step={step}")
    progress = {"step": step, "total_steps": args.steps, "sps": 1 / args.delay}
    progress["episodic_return"] = step * 10 + args.seed
    Path(run_dir, "progress.tmp").write_text(json.dumps(progress))
    os.replace(Path(run_dir, "progress.tmp"), Path(run_dir, "progress.json"))
    if args.env_id == "flaky" and step == args.steps // 2 and not args.resume:
        sys.exit("this happens once")
    Path(run_dir, "checkpoint.tmp").write_text(str(step))
    os.replace(Path(run_dir, "checkpoint.tmp"), Path(run_dir, "checkpoint.pt"))
tell("end", step)
