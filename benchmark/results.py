"""From runs to small result files, and from those to tables and plots.

Usage:
    python benchmark/results.py collect benchmark/results/ppo.csv RUN_DIR...
    python benchmark/results.py table benchmark/results/ppo.csv
    python benchmark/results.py plot benchmark/results/ppo.csv docs/assets/ppo.png      (pip install -e ".[bench]")

A result file has a row for every stretch of a run (`POINTS` of them): algorithm, env_id, seed, the last step of the
stretch, seconds since the start, the mean return of the episodes that ended in it and their number; the mean return of
the last 100 episodes up to there, which at the end is the score; and the commit, PyTorch and machine of the run.
"""

import csv
import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import tyro
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

POINTS = 50
COLUMNS = ["algorithm", "env_id", "seed", "step", "seconds", "episodic_return", "episodes", "last_100_return"]
COLUMNS += ["commit", "torch", "machine"]


def read_run(run_dir: Path, commit: str, torch: str, machine: str) -> list[dict]:
    """The rows of one run."""
    args = json.loads((run_dir / "args.json").read_text())
    events = EventAccumulator(str(run_dir), size_guidance={"scalars": 0}).Reload()
    iterations = events.Scalars("charts/SPS")
    episodes = events.Scalars("charts/episodic_return")
    facts = {"algorithm": args["exp_name"], "env_id": args["env_id"], "seed": args["seed"]}
    facts |= {"commit": commit, "torch": torch, "machine": machine}
    rows = []
    for stretch in np.array_split(np.arange(len(iterations)), POINTS):
        first = iterations[stretch[0] - 1].step if stretch[0] else 0
        last = iterations[stretch[-1]]
        inside = [x.value for x in episodes if first < x.step <= last.step]
        recent = [x.value for x in episodes if x.step <= last.step][-100:]
        rows.append(
            facts
            | {
                "step": last.step,
                "seconds": round(last.wall_time - iterations[0].wall_time, 1),
                "episodic_return": round(float(np.mean(inside)), 3) if inside else "",
                "episodes": len(inside),
                "last_100_return": round(float(np.mean(recent)), 3) if recent else "",
            }
        )
    return rows


def read_results(result_file: Path) -> dict[tuple[str, str], dict[str, list[dict]]]:
    """Rows by (algorithm, env_id) and seed."""
    runs: dict = {}
    with open(result_file) as file:
        for row in csv.DictReader(file):
            runs.setdefault((row["algorithm"], row["env_id"]), {}).setdefault(row["seed"], []).append(row)
    return runs


def head() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent).stdout.strip()


def collect(
    result_file: Path,
    run_dirs: list[Path],
    commit: str = head(),  # noqa: B008
    torch: str = version("torch"),  # noqa: B008
    machine: str = f"{platform.machine()}, {os.cpu_count()} cores",
) -> None:
    """Write a result file from finished runs.

    Args:
        result_file: the CSV file
        run_dirs: the folders of the runs
        commit: what was run
        torch: the PyTorch it was run with
        machine: where it was run
    """
    with open(result_file, "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for run_dir in sorted(run_dirs):
            writer.writerows(read_run(run_dir, commit, torch, machine))


def table(result_file: Path) -> None:
    """Print the scores: mean and standard deviation over seeds of the last 100 episodes' mean return."""
    print("| algorithm | environment | steps | seeds | score | minutes |\n|---|---|---|---|---|---|")
    for (algorithm, env_id), seeds in read_results(result_file).items():
        scores = [float(rows[-1]["last_100_return"]) for rows in seeds.values()]
        minutes = np.mean([float(rows[-1]["seconds"]) for rows in seeds.values()]) / 60
        steps = next(iter(seeds.values()))[-1]["step"]
        score = f"{np.mean(scores):.1f} ± {np.std(scores):.1f}"
        print(f"| {algorithm} | {env_id} | {steps} | {len(scores)} | {score} | {minutes:.1f} |")


def plot(result_file: Path, image: Path) -> None:
    """Draw the learning curves: each seed thin, their mean thick."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    results = read_results(result_file)
    figure, axes = plt.subplots(1, len(results), figsize=(3.6 * len(results), 2.8), squeeze=False)
    for axis, ((algorithm, env_id), seeds) in zip(axes[0], results.items()):
        curves = []
        for rows in seeds.values():
            steps = [int(row["step"]) / 1000 for row in rows]
            curves.append([float(row["episodic_return"] or "nan") for row in rows])
            axis.plot(steps, curves[-1], color="#4477aa", alpha=0.35, linewidth=1)
        axis.plot(steps, np.nanmean(curves, 0), color="#4477aa", linewidth=2)
        axis.set_title(f"{algorithm}\n{env_id}", fontsize=9)
        axis.set_xlabel("thousand steps")
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("episodic return")
    figure.tight_layout()
    figure.savefig(image, dpi=150)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.argv.append("--help")
    positional = tyro.conf.configure(tyro.conf.PositionalRequiredArgs)
    commands = {"collect": positional(collect), "table": positional(table), "plot": positional(plot)}
    tyro.extras.subcommand_cli_from_dict(commands)
