"""From runs to small result files, and from those to the tables and plots of the documentation.

Usage:
    python benchmark/results.py collect benchmark/results/ppo.csv RUN_DIR...
    python benchmark/results.py table benchmark/results/ppo.csv
    python benchmark/results.py plot benchmark/results/ppo.csv docs/assets/ppo.png      (pip install -e ".[rlops]")
    python benchmark/results.py docs            # every generated table, and every plot whose results have changed

benchmark/results/README.md describes the files. A page holds a generated table between two lines:

    <!-- results: ppo.csv with published, minutes -->
    <!-- end of results -->

A row is an environment, a column an algorithm; several files make several columns. `published` (the scores of the
published CleanRL) and `minutes` are further columns. More than three algorithms on a single environment are rows.
"""

import csv
import hashlib
import math
import re
import struct
import sys
from dataclasses import replace
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import numpy as np
import tyro

from cleanrl_utils.rlops.runs import RETURN, Run, append_results, read_folder, read_results
from cleanrl_utils.words import plural

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmark" / "results"
EQUAL = 0.02  # the share by which steps may differ from the published ones
MARKED = re.compile(r"(<!-- results: (.+?)(?: with (.+?))? -->\n).*?(<!-- end of results -->)", re.DOTALL)


def collect(result_file: Path, run_dirs: list[Path], versions: str = "", hardware: str = "") -> None:
    """Add runs to a result file, each once.

    Args:
        result_file: the CSV file
        run_dirs: the folders of the runs
        versions: what they were run with, for runs that do not know it
        hardware: where they were run, for runs that do not know it
    """
    runs = [run for run_dir in run_dirs if (run := read_folder(run_dir, lambda line: print(line, file=sys.stderr)))]
    runs = [replace(run, versions=run.versions or versions, hardware=run.hardware or hardware) for run in runs]
    for run in runs:
        if RETURN not in run.curves:  # no episode has ended yet, or two players have a return each
            print(f"{run.name}: logs no {RETURN}; left out", file=sys.stderr)
    runs = [run for run in runs if RETURN in run.curves]
    if run_dirs and not runs:
        raise ValueError("there is no run to add")
    added, replaced = append_results(result_file, runs)
    there = len(run_dirs) - added - replaced
    print(f"{result_file}: {plural(added, 'run')} added, {replaced} replaced, {there} there already")


def span(numbers: list[int]) -> str:
    """1-3 for 1, 2, 3."""
    numbers = sorted(numbers)
    whole = numbers == list(range(numbers[0], numbers[-1] + 1)) and len(numbers) > 1
    return f"{numbers[0]}-{numbers[-1]}" if whole else ", ".join(map(str, numbers))


def by_budget(runs: list[Run]) -> list[list[Run]]:
    """Groups of runs of about equal length, the shortest first: in a group, none is half as long again as another."""
    groups: list[list[int]] = []
    for i in sorted(range(len(runs)), key=lambda i: runs[i].steps):
        if not groups or runs[i].steps > 1.5 * runs[groups[-1][0]].steps:
            groups.append([])
        groups[-1].append(i)
    return [[runs[i] for i in sorted(group)] for group in groups]


def read_published() -> dict[tuple[str, str], str]:
    with open(RESULTS / "published.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    published = {}
    for row in rows:  # as decimals: a published -194.95 is -195.0, in floating point -194.9
        mean, *std = (Decimal(x).quantize(Decimal("0.1"), ROUND_HALF_UP) for x in (row["mean"], row["std"]) if x)
        published[row["algorithm"], row["env_id"]] = " ± ".join(map(str, (mean, *std)))  # some without their spread
    return published


def read_published_steps() -> dict[tuple[str, str], int]:
    """After how many steps the published scores were measured, where that is known."""
    with open(RESULTS / "published.csv", newline="") as file:
        return {(row["algorithm"], row["env_id"]): int(row["steps"]) for row in csv.DictReader(file) if row["steps"]}


def rounded(steps: int) -> str:
    return f"{round(steps / 1e6, 2):g}M" if steps >= 995_000 else f"{steps / 1e3:.0f}k" if steps >= 1000 else str(steps)


def make_table(result_files: list[Path], *extras: str) -> list[str]:
    """Mean and standard deviation over seeds of the mean return of the last 100 episodes."""
    tasks: dict[str, list[Run]] = {}
    for run in (run for file in result_files for run in read_results(file)):
        tasks.setdefault(run.env_id, []).append(run)
    rows = []  # each of a task and a budget, with the runs of each algorithm
    for runs in tasks.values():
        for group in by_budget(runs):
            rows.append({})
            for run in group:
                rows[-1].setdefault(run.algorithm, []).append(run)
    algorithms = dict.fromkeys(run.algorithm for runs in tasks.values() for run in runs)
    published, published_steps = read_published(), read_published_steps()
    head = ["environment", "steps"]
    common = {}  # the seeds of an algorithm, where they are the same in all rows
    for algorithm in algorithms:
        there = [row[algorithm] for row in rows if algorithm in row]
        seeds = {span([run.seed for run in runs]) for runs in there}
        common[algorithm] = len(seeds) == 1
        plural = "seeds" if len(there[0]) > 1 else "seed"
        head.append(f"`{algorithm}.py`" + (f", {plural} {seeds.pop()}" if len(seeds) == 1 else ""))
    head += [{"published": "published CleanRL", "minutes": "minutes per run"}[x] for x in extras]
    table = [head]
    for here in rows:
        env_id = next(iter(here.values()))[0].env_id
        steps = sorted(run.steps for runs in here.values() for run in runs)
        row = [env_id, " to ".join(dict.fromkeys(map(rounded, (steps[0], steps[-1]))))]
        for algorithm in algorithms:
            runs = here.get(algorithm, [])
            scores = [run.score(RETURN, 100) for run in runs]
            score = (
                f"{np.mean(scores):.1f} ± {np.std(scores):.1f}"
                if len(runs) > 1
                else "".join(f"{x:.1f}" for x in scores)
            )
            seeds = f" ({len(runs)} seed{'s' if len(runs) > 1 else ''})" if runs and not common[algorithm] else ""
            row.append(score + seeds)
        for extra in extras:
            if extra == "published":
                task = next(iter(algorithms)), env_id
                row.append(published.get(task, "none"))
                wanted = published_steps.get(task, steps[0])
                if any(abs(x / wanted - 1) > EQUAL for x in steps):
                    row[-1] += f" after {rounded(wanted)}"
            elif extra == "minutes":
                row.append(f"{np.mean([run.seconds for runs in here.values() for run in runs]) / 60:.1f}")
        table.append(row)
    if len(rows) == 1 and len(algorithms) > 3:  # one line is as wide as its names: a list of them is easier to read
        table = [["", ", ".join(row[:2])], *map(list, zip(head[2:], row[2:]))]
    lines = ["| " + " | ".join(cells) + " |" for cells in table]
    return [lines[0], "|" + "---|" * len(table[0]), *lines[1:]]


def table(result_file: Path) -> None:
    """Print the scores."""
    print("\n".join(make_table([result_file], "minutes")))


def digest(result_file: Path) -> str:
    return hashlib.sha256(result_file.read_bytes()).hexdigest()


def plot(result_file: Path, image: Path) -> None:
    """Draw the learning curves: each seed thin, their mean thick."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    tasks: dict[tuple[str, str], list[Run]] = {}
    for run in read_results(result_file):
        tasks.setdefault((run.algorithm, run.env_id), []).append(run)
    panels = [(*task, group) for task, runs in tasks.items() for group in by_budget(runs)]
    columns = min(len(panels), 4)
    rows = math.ceil(len(panels) / columns)
    figure, axes = plt.subplots(rows, columns, figsize=(3.6 * columns, 2.8 * rows), squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    for axis, (algorithm, env_id, runs) in zip(axes.flat, panels):
        curves = [run.curves[RETURN] for run in runs]
        is_long = max(curve.steps[-1] for curve in curves) > 2_000_000
        unit = 1_000_000 if is_long else 1_000
        for curve in curves:
            axis.plot(curve.steps / unit, curve.values, color="#4477aa", alpha=0.35, linewidth=1)
        steps = curves[0].steps[curves[0].steps <= min(curve.steps[-1] for curve in curves)]
        mean = np.mean([np.interp(steps, curve.steps, curve.values) for curve in curves], axis=0)
        axis.plot(steps / unit, mean, color="#4477aa", linewidth=2)
        axis.set_title(f"{algorithm}\n{env_id}", fontsize=9)
        axis.set_xlabel("million steps" if is_long else "thousand steps")
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[:, 0]:
        axis.set_ylabel("episodic return")
    figure.tight_layout()
    figure.savefig(image, dpi=150, metadata={"Source": digest(result_file)})


def source_of(image: Path) -> str:
    """The digest of the results that a plot was drawn from, out of its text chunks."""
    data, position = image.read_bytes(), 8
    while position + 8 <= len(data):
        (length,), kind = struct.unpack_from(">I", data, position), data[position + 4 : position + 8]
        name, _, text = data[position + 8 : position + 8 + length].partition(b"\0")
        if kind == b"tEXt" and name == b"Source":
            return text.decode()
        position += 12 + length
    return ""


def plots() -> list[tuple[Path, Path]]:
    """Result files and the images of the documentation that show them."""
    pairs = [(file, ROOT / "docs" / "assets" / f"{file.stem}.png") for file in sorted(RESULTS.glob("*.csv"))]
    return [(file, image) for file, image in pairs if image.exists()]


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]


def regenerated(page: str) -> str:
    """A page with its tables made anew."""

    def replace_table(match: re.Match) -> str:
        files = [RESULTS / name for name in match[2].split(", ")]
        extras = match[3].split(", ") if match[3] else []
        return "\n".join([match[1], *make_table(files, *extras), "", match[4]])

    return MARKED.sub(replace_table, page)


def docs() -> None:
    """Bring the tables and plots of the documentation up to date with the result files."""
    for page in pages():
        before = page.read_text()
        if (after := regenerated(before)) != before:
            page.write_text(after)
            print(f"{page.relative_to(ROOT)}: tables made anew")
    for result_file, image in plots():
        if source_of(image) != digest(result_file):
            plot(result_file, image)
            print(f"{image.relative_to(ROOT)}: drawn anew")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.argv.append("--help")
    positional = tyro.conf.configure(tyro.conf.PositionalRequiredArgs)
    commands = {"collect": positional(collect), "table": positional(table), "plot": positional(plot), "docs": docs}
    try:
        tyro.extras.subcommand_cli_from_dict(commands)
    except (ValueError, OSError) as error:
        sys.exit(f"results: {error}")
    except ImportError as error:
        sys.exit(f'results: {error}: pip install "cleanrl[rlops]"')
