"""Runs from where they are: folders with TensorBoard events, or result files in git."""

import csv
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from tqdm import tqdm

from cleanrl_utils import provenance
from cleanrl_utils.commands import command_again
from cleanrl_utils.files import replacing
from cleanrl_utils.progress import final_step
from cleanrl_utils.rlops.events import Curve, read_scalars
from cleanrl_utils.rlops.videos import find_videos
from cleanrl_utils.words import plural

RETURN = "charts/episodic_return"
POINTS = 50  # rows of a run in a result file
COLUMNS = ["run", "algorithm", "env_id", "seed", "step", "seconds", "episodic_return", "episodes", "last_100_return"]
COLUMNS += ["commit", "versions", "hardware", "command"]
# Arguments that do not tell two experiments apart.
PLUMBING = {"exp_name", "env_id", "seed", "track", "wandb_project_name", "wandb_entity", "capture_video", "save_model"}
PLUMBING |= {"upload_model", "hf_entity", "checkpoint_frequency", "resume", "accelerate"}
TRIAL = re.compile(r"_trial\d+__\d+__\d+$")  # how the tuner names its runs
COMPUTED = {"batch_size", "minibatch_size", "num_iterations"}  # where there is a num_iterations
Warn = Callable[[str], None]


@dataclass
class Run:
    """One training, from whatever source."""

    name: str
    algorithm: str
    env_id: str
    seed: int
    curves: dict[str, Curve]
    args: dict = field(default_factory=dict)
    commit: str = ""
    versions: str = ""
    hardware: str = ""
    command: str = ""
    tags: list[str] = field(default_factory=list)
    source: str = "runs"
    status: str = "finished"
    videos: list[tuple[int | None, Path]] = field(default_factory=list)  # training step (None: evaluation), file
    budget: int = 0  # the steps it was meant to have, where that is known
    episodes: np.ndarray | None = None  # of a result file: how many episodes each point of the curve stands for
    last_100: float | None = None  # and the mean return of the last 100
    end: tuple[int, float] | None = None  # and the last step and second, which may lie beyond the last episode
    group: str = ""  # what it is compared as

    @property
    def training(self) -> list[Curve]:
        """The curves over training steps; those of the evaluation are over episodes."""
        return [curve for tag, curve in self.curves.items() if not tag.startswith("eval/")]

    @property
    def steps(self) -> int:
        return self.end[0] if self.end else int(max(curve.steps[-1] for curve in self.training))

    @property
    def seconds(self) -> float:
        return self.end[1] if self.end else float(max(curve.seconds[-1] for curve in self.training))

    @cached_property
    def settings(self) -> dict[str, str]:
        """What it was trained with, seed and plumbing aside; of a result file, the flags of its command."""
        if self.args:
            ignored = PLUMBING | COMPUTED if "num_iterations" in self.args else PLUMBING
            return {name: str(value) for name, value in self.args.items() if name not in ignored}
        flags = re.findall(r"--([\w-]+)((?: (?!--)\S+)*)", self.command)
        settings = {name.replace("-", "_"): value.strip() or "True" for name, value in flags}
        return {name: value for name, value in settings.items() if name not in PLUMBING}

    def score(self, metric: str, window: int) -> float:
        """Mean of the last `window` values; of a result file, of the stretches that hold about so many episodes."""
        if self.episodes is None:
            return float(self.curves[metric].values[-window:].mean())
        if window == 100 and self.last_100 is not None:
            return self.last_100
        later = np.cumsum(self.episodes[::-1])[::-1] - self.episodes  # episodes after each stretch
        kept = later < window
        return float(np.average(self.curves[metric].values[kept], weights=self.episodes[kept]))

    def clock(self, steps: np.ndarray) -> np.ndarray:
        """Seconds since the start at these steps."""
        densest = max(self.training, key=lambda curve: len(curve.steps))
        order = np.argsort(densest.steps, kind="stable")
        return np.interp(steps, densest.steps[order], densest.seconds[order])

    def thin(self, points: int) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """Steps, seconds and the means of every metric over (at most) `points` equal stretches of the run.

        A stretch without a value is interpolated, or NaN before the first and after the last.
        """
        if self.episodes is not None:  # a result file holds such stretches already
            return self.curves[RETURN].steps, self.curves[RETURN].seconds, {RETURN: self.curves[RETURN].values}
        points = min(points, max(len(curve.steps) for curve in self.training))
        edges = np.linspace(0, self.steps, points + 1)[1:]
        thinned = {}
        for tag, curve in self.curves.items():
            if tag.startswith("eval/"):  # over episodes, not over training steps
                continue
            index = np.searchsorted(edges, curve.steps).clip(max=points - 1)
            count = np.bincount(index, minlength=points)
            mean = np.bincount(index, curve.values, points) / np.maximum(count, 1)
            filled = np.flatnonzero(count)
            thinned[tag] = np.interp(edges, edges[filled], mean[filled], left=np.nan, right=np.nan)
        return edges, self.clock(edges), thinned

    def curve(self, metric: str) -> Curve:
        """A metric over the stretches that have a value."""
        steps, seconds, thinned = self.thin(POINTS)
        there = np.isfinite(thinned[metric])
        return Curve(steps[there], seconds[there], thinned[metric][there])

    def rows(self) -> list[dict]:
        """The rows of this run in a result file."""
        returns = self.curves[RETURN]
        edges = np.linspace(0, self.steps, POINTS + 1).round().astype(int)
        rows = []
        for first, last, seconds in zip(edges, edges[1:], self.clock(edges[1:])):
            inside = returns.values[(first < returns.steps) & (returns.steps <= last)]
            recent = returns.values[returns.steps <= last][-100:]
            row = {"run": self.name, "algorithm": self.algorithm, "env_id": self.env_id, "seed": self.seed}
            row |= {"step": last, "seconds": round(seconds, 1), "episodes": len(inside)}
            row["episodic_return"] = round(inside.mean(), 3) if len(inside) else ""
            row["last_100_return"] = round(recent.mean(), 3) if len(recent) else ""
            row |= {"commit": self.commit, "versions": self.versions, "hardware": self.hardware}
            rows.append(row | {"command": self.command})
        return rows


def finite(name: str, curves: dict[str, Curve], warn: Warn) -> dict[str, Curve]:
    """The curves without NaN and infinity."""
    kept = {}
    for tag, curve in curves.items():
        good = np.isfinite(curve.values)
        if not good.all() and tag == RETURN:
            warn(f"{name}: {(~good).sum()} of {len(good)} values of {tag} are not finite; left out")
        if good.any():
            kept[tag] = Curve(*(x[good] for x in curve)) if not good.all() else curve
    return kept


def read_provenance(run_dir: Path, warn: Warn) -> dict:
    """What the run knows of its origin; empty without it, or where it is damaged."""
    facts = provenance.read(run_dir)
    if {"commit", "versions", "hardware", "tags"} <= facts.keys():
        return facts
    if (run_dir / "provenance.json").exists():
        warn(f"{run_dir}: provenance.json is damaged; not used")
    return {}


def note_progress(run: Run, run_dir: Path, global_step: int | None) -> None:
    """Set the run's budget, and its status where it has not used it up.

    A run notes its step when it ends. One without that note has ended if its last logged step is near enough.
    """
    run.budget = final_step(run.args)
    slack = max(1000, run.budget // 100) if global_step is None else 0
    if max(run.steps, global_step or 0) >= run.budget - slack:
        return
    latest = max(path.stat().st_mtime for path in run_dir.glob("events.*"))
    run.status = "running" if time.time() - latest < 180 else f"stopped at {run.steps / run.budget:.0%}"


def read_folder(run_dir: Path, warn: Warn, wanted: Callable[[dict], bool] = lambda args: True) -> Run | None:
    """The run in a folder, without its curves if its arguments are not wanted; None if it has logged nothing yet."""
    try:
        args = json.loads((run_dir / "args.json").read_text())
        name, algorithm, env_id, seed = run_dir.name, args["exp_name"], args["env_id"], args["seed"]
    except (ValueError, KeyError, TypeError) as error:
        warn(f"{run_dir}: args.json is damaged ({error}); left out")
        return None
    if not wanted(args):
        return Run(name, algorithm, env_id, seed, {})
    curves = finite(name, read_scalars(run_dir, warn), warn)
    if not any(not tag.startswith("eval/") for tag in curves):
        warn(f"{run_dir}: nothing logged yet; left out")
        return None
    run = Run(name, algorithm, env_id, seed, curves, args, source=str(run_dir.parent))
    facts = read_provenance(run_dir, warn)
    note_progress(run, run_dir, facts.get("global_step"))
    source = next(run_dir.glob("*.py"), None)
    if source:
        try:
            run.command = command_again(source, args)
        except SyntaxError:
            pass
    if facts:
        run.commit, run.versions, run.hardware = facts["commit"], facts["versions"], facts["hardware"]
        run.tags = facts["tags"]
    run.videos = find_videos(run_dir, args, curves.get(RETURN))
    return run


def read_rows(result_file: Path) -> list[dict]:
    """The rows of a result file; ValueError if it is something else."""
    with open(result_file, newline="") as file:
        reader = csv.DictReader(file)
        if not set(COLUMNS) <= set(reader.fieldnames or []):
            raise ValueError(f"{result_file}: not a result file; its columns should be {', '.join(COLUMNS)}")
        return list(reader)


def is_result_file(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.readline().strip() == ",".join(COLUMNS).encode()


def key(row: dict) -> tuple:
    """What tells a run from others in result files; runs made before names were kept have none."""
    return (row["run"] or (row["algorithm"], row["env_id"], row["seed"], row["commit"]),)


def read_results(result_file: Path) -> list[Run]:
    """The runs of a result file."""
    runs = {}
    for row in read_rows(result_file):
        runs.setdefault(key(row), []).append(row)
    found = []
    for rows in runs.values():
        first, filled = rows[0], [row for row in rows if row["episodic_return"]]
        if not filled:
            continue
        try:
            columns = [[float(row[x]) for row in filled] for x in ("step", "seconds", "episodic_return", "episodes")]
            steps, seconds, values, episodes = map(np.array, columns)
            last_100, end = float(rows[-1]["last_100_return"]), (int(rows[-1]["step"]), float(rows[-1]["seconds"]))
            seed = int(first["seed"])
        except ValueError as error:
            raise ValueError(f"{result_file}: {error} in the rows of {key(first)[0]}") from error
        curves = {RETURN: Curve(steps, seconds, values)}
        found.append(
            Run(
                first["run"] or f"{first['env_id'].replace('/', '_')}__{first['algorithm']}__{seed}",
                first["algorithm"],
                first["env_id"],
                seed,
                curves,
                commit=first["commit"],
                versions=first["versions"],
                hardware=first["hardware"],
                command=first["command"],
                source=str(result_file),
                episodes=episodes,
                last_100=last_100,
                end=end,
            )
        )
    return found


def append_results(result_file: Path, runs: Iterable[Run]) -> tuple[int, int]:
    """Add runs to a result file; one that is there with fewer steps is replaced. Returns how many were, of both."""
    kept: dict[tuple, list[dict]] = {}
    if result_file.exists():
        for row in read_rows(result_file):
            kept.setdefault(key(row), []).append(row)
    added = replaced = 0
    for run in runs:
        rows = [{name: str(value) for name, value in row.items()} for row in run.rows()]
        there = kept.get(key(rows[0]))
        if there is None:
            added += 1
        elif int(there[-1]["step"]) < int(rows[-1]["step"]):
            replaced += 1
        else:
            continue
        kept[key(rows[0])] = rows
    ordered = sorted(kept.values(), key=lambda rows: (rows[0]["algorithm"], rows[0]["env_id"], int(rows[0]["seed"])))
    result_file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(result_file) as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(row for rows in ordered for row in rows)
    return added, replaced


def left_aside(folder: Path) -> str:
    """Why a run that was found, but not named, is not compared; empty for the others."""
    if "abandoned" in folder.parts:
        return "abandoned by the benchmark"
    return "of trials of the tuner" if TRIAL.search(folder.name) else ""


def read_paths(
    paths: Iterable[Path],
    warn: Warn,
    wanted: Callable[[dict], bool] = lambda args: True,
    named: Iterable[str] = (),
) -> list[Run]:
    """The runs of run folders, folders of them, result files and folders of those; unwanted ones may lack curves.

    What the benchmark has abandoned and the tuner has tried stays out, unless the folder itself or the experiment is
    named.
    """
    folders, files, aside = [], [], Counter()
    for path in paths:
        if path.is_file():
            files.append(path)
        elif (path / "args.json").exists():
            folders.append(path)
        elif path.is_dir():
            for folder in sorted(x.parent for x in path.glob("**/args.json")):
                reason = left_aside(folder.relative_to(path))
                if reason and not any(f"__{name}__" in folder.name for name in named):
                    aside[reason] += 1
                else:
                    folders.append(folder)
            files += sorted(filter(is_result_file, path.glob("*.csv")))
        else:
            raise ValueError(f"{path}: no such file or folder")
    results = list(filter(is_result_file, files))
    for file in files:  # benchmark/results/*.csv are not all of that kind; what is named alone has to be
        if results and file not in results:
            warn(f"{file}: not a result file; left out")
    for reason, count in aside.items():
        warn(f"{plural(count, 'run')} {reason}: left out; name a folder or its --exp-name to see it")
    progress = tqdm(dict.fromkeys(folders), "reading runs", leave=False, delay=1, disable=None)
    runs = [run for folder in progress if (run := read_folder(folder, warn, wanted))]
    names = {run.name for run in runs}
    return runs + [
        run for file in dict.fromkeys(results or files) for run in read_results(file) if run.name not in names
    ]
