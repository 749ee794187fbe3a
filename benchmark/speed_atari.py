"""Speed of a file on EnvPool against its environments alone: how much of what EnvPool can play does training keep?

python benchmark/speed_atari.py --num-envs 8 --rounds 3 --steps 100000 --flags= --flags=--bf16 --csv speed_atari.csv
python benchmark/speed_atari.py --script ppo_procgen --num-envs 64

Alternates the environments alone, with random actions, stepped as one pool and as several (which the script does),
and the script itself, whose speed is the median of charts/SPS without the first iterations (capture of CUDA graphs).
"""

import argparse
import csv
import importlib
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ROOT = Path(__file__).resolve().parents[1]


def environments_alone(script: str, env_id: str, num_envs: int, num_pools: int, steps: int) -> float:
    size = num_envs // num_pools
    make_envs = importlib.import_module(f"cleanrl.{script}").make_envs
    pools = [make_envs(env_id, size, False, "") for _ in range(num_pools)]
    rng = np.random.default_rng(0)
    for pool in pools:
        num_actions = pool.single_action_space.n
        pool.reset()
        pool.send(rng.integers(0, num_actions, size))
    for timed in (False, True):
        start, count = time.perf_counter(), steps // num_envs if timed else 200
        for _ in range(count):
            for pool in pools:
                pool.recv()
                pool.send(rng.integers(0, num_actions, size))
    elapsed = time.perf_counter() - start
    for pool in pools:
        pool.recv()
    return count * num_envs / elapsed


def training(script: str, env_id: str, num_envs: int, steps: int, flags: list[str]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, ROOT / "cleanrl" / f"{script}.py", "--env-id", env_id]
        command += [f"--num-envs={num_envs}", f"--total-timesteps={steps}"]
        subprocess.run([*command, *flags], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        events = EventAccumulator(str(next(Path(folder, "runs").iterdir())), size_guidance={"scalars": 0}).Reload()
    speeds = [event.value for event in events.Scalars("charts/SPS")]
    return statistics.median(speeds[len(speeds) // 4 :])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--script", default="ppo_atari_envpool", help="a file of cleanrl/ that plays on EnvPool")
    parser.add_argument("--env-id", help="by default that of the script")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100_000, help="of each measurement")
    parser.add_argument("--csv", type=Path, help="append the measurements to this file")
    parser.add_argument(
        "--flags", action="append", help="flags for the script; repeat for other sets, --flags= for none"
    )
    args = parser.parse_args()
    script = args.script.removesuffix(".py")
    env_id = args.env_id or importlib.import_module(f"cleanrl.{script}").Args().env_id
    task = script, env_id, args.num_envs
    contestants = {
        "environments, one pool": partial(environments_alone, *task, 1, args.steps),
        "environments, several pools": partial(environments_alone, *task, max(2, args.num_envs // 32), args.steps),
    }
    for flags in args.flags or [""]:
        contestants[f"{script}.py {flags}".strip()] = partial(training, *task, args.steps, flags.split())
    rows = []
    for number in range(args.rounds):
        for name, measure in contestants.items():
            rows.append((*task[1:], name, number, round(measure())))
            print(*rows[-1], flush=True)
    medians = {name: statistics.median(row[-1] for row in rows if row[2] == name) for name in contestants}
    for name, speed in medians.items():
        shares = [f"{speed / medians[alone]:.0%} of {alone}" for alone in list(medians)[:2]]
        print(f"{name}: {speed:.0f} steps/s, {', '.join(shares)}", flush=True)
    if args.csv:
        header = not args.csv.exists()
        with args.csv.open("a", newline="") as file:
            writer = csv.writer(file)
            writer.writerows([("env_id", "num_envs", "what", "round", "steps_per_second")] * header + rows)


if __name__ == "__main__":
    main()
