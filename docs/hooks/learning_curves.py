"""Learning curves of the result files in benchmark/results/ as SVG, by step and by time: one panel per environment.

Colours are classes of docs/assets/site.css, so that the curves are legible on a light and on a dark page.
"""

import csv
import math
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 250, 180, 42, 8, 24, 32  # of a panel, and its margins
POINTS = 100  # at most, of a curve
COLOURS = 6  # classes of the stylesheet

Curve = list[tuple[float, float]]  # steps or seconds, and returns; in this order


@dataclass
class Trained:
    """A run of a result file."""

    algorithm: str
    env_id: str
    seed: str
    hardware: str
    steps: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)

    def curve(self, by: str) -> Curve:
        stride = math.ceil(len(self.returns) / POINTS)
        points = list(zip(self.steps if by == "step" else self.seconds, self.returns))
        return points[:-1:stride] + points[-1:]


def read(path: Path) -> list[Trained]:
    """The runs of a result file; of a file of another kind, none."""
    runs: dict[tuple, Trained] = {}
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        if "episodic_return" not in (rows.fieldnames or ()):
            return []
        for row in rows:
            key = row["run"], row["algorithm"], row["env_id"], row["seed"], row["commit"]
            run = runs.setdefault(key, Trained(row["algorithm"], row["env_id"], row["seed"], row["hardware"]))
            if row["episodic_return"]:
                run.steps.append(float(row["step"]))
                run.seconds.append(float(row["seconds"]))
                run.returns.append(float(row["episodic_return"]))
    return [run for run in runs.values() if run.returns]


def interpolate(curve: Curve, x: float) -> float:
    index = bisect_right(curve, (x, math.inf))
    if index == 0 or index == len(curve):
        return curve[max(index - 1, 0)][1]
    (x0, y0), (x1, y1) = curve[index - 1], curve[index]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def mean(curves: list[Curve]) -> Curve:
    """Over the seeds, as far as all of them go."""
    end = min(curve[-1][0] for curve in curves)
    return [(x, sum(interpolate(curve, x) for curve in curves) / len(curves)) for x, _ in curves[0] if x <= end]


def ticks(low: float, high: float, wanted: int = 4) -> list[float]:
    """About as many round numbers between the two."""
    size = (high - low) / wanted or 1.0
    power = 10 ** math.floor(math.log10(size))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= size * 0.999)
    return [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def short(number: float) -> str:
    """10k, 2.5M; with the long minus."""
    size, letter = (1e6, "M") if abs(number) >= 1e6 else (1e3, "k") if abs(number) >= 1e4 else (1, "")
    return f"{number / size:g}{letter}".replace("-", "−")


def time_unit(seconds: float) -> tuple[float, str]:
    if seconds < 180:
        return 1, "seconds"
    return (60, "minutes") if seconds < 3 * 3600 else (3600, "hours")


def panel(env_id: str, series: dict[str, list[Trained]], colours: dict[str, int], by: str) -> str:
    """One chart: of each algorithm the runs thin, their mean thick."""
    curves = {name: [run.curve(by) for run in runs] for name, runs in series.items()}
    points = [point for group in curves.values() for curve in group for point in curve]
    right = max(x for x, _ in points)
    low, high = min(y for _, y in points), max(y for _, y in points)
    if low == high:
        low, high = low - max(1, abs(low) / 10), high + max(1, abs(high) / 10)
    unit, name = time_unit(right) if by == "time" else (1, "steps")

    def at(x: float, y: float) -> tuple[float, float]:
        across = LEFT + x / right * (WIDTH - LEFT - RIGHT)
        return across, HEIGHT - BOTTOM - (y - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    def line(curve: Curve, kind: str) -> str:
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in (at(*point) for point in curve))
        return f'<polyline class="{kind}" points="{path}"/>'

    size = min(13, (WIDTH - LEFT) / (0.64 * len(env_id)))  # a long name is written smaller
    parts = [f'<text class="title" x="{LEFT}" y="14" style="font-size:{size:.1f}px">{escape(env_id)}</text>']
    for y in ticks(low, high):
        _, height = at(0, y)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height:.1f}" y2="{height:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{height + 3.5:.1f}" text-anchor="end">{short(y)}</text>')
    for x in ticks(0, right / unit):
        across, bottom = at(x * unit, low)
        anchor = "end" if across > WIDTH - RIGHT - 12 else "middle"
        parts.append(
            f'<text class="tick" x="{across:.1f}" y="{bottom + 14:.1f}" text-anchor="{anchor}">{short(x)}</text>'
        )
    parts.append(f'<text class="tick" x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">{name}</text>')
    for algorithm, group in curves.items():
        parts.append(f'<g class="series-{colours[algorithm]}"><title>{escape(algorithm)}</title>')
        if len(group) > 1:
            parts += [line(curve, "run") for curve in group]
        parts += [line(mean(group), "mean"), "</g>"]
    label = escape(f"Learning curves in {env_id} by {by}: {', '.join(series)}", quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def figure(paths: list[Path], by: str) -> str:
    """All environments of these result files, and what the colours mean."""
    panels: dict[str, dict[str, list[Trained]]] = defaultdict(lambda: defaultdict(list))
    for run in (run for path in paths for run in read(path)):
        panels[run.env_id][run.algorithm].append(run)
    runs = [run for series in panels.values() for group in series.values() for run in group]
    algorithms = list(dict.fromkeys(run.algorithm for run in runs))
    colours = {algorithm: index % COLOURS for index, algorithm in enumerate(algorithms)}
    legend = "".join(f'<span class="series-{colours[name]}"><i></i>{escape(name)}</span>' for name in algorithms)
    charts = "".join(panel(env_id, series, colours, by) for env_id, series in panels.items())
    several = any(len(group) > 1 for series in panels.values() for group in series.values())
    one = " of one run." if len(runs) == 1 else " of one run each."
    note = "Episodic return" + ("; each run thin, the mean over seeds thick." if several else one)
    if by == "time":
        hardware = dict.fromkeys(run.hardware for run in runs if run.hardware)
        note += f" Wall-clock time on: {escape('; '.join(hardware))}."
    return (
        f'<figure class="curves"><div class="legend">{legend}</div>'
        f'<div class="panels">{charts}</div><figcaption>{note}</figcaption></figure>'
    )
