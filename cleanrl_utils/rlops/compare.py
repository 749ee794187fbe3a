"""The comparison: scores by group and environment, what follows from them, and both as Markdown."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np

from cleanrl_utils.rlops import stats
from cleanrl_utils.rlops.grouping import by_cell
from cleanrl_utils.rlops.normalize import BY_RUNS, Scale
from cleanrl_utils.rlops.runs import POINTS, RETURN, Run
from cleanrl_utils.words import all_of, plural

FEW = 5  # seeds below which bootstrap intervals are known to be too narrow
MANY = 12  # groups above which pairs of them are not compared
EQUAL = 1.05  # budgets that differ by no more than this factor count as equal
AGGREGATES = {  # name: function of normalized scores
    "IQM": stats.pooled_iqm,
    "median": stats.median_of_means,
    "mean": stats.mean_of_means,
    "optimality gap": stats.optimality_gap,
}


def budget(run: Run) -> int:
    """The steps that a run has had to learn."""
    return run.budget if run.budget and run.status == "finished" else run.steps


def unequal_budgets(runs: list[Run]) -> str:
    """In words, if some of these runs had more steps to learn than others; else empty."""
    budgets = sorted(budget(run) for run in runs)
    return f"{budgets[0]:,} and {budgets[-1]:,} steps" if budgets[-1] > EQUAL * budgets[0] else ""


@dataclass
class Pair:
    """Two groups, in one environment or in all that they share."""

    where: str
    x: str
    y: str
    env_ids: list[str]


@dataclass
class Efficiency:
    """The interquartile mean of normalized scores in the course of training."""

    x: np.ndarray
    unit: str
    """steps, or % of the steps where environments have different budgets"""
    lines: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]
    """of each group, with the bounds of its 95% interval"""


class Comparison:
    """Final scores by group and environment, and what follows from them."""

    def __init__(self, runs: list[Run], metric: str, window: int, scale: Scale = BY_RUNS, scales: list[Scale] = ()):
        self.runs, self.metric, self.window = runs, metric, window
        self.scale, self.scales = scale, list(scales) or [scale]
        self.groups = list(dict.fromkeys(run.group for run in runs))
        self.env_ids = sorted({run.env_id for run in runs})
        self.cells = by_cell(runs)
        self.scores: dict[str, dict[str, np.ndarray]] = defaultdict(dict)  # group, environment: a score per seed
        for (name, env_id), mine in self.cells.items():
            self.scores[name][env_id] = np.array([run.score(metric, window) for run in mine])
        shared = [env for env in self.env_ids if all(env in self.scores[name] for name in self.groups)]
        self.common = [env for env in shared if scale.bounds is None or env in scale.bounds]

    def cell(self, name: str, env_id: str) -> list[Run]:
        return self.cells.get((name, env_id), [])

    def bounds(self, env_id: str) -> tuple[float, float]:
        """The scores that count as 0 and as 1."""
        if self.scale.bounds is not None:
            return self.scale.bounds[env_id]
        everyone = np.concatenate([by[env_id] for by in self.scores.values() if env_id in by])
        return float(everyone.min()), float(everyone.max())

    def normalize(self, values: np.ndarray, env_id: str) -> np.ndarray:
        low, high = self.bounds(env_id)
        return (values - low) / (high - low) if high > low else np.ones_like(values)

    def normalized(self, name: str) -> stats.Strata:
        """The normalized scores of a group on the common environments."""
        return [self.normalize(self.scores[name][env_id], env_id) for env_id in self.common]

    @property
    def summarized(self) -> bool:
        """Whether a summary over environments says something: several of them, and a scale not made of one group."""
        return len(self.common) > 1 and (len(self.groups) > 1 or self.scale.bounds is not None)

    @cached_property
    def efficiency(self) -> Efficiency | None:
        """Sample efficiency over the common environments, up to where the shortest run of each ends."""
        if not self.summarized or self.metric.startswith("eval/"):  # those have no curve over training
            return None
        curves = {}  # group, environment: the curve of each run
        for name in self.groups:
            for env_id in self.common:
                curves[name, env_id] = [run.curve(self.metric) for run in self.cell(name, env_id)]
        ends = {}
        for env_id in self.common:
            ends[env_id] = min(curve.steps[-1] for name in self.groups for curve in curves[name, env_id])
        share = np.linspace(0, 1, POINTS + 1)[1:]
        lines = {}
        for name in self.groups:
            strata = []
            for env_id in self.common:
                points = share * ends[env_id]
                values = [np.interp(points, curve.steps, curve.values) for curve in curves[name, env_id]]
                strata.append(self.normalize(np.array(values), env_id))
            lines[name] = stats.iqm_over_time(strata)
        shortest, longest = min(ends.values()), max(ends.values())
        if longest <= EQUAL * shortest:
            return Efficiency(share * shortest, "steps", lines)
        return Efficiency(share * 100, "% of the steps", lines)

    @cached_property
    def pairs(self) -> list[Pair]:
        """Every two groups: per environment, and over the environments they share if there are several."""
        found = []
        for x, y in combinations(self.groups if len(self.groups) <= MANY else [], 2):
            shared = [env for env in self.env_ids if env in self.scores[x] and env in self.scores[y]]
            found += [Pair(env, x, y, [env]) for env in shared]
            if len(shared) > 1:
                found.append(Pair(f"{all_of(len(shared))} together", x, y, shared))
        return found

    def of(self, name: str, env_ids: list[str]) -> stats.Strata:
        return [self.scores[name][env_id] for env_id in env_ids]

    def verdict(self, pair: Pair) -> str:
        """In plain words, what the runs say about x against y; nothing where they had unequal budgets."""
        for env_id in pair.env_ids:
            if unequal := unequal_budgets(self.cell(pair.x, env_id) + self.cell(pair.y, env_id)):
                return f"no verdict: unequal budgets, {unequal}" + (f" on {env_id}" if len(pair.env_ids) > 1 else "")
        return stats.verdict(self.of(pair.x, pair.env_ids), self.of(pair.y, pair.env_ids))

    def notes(self) -> list[str]:
        """What to know before believing the figures."""
        notes = []
        left_out = "left out of what is said over all environments"
        if len(self.env_ids) > 1 and not self.common:
            notes.append("no environment has runs of every group: nothing is said over all environments")
        for env_id in self.env_ids:
            missing = [name for name in self.groups if env_id not in self.scores[name]]
            if self.common and missing:
                some = ", ".join(missing) if len(missing) < 4 else f"{len(missing)} of the {len(self.groups)} groups"
                notes.append(f"{env_id}: no runs of {some}; {left_out}")
            elif self.common and env_id not in self.common:
                notes.append(f"{env_id}: no scores to normalize with; {left_out}")
            if unequal := unequal_budgets([run for run in self.runs if run.env_id == env_id]):
                notes.append(f"{env_id}: runs had unequal budgets, {unequal}; no verdict where groups differ in them")
        unfinished = Counter(f"{run.group} on {run.env_id}" for run in self.runs if run.status != "finished")
        for where, count in unfinished.items():
            notes.append(f"{where}: {plural(count, 'run')} {'is' if count == 1 else 'are'} not finished")
        if self.window != 100 and any(run.episodes is not None for run in self.runs):
            notes.append(f"scores from result files are of about {self.window} episodes: they hold means of stretches")
        if len(self.groups) > MANY:
            notes.append(
                f"{len(self.groups)} groups: pairs are compared up to {MANY}; choose with --exp-name and --env-ids"
            )
        fewest = min(len(mine) for mine in self.cells.values())
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
                runs = self.cell(name, env_id)
                if not runs:
                    continue
                scores = self.scores[name][env_id]
                steps = sorted({run.steps for run in runs})
                steps = f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"
                spread = interval = ""
                if len(scores) > 1:
                    low, high = stats.interval(stats.pooled_iqm, [scores])
                    spread, interval = f" ± {scores.std():.2f}", f"[{low:.2f}, {high:.2f}]"
                seeds = len({run.seed for run in runs})
                minutes = np.mean([run.seconds for run in runs]) / 60
                lines.append(
                    f"| {env_id} | {name} | {steps} | {seeds} | {scores.mean():.2f}{spread} "
                    f"| {stats.iqm(scores):.2f} | {interval} | {minutes:.1f} |"
                )
        return lines

    def aggregate_table(self) -> list[str]:
        lines = ["| algorithm | runs | " + " | ".join(AGGREGATES) + " |", "|---|---|" + "---|" * len(AGGREGATES)]
        for name in self.groups:
            strata = self.normalized(name)
            row = [name, str(sum(map(len, strata)))]
            for function in AGGREGATES.values():
                row.append(f"{function(strata):.3f}")
                if stats.several(strata):
                    low, high = stats.interval(function, strata)
                    row[-1] += f" [{low:.3f}, {high:.3f}]"
            lines.append(f"| {' | '.join(row)} |")
        return lines

    def improvement_table(self) -> list[str]:
        lines = ["| environment | x | y | P(x > y) | 95% interval | verdict on x |", "|---|---|---|---|---|---|"]
        for pair in self.pairs:
            xs, ys = self.of(pair.x, pair.env_ids), self.of(pair.y, pair.env_ids)
            interval = ""
            if stats.several(xs, ys):
                low, high = stats.interval(stats.improvement, xs, ys)
                interval = f"[{low:.2f}, {high:.2f}]"
            value = f"{stats.improvement(xs, ys):.2f}"
            lines.append(f"| {pair.where} | {pair.x} | {pair.y} | {value} | {interval} | {self.verdict(pair)} |")
        return lines

    def markdown(self, title: str) -> str:
        """The whole comparison as a page of Markdown."""
        what = "return" if self.metric == RETURN else f"`{self.metric}`"
        lines = [f"# {title}", ""]
        lines += [
            f"Score of a run: mean {what} over the last {plural(self.window, 'value')}. ± is the standard deviation",
            "over seeds, IQM the interquartile mean; intervals are stratified bootstrap "
            f"({stats.REPS:,} resamples, seeded).",
            "",
        ]
        lines += [*self.score_table(), ""]
        if self.summarized:
            lines += [
                f"Over {', '.join(self.common)}, normalized: in each, {self.scale.words}. With 95% intervals:",
                "",
            ]
            lines += [*self.aggregate_table(), ""]
        if self.pairs:
            lines += ["Probability that a run of x scores above a run of y, and a permutation test of it (5% level"]
            lines[-1] += f", {len(self.pairs)} tests, not corrected for their number):" if len(self.pairs) > 1 else "):"
            lines += ["", *self.improvement_table(), ""]
        if notes := self.notes():
            lines += ["Notes:", *(f"- {note}" for note in notes), ""]
        return "\n".join(lines)
