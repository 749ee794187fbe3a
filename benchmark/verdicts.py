"""Every file and task beside its published score: ahead, level, behind or not run, for the page "Results".

Usage:
    python benchmark/verdicts.py        # writes what is between <!-- verdicts --> and <!-- end of verdicts -->

Both sides have few seeds, so the difference of their means comes with a 95% interval (Welch's, see `difference`). Where
it leaves out zero, the verdict is ahead or behind. Else it is level, if the difference is no larger than the published
deviation over seeds; a larger one, which so few seeds cannot show, is called so. benchmark/results/findings.csv says
why a file is behind, as far as that is known.
"""

import csv
import math
import re
from collections import Counter
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
from algorithms import ALGORITHMS
from results import EQUAL, RESULTS, ROOT, by_budget, rounded, span
from results import read_published as read_published_texts

from cleanrl_utils.rlops.runs import RETURN, Run, is_result_file, read_results
from cleanrl_utils.rlops.stats import t975

PAGE = ROOT / "docs" / "results.md"
MARKED = re.compile(r"(<!-- verdicts -->\n).*?(<!-- end of verdicts -->)", re.DOTALL)
HEAD = ["file", "task", "steps", "seeds", "score", "published", "difference, 95% interval"]
HEAD += ["verdict", "minutes", "runs"]
# Tasks that are named as not run where the published file has a score for them. Others are named only where a file
# has none of these.
TASKS = {"CartPole-v1", "Acrobot-v1", "MountainCar-v0", "starpilot", "bossfight", "bigfish"}
TASKS |= {f"{robot}-v4" for robot in ("HalfCheetah", "Walker2d", "Hopper", "InvertedPendulum", "Humanoid")}
TASKS |= {game + ending for game in ("Pong", "Breakout", "BeamRider") for ending in ("-v5", "NoFrameskip-v4")}
PUBLISHED_SEEDS = 3  # of a published score, unless its source says otherwise
BEHIND = ("behind", "one seed, below")  # what needs a finding
ORDER = ["ahead", "level", "behind", "higher, too few seeds", "lower, too few seeds"]
ORDER += ["one seed, above", "one seed, within", "one seed, below", "other steps", "no published spread"]
ORDER += ["nothing published", "not run yet"]


@dataclass
class Published:
    """A score of the published CleanRL. `std` is NumPy's: it divides by the number of seeds."""

    mean: float
    std: float | None
    steps: int
    seeds: int


@dataclass
class Row:
    """A file on a task; without runs where it was not run, without a task where nothing is known of one."""

    algorithm: str
    env_id: str
    runs: list[Run]
    published: Published | None

    @property
    def scores(self) -> np.ndarray:
        return np.array([run.score(RETURN, 100) for run in self.runs])

    @property
    def has_equal_budget(self) -> bool:
        return all(abs(run.steps / self.published.steps - 1) <= EQUAL for run in self.runs)


def read_published() -> dict[tuple[str, str], Published]:
    """The published scores that have a number of steps."""
    published = {}
    with open(RESULTS / "published.csv", newline="") as file:
        for row in csv.DictReader(file):
            if not row["steps"]:
                continue
            seeds = re.search(r"(\d+) seed", row["source"])
            std = float(row["std"]) if row["std"] else None
            number = int(seeds[1]) if seeds else PUBLISHED_SEEDS
            key = row["algorithm"], row["env_id"]
            published[key] = Published(float(row["mean"]), std, int(row["steps"]), number)
    return published


def read_findings() -> dict[tuple[str, str], str]:
    with open(RESULTS / "findings.csv", newline="") as file:
        return {(row["algorithm"], row["env_id"]): row["finding"] for row in csv.DictReader(file)}


def difference(scores: np.ndarray, published: Published) -> tuple[float, float, float]:
    """Our mean less the published one, and the ends of its 95% interval.

    With several seeds it is Welch's interval, which lets the two sides have different spreads. NumPy's variance is
    divided by one seed less to estimate that of the mean. With one seed of ours it is the interval for one more
    published seed, and so says only whether ours is an unusual one.
    """
    distance = float(scores.mean() - published.mean)
    theirs = published.std**2 / (published.seeds - 1)  # the variance of their mean
    if len(scores) == 1:
        factor = t975(published.seeds - 1)
        error = math.sqrt(theirs * (published.seeds + 1))
    else:
        ours = float(scores.var()) / (len(scores) - 1)
        error = math.sqrt(ours + theirs)
        factor = 0.0
        if error > 0:
            freedom = (ours + theirs) ** 2 / (ours**2 / (len(scores) - 1) + theirs**2 / (published.seeds - 1))
            factor = t975(math.floor(freedom + 1e-9))  # rounded down, to the wider interval
    return distance, distance - factor * error, distance + factor * error


def has_interval(row: Row) -> bool:
    """Whether it can be compared: both scores and both budgets are there, and the budgets are equal."""
    published = row.published
    is_known = published is not None and published.std is not None and published.seeds > 1
    return bool(row.runs) and is_known and row.has_equal_budget


def verdict(row: Row) -> str:
    if not row.runs:
        return "not run yet"
    if row.published is None:
        return "nothing published"
    if not row.has_equal_budget:
        return "other steps"
    if not has_interval(row):
        return "no published spread"
    distance, low, high = difference(row.scores, row.published)
    if len(row.runs) == 1:
        return "one seed, above" if low > 0 else "one seed, below" if high < 0 else "one seed, within"
    if low > 0 or high < 0:
        return "ahead" if low > 0 else "behind"
    if abs(distance) <= row.published.std:
        return "level"
    return "higher, too few seeds" if distance > 0 else "lower, too few seeds"


def read_runs() -> dict[tuple[str, str], list[Run]]:
    """All runs of all result files, by algorithm and task."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for path in sorted(RESULTS.glob("*.csv")):
        for run in read_results(path) if is_result_file(path) else []:
            groups.setdefault((run.algorithm, run.env_id), []).append(run)
    return groups


def make_rows() -> list[Row]:
    """What was run, then the published tasks that were not; every algorithm file has at least one row."""
    groups, published, rows = read_runs(), read_published(), []
    names = [*ALGORITHMS, *sorted({algorithm for algorithm, _ in groups} - ALGORITHMS.keys())]
    for name in names:
        tasks = [env_id for algorithm, env_id in groups if algorithm == name]
        there = [env_id for algorithm, env_id in published if algorithm == name]
        there = [env_id for env_id in there if env_id.replace("NoFrameskip-v4", "-v5") not in set(there) - {env_id}]
        tasks += [env_id for env_id in there if env_id in TASKS and env_id not in tasks]
        for env_id in tasks or there or [""]:
            for runs in by_budget(groups.get((name, env_id), [])) or [[]]:
                rows.append(Row(name, env_id, runs, published.get((name, env_id))))
    return rows


def result_file(row: Row) -> str:
    """Where its runs are kept, without the ending; of what was not run, the name of the algorithm."""
    return Path(row.runs[0].source).stem if row.runs else row.algorithm


def page_of(row: Row) -> str:
    """The algorithm whose page has the curves; a variant of our own is on the page whose name its file begins with."""
    if row.algorithm in ALGORITHMS:
        return row.algorithm
    return max((name for name in ALGORITHMS if result_file(row).startswith(name)), key=len)


def script_of(row: Row) -> str:
    """What starts the runs: the script named after the result file, or else after the algorithm."""
    name = result_file(row)
    return name if (ROOT / "benchmark" / f"{name}.sh").exists() else page_of(row)


def digits_of(score: float) -> int:
    """Two decimals for scores as small as those of MiniGrid, one for the others."""
    return 2 if abs(score) < 2 else 1


def describe_score(row: Row) -> str:
    scores, digits = row.scores, digits_of(row.scores.mean())
    if len(scores) == 1:
        return f"{scores[0]:.{digits}f}"
    return f"{scores.mean():.{digits}f}&nbsp;±&nbsp;{scores.std():.{digits}f}"


def describe_published(row: Row) -> str:
    """With its steps where ours are not the same."""
    text = read_published_texts()[row.algorithm, row.env_id].replace(" ", "&nbsp;")
    if not row.runs or not row.has_equal_budget:
        text += f" after&nbsp;{rounded(row.published.steps)}"
    return text


def describe_difference(row: Row) -> str:
    digits = digits_of(row.published.mean)
    distance, low, high = (f"{x:+.{digits}f}" for x in difference(row.scores, row.published))
    return f"{distance} ({low}&nbsp;to&nbsp;{high})"


def describe_verdict(row: Row, findings: dict[tuple[str, str], str]) -> str:
    """With what was found out, where it is not good enough."""
    word = verdict(row)
    finding = findings.get((row.algorithm, row.env_id))
    if finding and word in (*BEHIND, "lower, too few seeds"):
        return f"{word}<br><small>{escape(finding, quote=False)}</small>"
    return word


def folded(details: str) -> str:
    return f"<details><summary>how</summary><span>{details}</span></details>"


def describe_runs(row: Row) -> str:
    """Commands, commits and hardware, folded."""
    script = script_of(row)
    details = f"[`{script}.sh`](../benchmark/{script}.sh)"
    if not row.runs:
        return folded(details)
    first = min(row.runs, key=lambda run: run.seed)
    command = f"`{first.command}`" if first.command else "its command was not kept"
    commits = ", ".join(dict.fromkeys(f"`{run.commit}`" for run in row.runs))
    hardware = "; ".join(dict.fromkeys(escape(run.hardware) for run in row.runs))
    details += f"<br>{command}<br>commit {commits}<br>{hardware}"
    return folded(details)


def make_line(row: Row, findings: dict[tuple[str, str], str]) -> str:
    """A line of the table."""
    steps = sorted(run.steps for run in row.runs)
    budget = " to ".join(dict.fromkeys(map(rounded, (steps[0], steps[-1])))) if steps else ""
    cells = [
        f"[`{row.algorithm}`](rl-algorithms/{page_of(row)}.md#results)",
        row.env_id,
        budget,
        span([run.seed for run in row.runs]) if row.runs else "",
        describe_score(row) if row.runs else "",
        describe_published(row) if row.published else "",
        describe_difference(row) if has_interval(row) else "",
        describe_verdict(row, findings),
        f"{np.mean([run.seconds for run in row.runs]) / 60:.1f}" if row.runs else "",
        describe_runs(row),
    ]
    return "| " + " | ".join(cells) + " |"


def summary(rows: list[Row]) -> str:
    """How many rows have which verdict."""
    counts = Counter(verdict(row) for row in rows)
    needed = {"ahead", "level", "behind", "not run yet"}
    return " · ".join(f"{name} **{counts[name]}**" for name in ORDER if counts[name] or name in needed)


def make_table() -> list[str]:
    rows, findings = make_rows(), read_findings()
    lines = [summary(rows), "", '<div class="sortable" markdown>', ""]
    lines += ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    lines += [make_line(row, findings) for row in rows]
    return [*lines, "", "</div>"]


def without_finding() -> list[Row]:
    """What is behind, and nobody has written why."""
    findings = read_findings()
    rows = [row for row in make_rows() if verdict(row) in BEHIND]
    return [row for row in rows if not findings.get((row.algorithm, row.env_id))]


def regenerated(page: str) -> str:
    """The page with its table made anew."""
    return MARKED.sub(lambda match: "\n".join([match[1], *make_table(), "", match[2]]), page)


def main() -> None:
    before = PAGE.read_text()
    after = regenerated(before)
    if after != before:
        PAGE.write_text(after)
        print(f"{PAGE.relative_to(ROOT)}: table made anew")
    for row in without_finding():
        print(f"benchmark/results/findings.csv: say why {row.algorithm} is behind on {row.env_id}")


if __name__ == "__main__":
    main()
