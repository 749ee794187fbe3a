"""The picture at the top of the README: several algorithms learning, drawn from the result files.

Usage:
    python benchmark/overview.py        # writes docs/assets/overview.png      (pip install -e ".[rlops]")

A line is the mean over the seeds of a file, a band reaches from its lowest to its highest seed.
"""

import hashlib
from pathlib import Path

import numpy as np
from results import RESULTS, ROOT, by_budget

from cleanrl_utils.rlops.runs import RETURN, Run, read_results

IMAGE = ROOT / "docs" / "assets" / "overview.png"
MUJOCO = " ".join(f"{name}_continuous_action" for name in ("ppo", "rpo", "ddpg", "td3", "sac"))
# The algorithms shown on an environment. A result file has the name of its algorithm unless OTHER_FILES says otherwise.
PANELS = {
    "HalfCheetah-v4": MUJOCO,
    "Walker2d-v4": MUJOCO,
    "Hopper-v4": MUJOCO,
    "Pong-v5": "ppo_atari_envpool_xla_jax_scan",
    "CartPole-v1": "ppo dqn c51 pqn",
    "Taxi-v4": "ppo ppo_action_mask",
    "MiniGrid-MemoryS7-v0": "ppo_lstm_memory ppo_trxl",
    "Breakout-v5": "ppo_atari_envpool_xla_jax_scan",
}
MILLIONS = {"Pong-v5", "Breakout-v5"}  # of steps; the others are drawn in thousands
CROWDED = {"Walker2d-v4", "Hopper-v4"}  # room for the legend is made above the curves
OTHER_FILES = {("ppo", "Taxi-v4"): "ppo_action_mask", ("ppo_lstm_memory", "MiniGrid-MemoryS7-v0"): "ppo_trxl"}
NAMES = {"ppo_lstm_memory": "PPO, LSTM", "ppo_trxl": "PPO, Transformer-XL", "ppo_action_mask": "PPO, action mask"}
NAMES |= {"ppo_atari_envpool_xla_jax_scan": "PPO in JAX"}
COLOURS = {"ppo": "#4477aa", "rpo": "#66ccee", "ddpg": "#ccbb44", "td3": "#ee6677", "sac": "#aa3377"}
COLOURS |= {"dqn": "#ee6677", "c51": "#ccbb44", "pqn": "#228833", "ppo_action_mask": "#228833", "ppo_trxl": "#aa3377"}


def result_file(algorithm: str, env_id: str) -> Path:
    return RESULTS / f"{OTHER_FILES.get((algorithm, env_id), algorithm)}.csv"


def digest() -> str:
    """Of all results that the picture shows: a test asks whether it is up to date."""
    files = {
        result_file(algorithm, env_id) for env_id, algorithms in PANELS.items() for algorithm in algorithms.split()
    }
    return hashlib.sha256(b"".join(file.read_bytes() for file in sorted(files))).hexdigest()


def runs_of(algorithm: str, env_id: str) -> list[Run]:
    runs = [x for x in read_results(result_file(algorithm, env_id)) if (x.algorithm, x.env_id) == (algorithm, env_id)]
    return max(by_budget(runs)[::-1], key=len)  # of the budget with the most seeds, the longest of several


def draw_curve(axis, algorithm: str, env_id: str) -> None:
    runs = runs_of(algorithm, env_id)
    curves = [run.curves[RETURN] for run in runs]
    steps = np.linspace(max(curve.steps[0] for curve in curves), min(curve.steps[-1] for curve in curves), 50)
    values = np.array([np.interp(steps, curve.steps, curve.values) for curve in curves])
    short = algorithm.removesuffix("_continuous_action")
    label = f"{NAMES.get(algorithm, short.upper())} ({len(runs)})"
    colour = COLOURS.get(short, COLOURS["ppo"])
    steps = steps / (1_000_000 if env_id in MILLIONS else 1000)
    axis.plot(steps, values.mean(axis=0), color=colour, linewidth=1.8, label=label)
    axis.fill_between(steps, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, linewidth=0)


def draw() -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 4, figsize=(14, 6.2))
    for axis, (env_id, algorithms) in zip(axes.flat, PANELS.items()):
        for algorithm in algorithms.split():
            draw_curve(axis, algorithm, env_id)
        axis.set_title(env_id, fontsize=10)
        if env_id in CROWDED:
            axis.set_ylim(top=1.35 * axis.get_ylim()[1])
        axis.legend(fontsize=7.5, frameon=False, ncols=2 if env_id in CROWDED else 1)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
        axis.set_xlabel("million steps" if env_id in MILLIONS else "thousand steps", fontsize=9)
    for axis in axes[:, 0]:
        axis.set_ylabel("episodic return", fontsize=9)
    figure.tight_layout()
    figure.savefig(IMAGE, dpi=120, facecolor="white", metadata={"Source": digest()})
    print(f"{IMAGE.relative_to(ROOT)}: drawn")


if __name__ == "__main__":
    draw()
