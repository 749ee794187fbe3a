"""Steps per second of our files against their peers, side by side.

Usage:
    pip install -e ".[bench]"
    python benchmark/speed.py [--rounds 5] [--steps 60000] [--core 1] [--csv benchmark/results/speed.csv]

Every contestant trains PPO on CartPole-v1 with the same hyper-parameters, 4 environments, logging to TensorBoard, in a
process of its own pinned to one core. Rounds alternate between the contestants, so that a busy moment of the machine
hits them alike. Speed is read from the wall-clock times of each contestant's own TensorBoard events, between
`--warm-up` steps (start-up and compilation are over) and the end. Reported: median over rounds, and its ratio to
Stable-Baselines3's.
"""

import csv
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import tyro
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ROOT = Path(__file__).resolve().parents[1]

PEER = """
import sys, torch
torch.set_num_threads(1)
from {module} import PPO
from stable_baselines3.common.env_util import make_vec_env
settings = dict(n_steps=128, batch_size=128, n_epochs=4, learning_rate=lambda left: 2.5e-4 * left, gamma=0.99,
                gae_lambda=0.95, clip_range=0.2, ent_coef=0.01, vf_coef=0.5, max_grad_norm=0.5, seed=1)
model = PPO("MlpPolicy", make_vec_env("CartPole-v1", 4, seed=1), **settings, **{extra}, device="cpu",
            tensorboard_log=sys.argv[1])
model.learn(int(sys.argv[2]))
"""
# SBX does not offer the clipping of the value loss, a saving of one maximum per minibatch.
PEERS = {
    "stable-baselines3": PEER.format(module="stable_baselines3", extra={"clip_range_vf": 0.2}),
    "sbx": PEER.format(module="sbx", extra={}),
}
OURS = {"ppo.py": [], "ppo.py --compile": ["--compile"]}


def train(name: str, steps: int, folder: Path) -> list[str]:
    """The command of a contestant."""
    if name in PEERS:
        return [sys.executable, "-c", PEERS[name], str(folder), str(steps)]
    return [sys.executable, str(ROOT / "cleanrl" / "ppo.py"), "--no-cuda", "--total-timesteps", str(steps), *OURS[name]]


def measure(name: str, steps: int, warm_up: int, core: int | None) -> float:
    """Train once; steps per second after the warm-up."""
    with tempfile.TemporaryDirectory() as folder:
        pin = ["taskset", "-c", str(core)] if core is not None else []
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        command = pin + train(name, steps, Path(folder))
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
        logs = next(Path(folder).rglob("events.out.tfevents.*")).parent
        events = EventAccumulator(str(logs), size_guidance={"scalars": 0}).Reload()
        tag = next(tag for tag in events.Tags()["scalars"] if tag.endswith("/learning_rate"))
        points = [(x.step, x.wall_time) for x in events.Scalars(tag) if x.step >= warm_up]
    (first_step, first_time), (last_step, last_time) = points[0], points[-1]
    return (last_step - first_step) / (last_time - first_time)


def main(
    rounds: int = 5, steps: int = 60_000, warm_up: int = 20_000, core: int | None = 1, csv_file: Path | None = None
) -> None:
    """Compare the speed of training.

    Args:
        rounds: how often each contestant trains
        steps: environment steps of each training
        warm_up: steps at the start that do not count
        core: the core all are pinned to (Linux); None: not pinned
        csv_file: where to write every single measurement
    """
    core = core if platform.system() == "Linux" else None
    speeds: dict[str, list[float]] = {name: [] for name in [*PEERS, *OURS]}
    for number in range(1, rounds + 1):
        for name in speeds:
            speeds[name].append(measure(name, steps, warm_up, core))
            print(f"round {number}  {name:<20} {speeds[name][-1]:8.0f} steps/s", flush=True)
    base = statistics.median(speeds["stable-baselines3"])
    print(f"\n| PPO, CartPole-v1, 4 environments, one core | steps/s (median of {rounds}) | x stable-baselines3 |")
    print("|---|---|---|")
    for name, values in speeds.items():
        print(f"| {name} | {statistics.median(values):.0f} | {statistics.median(values) / base:.2f} |")
    if csv_file:
        csv_file.parent.mkdir(parents=True, exist_ok=True)
        with open(csv_file, "w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["contestant", "round", "steps_per_second"])
            rows.writerows([name, i + 1, round(x, 1)] for name, values in speeds.items() for i, x in enumerate(values))


if __name__ == "__main__":
    tyro.cli(main)
