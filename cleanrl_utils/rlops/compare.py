"""What is compared with what, and the result as Markdown and PNG."""

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from cleanrl_utils.rlops import stats
from cleanrl_utils.rlops.runs import COMPUTED, PLUMBING, POINTS, RETURN, Run, Warn

# Colours that people with any kind of colour vision tell apart (Okabe and Ito).
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A6D3B", "#7F7F7F"]
FEW = 5  # seeds below which bootstrap intervals are known to be too narrow
FACTS = ("commit", "versions", "hardware")  # what --group-by knows besides arguments
MANY = 12  # groups above which pairs of them are not compared


def select(runs: list[Run], exp_names: list[str], env_ids: list[str], metric: str, warn: Warn) -> list[Run]:
    """The runs asked for; ValueError says what there is instead."""
    if not runs:
        raise ValueError("no runs found: train first, e.g. python cleanrl/ppo.py, or name folders or result files")
    for flag, wanted, there in (
        ("--exp-name", exp_names, {run.algorithm for run in runs}),
        ("--env-ids", env_ids, {run.env_id for run in runs}),
    ):
        if missing := [x for x in wanted if x not in there]:
            raise ValueError(f"{flag} {' '.join(missing)}: no such runs; there are {', '.join(sorted(there))}")
    runs = [run for run in runs if run.algorithm in (exp_names or [run.algorithm])]
    runs = [run for run in runs if run.env_id in (env_ids or [run.env_id])]
    if not runs:
        raise ValueError(f"no runs of {', '.join(exp_names)} on {', '.join(env_ids)}")
    with_metric = [run for run in runs if metric in run.curves]
    if not with_metric:
        there = sorted({tag for run in runs for tag in run.curves})
        raise ValueError(f"--metric {metric}: no run has it; there are {', '.join(there)}")
    for name in dict.fromkeys(run.algorithm for run in runs if metric not in run.curves):
        warn(f"runs of {name} without {metric}: left out")
    return with_metric


def match_tags(runs: list[Run], tags: list[str]) -> list[Run]:
    """The runs with each tag (or of each commit), named after it; "a;b" asks for both."""
    chosen = []
    for tag in tags:
        mine = [run for run in runs if all(part in (*run.tags, run.commit) for part in tag.split(";"))]
        if not mine:
            there = sorted({x for run in runs for x in (*run.tags, run.commit) if x})
            raise ValueError(f"--tags {tag}: no such runs; tags and commits there are {', '.join(there) or 'none'}")
        chosen += [replace(run, group=f"{run.algorithm} ({tag})") for run in mine]
    return chosen


def drop_repeats(runs: list[Run], warn: Warn) -> list[Run]:
    """The latest of the runs with the same seed and arguments: they are one sample, not several."""
    cells = defaultdict(list)
    for run in runs:
        settings = str({name: value for name, value in run.args.items() if name not in PLUMBING})
        cells[run.group, run.env_id, run.seed, run.commit, settings].append(run)
    for (name, env_id, seed, *_), same in cells.items():
        same.sort(key=lambda run: run.name)
        if len(same) > 1:
            warn(f"{name} on {env_id} has seed {seed} {len(same)} times; only the latest, {same[-1].name}, is used")
    return [same[-1] for same in cells.values()]


def warn_of_mixtures(runs: list[Run], warn: Warn) -> None:
    """Say which groups hold runs that differ in more than their seed."""
    cells = defaultdict(list)
    for run in runs:
        cells[run.group, run.env_id].append(run)
    for (name, env_id), mine in cells.items():
        facts = [{"commit": run.commit} if run.commit else {} for run in mine]
        facts = [run.args | fact for run, fact in zip(mine, facts)]
        for argument in {key: None for fact in facts for key in fact if key not in PLUMBING | COMPUTED}:
            values = list(dict.fromkeys(str(fact[argument]) for fact in facts if argument in fact))
            if len(values) > 1:
                warn(f"{name} on {env_id} mixes {argument} {', '.join(values)}; separate with --group-by {argument}")


def group(runs: list[Run], tags: list[str], by: list[str], warn: Warn) -> list[Run]:
    """Name the group of each run: its algorithm, with tag, arguments and source where they tell groups apart."""
    unknown = [name for name in by if name not in FACTS and not any(name in run.args for run in runs)]
    if unknown:
        raise ValueError(f"--group-by {' '.join(unknown)}: no run has such an argument")
    folders, files = ({run.algorithm for run in runs if (run.episodes is None) == x} for x in (True, False))
    for run in runs:
        both = run.algorithm in folders & files
        run.group = f"{run.algorithm} (results)" if both and run.episodes is not None else run.algorithm
    runs = match_tags(runs, tags) if tags else runs
    for run in runs:
        for name in by:
            run.group += f" {name}={getattr(run, name) if name in FACTS else run.args.get(name, 'unknown')}"
    runs = drop_repeats(runs, warn)
    warn_of_mixtures(runs, warn)
    return sorted(runs, key=lambda run: (run.group, run.env_id, run.seed))


class Comparison:
    """Final scores by group and environment, and what follows from them."""

    def __init__(self, runs: list[Run], metric: str, window: int):
        self.runs, self.metric, self.window = runs, metric, window
        self.groups = list(dict.fromkeys(run.group for run in runs))
        self.env_ids = sorted({run.env_id for run in runs})
        self.scores = defaultdict(dict)  # group, environment: a score per seed
        for run in runs:
            self.scores[run.group].setdefault(run.env_id, []).append(run.score(metric, window))
        self.scores = {name: {env: np.array(x) for env, x in by.items()} for name, by in self.scores.items()}
        self.common = [env for env in self.env_ids if all(env in self.scores[name] for name in self.groups)]

    def cell(self, name: str, env_id: str) -> list[Run]:
        return [run for run in self.runs if (run.group, run.env_id) == (name, env_id)]

    def normalized(self, name: str) -> stats.Strata:
        """Scores on the common environments, 0 for the lowest run there and 1 for the highest of all groups."""
        strata = []
        for env_id in self.common:
            everyone = np.concatenate([self.scores[other][env_id] for other in self.groups])
            low, high = everyone.min(), everyone.max()
            scores = self.scores[name][env_id]
            strata.append((scores - low) / (high - low) if high > low else np.ones(len(scores)))
        return strata

    def notes(self) -> list[str]:
        """What to know before believing the figures."""
        notes = []
        for env_id in self.env_ids:
            missing = [name for name in self.groups if env_id not in self.scores[name]]
            if missing:
                notes.append(
                    f"{env_id}: no runs of {', '.join(missing)}; left out of what is said over all environments"
                )
            lengths = sorted({run.steps for run in self.runs if run.env_id == env_id})
            if lengths[-1] > 1.05 * lengths[0]:
                notes.append(f"{env_id}: runs are of unequal length, {lengths[0]:,} to {lengths[-1]:,} steps")
        unfinished = Counter(f"{run.group} on {run.env_id}" for run in self.runs if run.status != "finished")
        for where, count in unfinished.items():
            are = "run is" if count == 1 else "runs are"
            notes.append(f"{where}: {count} {are} not finished (--finished-only leaves them out)")
        if self.window != 100 and any(run.episodes is not None for run in self.runs):
            notes.append(f"scores from result files are of about {self.window} episodes: they hold means of stretches")
        if len(self.groups) > MANY:
            notes.append(
                f"{len(self.groups)} groups: pairs are compared up to {MANY}; choose with --exp-name and --env-ids"
            )
        fewest = min(len(x) for by in self.scores.values() for x in by.values())
        if fewest == 1:
            notes.append("one seed says nothing about the spread: no interval where there is a single run")
        elif fewest < FEW:
            notes.append(f"with {fewest} seeds bootstrap intervals are too narrow; {FEW} or more give sounder ones")
        return notes

    def score_table(self) -> list[str]:
        lines = [
            "| environment | algorithm | steps | seeds | mean ± std | IQM | 95% interval of the IQM | minutes |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for env_id in self.env_ids:
            for name in self.groups:
                if env_id not in self.scores[name]:
                    continue
                scores, runs = self.scores[name][env_id], self.cell(name, env_id)
                steps = sorted({run.steps for run in runs})
                steps = f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"
                low, high = stats.interval(stats.pooled_iqm, [scores])
                spread, interval = (
                    (f" ± {scores.std():.2f}", f"[{low:.2f}, {high:.2f}]") if len(scores) > 1 else ("", "")
                )
                minutes = np.mean([run.seconds for run in runs]) / 60
                lines.append(
                    f"| {env_id} | {name} | {steps} | {len(scores)} | {scores.mean():.2f}{spread} "
                    f"| {stats.iqm(scores):.2f} | {interval} | {minutes:.1f} |"
                )
        return lines

    def aggregate_table(self) -> list[str]:
        lines = ["| algorithm | runs | normalized IQM | 95% interval |", "|---|---|---|---|"]
        for name in self.groups:
            strata = self.normalized(name)
            low, high = stats.interval(stats.pooled_iqm, strata)
            lines.append(
                f"| {name} | {sum(map(len, strata))} | {stats.pooled_iqm(strata):.3f} | [{low:.3f}, {high:.3f}] |"
            )
        return lines

    def pairs(self) -> list[tuple[str, str, str, stats.Strata, stats.Strata]]:
        """Every two groups: per environment, and over the environments they share if there are several."""
        found = []
        for x, y in combinations(self.groups if len(self.groups) <= MANY else [], 2):
            shared = [env for env in self.env_ids if env in self.scores[x] and env in self.scores[y]]
            found += [(env, x, y, [self.scores[x][env]], [self.scores[y][env]]) for env in shared]
            if len(shared) > 1:
                everywhere = [[self.scores[name][env] for env in shared] for name in (x, y)]
                found.append((f"all {len(shared)} together", x, y, *everywhere))
        return found

    def improvement_table(self) -> list[str]:
        lines = ["| environment | x | y | P(x > y) | 95% interval | verdict on x |", "|---|---|---|---|---|---|"]
        for where, x, y, xs, ys in self.pairs():
            low, high = stats.interval(stats.improvement, xs, ys)
            interval = f"[{low:.2f}, {high:.2f}]" if min(map(len, [*xs, *ys])) > 1 else ""
            value = f"{stats.improvement(xs, ys):.2f}"
            lines.append(f"| {where} | {x} | {y} | {value} | {interval} | {stats.verdict(xs, ys)} |")
        return lines

    def markdown(self, title: str) -> str:
        """The whole comparison as a page of Markdown."""
        what = "return" if self.metric == RETURN else f"`{self.metric}`"
        lines = [f"# {title}", ""]
        lines += [
            f"Score of a run: mean {what} over the last {self.window} values. ± is the standard deviation over seeds,",
            f"IQM the interquartile mean; intervals are stratified bootstrap ({stats.REPS:,} resamples, seeded).",
            "",
        ]
        lines += [*self.score_table(), ""]
        if len(self.groups) > 1 and len(self.common) > 1:
            lines += [
                f"Over {', '.join(self.common)}; in each, 0 is the lowest and 1 the highest run compared here:",
                "",
            ]
            lines += [*self.aggregate_table(), ""]
        if pairs := self.pairs():
            lines += ["Probability that a run of x scores above a run of y, and a permutation test of it (5% level"]
            lines[-1] += f", {len(pairs)} tests, not corrected for their number):" if len(pairs) > 1 else "):"
            lines += ["", *self.improvement_table(), ""]
        if notes := self.notes():
            lines += ["Notes:", *(f"- {note}" for note in notes), ""]
        return "\n".join(lines)


def band(runs: list[Run], metric: str, by: str, points: int = 200) -> tuple[np.ndarray, ...]:
    """Common x, mean, lower and upper bound of its 95% interval (Student's t), each run interpolated within its reach.

    From where all have begun to where the first finished run ends: beyond, the mean would jump as runs drop out.
    """
    curves, ends = [], []
    for run in runs:
        steps, seconds, thinned = run.thin(POINTS)
        there = np.isfinite(thinned[metric])
        curves.append(((steps if by == "steps" else seconds)[there], thinned[metric][there]))
        if run.status == "finished":
            ends.append(curves[-1][0][-1])
    end = min(ends, default=max(curve[0][-1] for curve in curves))
    x = np.linspace(min(max(curve[0][0] for curve in curves), end), end, points)
    values = np.array([np.interp(x, *curve, left=np.nan, right=np.nan) for curve in curves])
    count = np.isfinite(values).sum(0)
    mean = np.nansum(values, 0) / np.maximum(count, 1)
    deviation = np.sqrt(np.nansum((values - mean) ** 2, 0) / np.maximum(count - 1, 1))
    half = np.array([stats.t975(n - 1) / np.sqrt(n) if n > 1 else np.nan for n in count]) * deviation
    mean[count == 0] = np.nan
    return x, mean, mean - half, mean + half


def plot(comparison: Comparison, image: Path) -> None:
    """Learning curves by step and by time, an environment per column; below, profile and probability of improvement."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams |= {"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25}
    plt.rcParams |= {"font.size": 9, "legend.frameon": False, "axes.titlesize": 10}
    env_ids, groups = comparison.env_ids, comparison.groups
    several = bool(comparison.pairs())
    columns = min(len(env_ids), 4)
    rows = 2 * -(-len(env_ids) // columns)
    width, height = 3.7 * max(columns, 1 + several), 2.7 * rows
    figure = plt.figure(figsize=(width, height + 2.9 * several + 0.4), layout="constrained")
    upper, *lower = figure.subfigures(1 + several, 1, height_ratios=[height, 2.9][: 1 + several], squeeze=False)[:, 0]
    axes = upper.subplots(rows, columns, squeeze=False)
    styles = {}
    for i, name in enumerate(groups):
        styles[name] = {"color": COLOURS[i % len(COLOURS)], "linestyle": ["-", "--", ":"][i // len(COLOURS) % 3]}
    for index in range(rows // 2 * columns):
        block, column = divmod(index, columns)
        pair = axes[2 * block : 2 * block + 2, column]
        if index < len(env_ids):
            draw_curves(pair, comparison, env_ids[index], styles)
        else:
            for axis in pair:
                axis.remove()
    if several:
        *left, right = lower[0].subplots(1, 2 if comparison.common else 1, squeeze=False)[0]
        for axis in left:
            draw_profile(axis, comparison, styles)
        draw_improvement(right, comparison)
    handles = [plt.Line2D([], [], linewidth=1.8, label=name, **styles[name]) for name in groups[:MANY]]
    if len(groups) > MANY:
        handles.append(plt.Line2D([], [], linewidth=0, label=f"and {len(groups) - MANY} more"))
    figure.legend(handles=handles, loc="outside upper center", ncols=min(len(groups), 4))
    figure.savefig(image, dpi=150)
    plt.close(figure)


def draw_curves(axes: Any, comparison: Comparison, env_id: str, styles: dict[str, dict]) -> None:
    """Learning curves of an environment, by step and by time."""
    longest = max(run.seconds for run in comparison.runs if run.env_id == env_id)
    unit, size = ("hours", 3600) if longest > 7200 else ("minutes", 60) if longest > 120 else ("seconds", 1)
    for axis, by, label, scale in zip(axes, ("steps", "seconds"), ("steps", unit), (1, size)):
        low, high = np.inf, -np.inf
        for name in comparison.groups:
            runs = comparison.cell(name, env_id)
            if not runs or comparison.metric.startswith("eval/"):  # those have no curve over training
                continue
            x, mean, lower, upper = band(runs, comparison.metric, by)
            axis.plot(x / scale, mean, linewidth=1.8, **styles[name])
            axis.fill_between(x / scale, lower, upper, color=styles[name]["color"], alpha=0.18, linewidth=0)
            for run in runs:  # the axis shows every run, and of a band as much as fits: with two seeds it is endless
                values = run.thin(POINTS)[2][comparison.metric]
                low, high = min(low, np.nanmin(values)), max(high, np.nanmax(values))
        if low <= high:
            margin = 0.06 * (high - low) or 1
            axis.set_ylim(low - margin, high + margin)
        axis.set(xlabel=label, ylabel=comparison.metric.split("/")[-1].replace("_", " "))
    axes[0].set_title(env_id)
    axes[0].xaxis.set_major_formatter(lambda x, _: f"{x / 1e6:g}M" if x >= 1e6 else f"{x / 1e3:g}k" if x else "0")


def draw_profile(axis: Any, comparison: Comparison, styles: dict[str, dict]) -> None:
    """The share of runs above each normalized score."""
    thresholds = np.linspace(0, 1, 101)
    for name in comparison.groups:
        strata = comparison.normalized(name)
        axis.step(thresholds, stats.profile(strata, thresholds), where="post", **styles[name])
        low, high = stats.interval(lambda x: stats.profile(x, thresholds), strata)
        axis.fill_between(thresholds, low, high, color=styles[name]["color"], alpha=0.15, linewidth=0, step="post")
    axis.set(
        title="performance profile", xlabel="normalized score τ", ylabel="share of runs above τ", ylim=(-0.02, 1.02)
    )


def draw_improvement(axis: Any, comparison: Comparison) -> None:
    """The probability of improvement of every two groups over the environments they share."""
    last = {(x, y): (xs, ys) for _, x, y, xs, ys in comparison.pairs()}  # the last of a pair is over all environments
    shown = list(last.items())[:8]
    for position, ((_x, _y), (xs, ys)) in enumerate(shown):
        low, high = stats.interval(stats.improvement, xs, ys)
        value = stats.improvement(xs, ys)
        axis.plot([low, high], [-position] * 2, color="#555555", linewidth=5, alpha=0.35, solid_capstyle="butt")
        axis.plot(value, -position, "o", color="#222222", markersize=5)
    axis.axvline(0.5, color="#555555", linewidth=1, linestyle=":")
    axis.set_yticks([-i for i in range(len(shown))], [fill(f"{x} > {y}", 26) for (x, y), _ in shown], fontsize=8)
    axis.set(title="probability of improvement", xlim=(-0.02, 1.02), ylim=(-len(shown) + 0.5, 0.5))
