"""Speed of the JAX files whose environments are compiled with them, against what they could reach at most.

python benchmark/speed_jax.py --task rejax --rejax-python REJAX_VENV/bin/python   # pip install rejax 'gymnax<1' there
python benchmark/speed_jax.py --task seeds --num-seeds 32                         # ppo_jax.py
python benchmark/speed_jax.py --task robots --num-envs 4096                       # ppo_continuous_action_mjx.py
python benchmark/speed_jax.py --task games --num-envs 8                           # ppo_atari_envpool_xla_jax_scan.py

rejax: both train PPO on CartPole-v1 with the same settings, ours with its logs, pinned to one core. Counted is the time
that the core worked for the process, as reported by the system, so that others who use the machine do not matter.
seeds: the time of the whole command, from its start to its end, for one seed, for all in one program, and for as many
single runs side by side as there are cores. robots and games: environment steps per second with random actions in a
compiled loop, nothing else, and of the training as the file logs it.
"""

import argparse
import csv
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PATHS = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])

REJAX = """
import sys, time
import jax
from rejax import PPO
steps, rounds = int(sys.argv[1]), int(sys.argv[2])
algorithm = PPO.create(
    env="CartPole-v1", agent_kwargs=dict(activation="tanh", hidden_layer_sizes=(64, 64)), num_envs=4, num_steps=128,
    num_epochs=4, num_minibatches=4, learning_rate=2.5e-4, max_grad_norm=0.5, gamma=0.99, gae_lambda=0.95,
    clip_eps=0.2, ent_coef=0.01, vf_coef=0.5, total_timesteps=steps, eval_freq=steps, skip_initial_evaluation=True,
)
algorithm = algorithm.replace(eval_callback=lambda *_: 0.0)
train = jax.jit(algorithm.train)
jax.block_until_ready(train(jax.random.key(0)))
start = time.process_time()
for seed in range(rounds):
    jax.block_until_ready(train(jax.random.key(seed)))
print(rounds * steps / (time.process_time() - start))
"""

# The environments alone. `FILE` is the module of the algorithm file.
ROBOTS = """
import sys, time
from functools import partial
import jax
from cleanrl import ppo_continuous_action_mjx as FILE
env_id, num_envs, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
env = FILE.make_jax_env(env_id).brax_env  # as Brax has it: the file carries less from step to step
states = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), num_envs))

@partial(jax.jit, donate_argnums=0)
def play(states, key):
    def step(states, key):
        actions = jax.random.uniform(key, (num_envs, env.action_size), minval=-1, maxval=1)
        states = jax.vmap(env.step)(states, actions)
        return states, states.reward.sum()
    return jax.lax.scan(step, states, jax.random.split(key, 16))

count = max(steps // (16 * num_envs), 1)
for timed in (False, True):
    start = time.perf_counter()
    for number in range(count if timed else 2):
        states, rewards = play(states, jax.random.key(number))
    jax.block_until_ready(rewards)
print(count * 16 * num_envs / (time.perf_counter() - start))
"""
GAMES = """
import sys, time
import jax, jax.numpy as jnp
from cleanrl import ppo_atari_envpool_xla_jax_scan as FILE
env_id, num_envs, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
pool = FILE.make_envs(env_id, num_envs, False, "")
handle, _, _, step = pool.xla()
num_actions = int(pool.single_action_space.n)
pool.reset()

@jax.jit
def play(handle, key):
    def one(handle, key):
        actions = jax.random.randint(key, (num_envs,), 0, num_actions)
        handle, outcome = step(handle, actions)
        return handle, jnp.abs(outcome[1]).max()
    return jax.lax.scan(one, handle, jax.random.split(key, 128))

count = max(steps // (128 * num_envs), 1)
for timed in (False, True):
    start = time.perf_counter()
    for number in range(count if timed else 1):
        handle, rewards = play(handle, jax.random.key(number))
        if rewards.max() > 1:  # EnvPool clips them
            sys.exit(f"a reward of {rewards.max()}: EnvPool's XLA interface fails on this device")
print(count * 128 * num_envs / (time.perf_counter() - start))
"""


def run(command: list, folder: str, core: int | None = None) -> str:
    """What a command prints. An error of it ends this program."""
    pin = ["taskset", "-c", str(core)] if core is not None else []
    env = os.environ | {"PYTHONPATH": PATHS, "PYTHONUNBUFFERED": "1"}
    done = subprocess.run([*pin, *map(str, command)], cwd=folder, env=env, text=True, capture_output=True)
    if done.returncode:
        reason = (done.stderr.strip() or "it printed nothing").splitlines()[-1]
        sys.exit(f"{Path(command[0]).name} {command[1]} failed: {reason}")
    return done.stdout


def script(name: str, *flags: object) -> list:
    return [sys.executable, ROOT / "cleanrl" / f"{name}.py", "--checkpoint-frequency", 0, *flags]


def last_number(output: str) -> float:
    return float(output.split()[-1])


def alone(program: str, args: argparse.Namespace) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return last_number(run([sys.executable, "-c", program, args.env_id, args.num_envs, args.steps], folder))


def rejax(args: argparse.Namespace) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return last_number(run([args.rejax_python.absolute(), "-c", REJAX, args.steps, 4], folder, args.core))


def ppo_jax_on_one_core(args: argparse.Namespace) -> float:
    """Steps per second of work, from the second line that it prints to the last one."""
    import psutil

    command = script("ppo_jax", "--no-cuda", "--total-timesteps", 4 * args.steps)
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            ["taskset", "-c", str(args.core), *map(str, command)],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": PATHS, "PYTHONUNBUFFERED": "1"},
            text=True,
            stdout=subprocess.PIPE,
        )
        points = []
        for line in process.stdout:
            if found := re.search(r"global_step=(\d+)", line):
                used = psutil.Process(process.pid).cpu_times()
                points.append((int(found[1]), used.user + used.system))
        if process.wait():
            sys.exit("ppo_jax.py failed")
    if len(points) < 3:
        sys.exit("ppo_jax.py has printed too few lines to measure: raise --steps")
    (first_step, first_time), (last_step, last_time) = points[1], points[-1]
    return (last_step - first_step) / (last_time - first_time)


def training(name: str, args: argparse.Namespace) -> float:
    """The median of charts/SPS without its first quarter."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    flags = ["--env-id", args.env_id, "--num-envs", args.num_envs, "--total-timesteps", args.steps]
    with tempfile.TemporaryDirectory() as folder:
        run(script(name, *flags, *args.flags.split()), folder)
        events = EventAccumulator(str(next(Path(folder, "runs").iterdir())), size_guidance={"scalars": 0}).Reload()
    speeds = [event.value for event in events.Scalars("charts/SPS")]
    return statistics.median(speeds[len(speeds) // 4 :])


def seeds_per_hour(num_seeds: int, num_processes: int, args: argparse.Namespace) -> float:
    """Whole trainings: how many seeds are through in an hour, start and compilation included."""
    with tempfile.TemporaryDirectory() as folder:
        env = os.environ | {"PYTHONPATH": PATHS, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        start, processes = time.perf_counter(), []
        for number in range(num_processes):
            flags = ["--total-timesteps", args.steps, "--num-seeds", num_seeds, "--seed", 1 + number * num_seeds]
            command = [str(x) for x in script("ppo_jax", *flags)]
            processes.append(subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.DEVNULL))
        failed = [process for process in processes if process.wait()]
        if failed:
            sys.exit(f"{len(failed)} of {num_processes} runs of ppo_jax.py failed")
        return 3600 * num_seeds * num_processes / (time.perf_counter() - start)


def contestants(args: argparse.Namespace) -> tuple[str, dict[str, Callable[[], float]]]:
    """The unit of the task's figures, and how each of them is measured."""
    if args.task == "rejax":
        return "steps per second of one core", {
            "rejax": partial(rejax, args),
            "ppo_jax.py": partial(ppo_jax_on_one_core, args),
        }
    if args.task == "seeds":
        processes = len(os.sched_getaffinity(0))
        return "seeds per hour", {
            "one seed": partial(seeds_per_hour, 1, 1, args),
            f"{processes} single runs side by side": partial(seeds_per_hour, 1, processes, args),
            f"--num-seeds {args.num_seeds}": partial(seeds_per_hour, args.num_seeds, 1, args),
        }
    names = {"robots": "ppo_continuous_action_mjx", "games": "ppo_atari_envpool_xla_jax_scan"}
    name, program = names[args.task], {"robots": ROBOTS, "games": GAMES}[args.task]
    label = f"{name}.py {args.flags}".strip()
    return "steps/s", {
        f"{args.env_id} alone": partial(alone, program, args),
        label: partial(training, name, args),
    }


DEFAULTS = {
    "rejax": {"env_id": "CartPole-v1", "num_envs": 4, "steps": 512 * 1000},
    "seeds": {"env_id": "CartPole-v1", "num_envs": 4, "steps": 500_000},
    "robots": {"env_id": "ant", "num_envs": 4096, "steps": 10_000_000},
    "games": {"env_id": "Pong-v5", "num_envs": 8, "steps": 100_000},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=DEFAULTS, default="rejax")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--env-id", help="the robot or the game")
    parser.add_argument("--num-envs", type=int)
    parser.add_argument("--steps", type=int, help="environment steps of each measurement")
    parser.add_argument("--num-seeds", type=int, default=32)
    parser.add_argument("--flags", default="", help="further flags for the file: --flags='--num-steps 32'")
    parser.add_argument("--core", type=int, default=1, help="of the task rejax")
    parser.add_argument("--rejax-python", type=Path, help="the python of an environment with rejax")
    parser.add_argument("--csv", type=Path, help="append the measurements to this file")
    args = parser.parse_args()
    if args.task == "rejax" and not args.rejax_python:
        sys.exit("--task rejax: make an environment with `pip install rejax` and name its python with --rejax-python")
    if args.rejax_python and not args.rejax_python.exists():
        sys.exit(f"--rejax-python {args.rejax_python}: no such file")
    if args.rounds < 1:
        sys.exit("--rounds must be at least 1")
    for name, value in DEFAULTS[args.task].items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    unit, measured = contestants(args)
    rows = []
    for number in range(1, args.rounds + 1):
        for name, measure in measured.items():
            rows.append([args.task, name, args.env_id, args.num_envs, number, round(measure(), 1)])
            print(f"round {number}  {name:<45} {rows[-1][-1]:12,.0f} {unit}", flush=True)
    medians = {name: statistics.median(row[-1] for row in rows if row[1] == name) for name in measured}
    base = next(iter(medians.values()))
    print(f"\n| | {unit} (median of {args.rounds}) | of the first |\n|---|---|---|")
    for name, median in medians.items():
        print(f"| {name} | {median:,.0f} | {median / base:.2f} |")
    if args.csv:
        is_new = not args.csv.exists()
        args.csv.parent.mkdir(parents=True, exist_ok=True)
        with open(args.csv, "a", newline="") as file:
            lines = csv.writer(file)
            if is_new:
                lines.writerow(["task", "contestant", "env_id", "num_envs", "round", unit])
            lines.writerows(rows)


if __name__ == "__main__":
    main()
