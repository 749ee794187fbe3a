"""The comparison as a picture."""

from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from cleanrl_utils.rlops import stats
from cleanrl_utils.rlops.compare import FEW, Comparison, Pair
from cleanrl_utils.rlops.runs import Run
from cleanrl_utils.words import all_of

# Colours that people with any kind of colour vision tell apart (Okabe and Ito), then again with other dashes.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A6D3B", "#7F7F7F"]
DASHES = ["-", "--", ":", "-.", (0, (4, 1, 1, 1, 1, 1))]
COLUMN, ROW = 3.7, 2.7  # inches
MOST_PAIRS = 15  # that are drawn
Styles = dict[str, dict[str, Any]]


def band(runs: list[Run], metric: str, by: str, points: int = 200) -> tuple[np.ndarray, ...]:
    """Common x, mean, lower and upper bound of its 95% interval (Student's t), each run interpolated within its reach.

    x are `steps` or `seconds`, from where all have begun to where the first finished run ends: beyond, the mean would
    jump as runs drop out.
    """
    curves, ends = [], []
    for run in runs:
        curve = run.curve(metric)
        curves.append((getattr(curve, by), curve.values))
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
    """Learning curves by step and by time, an environment per column; below, what is said over all environments."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    style = {"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25}
    style |= {"font.size": 9, "legend.frameon": False, "axes.titlesize": 10}
    with plt.rc_context(style):
        draw(plt, comparison).savefig(image, dpi=150, bbox_inches="tight", pad_inches=0.1)
        plt.close("all")


def draw(plt: Any, comparison: Comparison) -> Any:
    """The figure: a legend, the curves and the summaries, one below the other."""
    env_ids, groups = comparison.env_ids, comparison.groups
    styles = {}
    for i, name in enumerate(groups):
        dash = DASHES[i // len(COLOURS) % len(DASHES)]
        styles[name] = {"color": COLOURS[i % len(COLOURS)], "linestyle": dash}
    summaries = choose_summaries(comparison)
    columns = min(len(env_ids), 4)
    blocks = -(-len(env_ids) // columns)
    lower_columns = 2 if len(summaries) > columns else len(summaries)
    width = COLUMN * max(columns, lower_columns)
    lower_heights = []  # of each row; long lists of names need more room
    lines = sum(pair_name(pair).count("\n") + 1 for pair in drawn_pairs(comparison))
    needed = {draw_aggregate: 0.9 + 0.22 * len(groups)}
    needed[draw_improvement] = 0.9 + 0.08 * len(drawn_pairs(comparison)) + 0.16 * lines
    for start in range(0, len(summaries), max(lower_columns, 1)):
        row = summaries[start : start + lower_columns]
        lower_heights.append(max(ROW, *(needed.get(summary, ROW) for summary in row)))
    widest = max(map(len, groups)) * 0.075 + 0.6  # inches of an entry of the legend
    legend_columns = max(1, min(len(groups), int(width / widest)))
    legend_height = 0.2 * -(-len(groups) // legend_columns) + 0.3
    heights = [legend_height, 2 * ROW * blocks] + [sum(lower_heights)] * bool(summaries)
    figure = plt.figure(figsize=(width, sum(heights)), layout="constrained")
    top, upper, *lower = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    handles = [plt.Line2D([], [], linewidth=1.8, label=name, **styles[name]) for name in groups]
    top.legend(handles=handles, loc="center", ncols=legend_columns)
    axes = upper.subplots(2 * blocks, columns, squeeze=False)
    for index in range(blocks * columns):
        block, column = divmod(index, columns)
        pair = axes[2 * block : 2 * block + 2, column]
        if index < len(env_ids):
            draw_curves(pair, comparison, env_ids[index], styles)
        else:
            for axis in pair:
                axis.remove()
    if summaries:
        grid = {"squeeze": False, "height_ratios": lower_heights}
        below = lower[0].subplots(len(lower_heights), lower_columns, **grid).ravel()
        for axis, summary in zip(below, summaries):
            summary(axis, comparison, styles)
        for axis in below[len(summaries) :]:
            axis.remove()
    return figure


def choose_summaries(comparison: Comparison) -> list[Any]:
    """What there is to say beyond the single environments."""
    found = []
    if comparison.efficiency:
        found.append(draw_efficiency)
    if comparison.summarized:
        found.append(draw_aggregate)
    if comparison.common and (comparison.summarized or comparison.pairs):
        found.append(draw_profile)
    if comparison.pairs:
        found.append(draw_improvement)
    return found


def unit_of(longest: float) -> tuple[float, str]:
    """One unit for a whole axis of steps: with 1M on it, 500k is 0.5M; 999,424 steps are nearly that."""
    return (1e6, "M") if longest >= 0.95e6 else (1e3, "k") if longest >= 0.95e3 else (1, "")


def draw_curves(axes: Any, comparison: Comparison, env_id: str, styles: Styles) -> None:
    """Learning curves of an environment, by step and by time; below five seeds every run, else the interval."""
    here = [run for run in comparison.runs if run.env_id == env_id]
    longest = max(run.seconds for run in here)
    unit, size = ("hours", 3600) if longest > 7200 else ("minutes", 60) if longest > 120 else ("seconds", 1)
    for axis, by, label, scale in zip(axes, ("steps", "seconds"), ("environment steps", unit), (1, size)):
        low, high = np.inf, -np.inf
        for name in comparison.groups:
            runs = comparison.cell(name, env_id)
            if not runs or comparison.metric.startswith("eval/"):  # those have no curve over training
                continue
            x, mean, lower, upper = band(runs, comparison.metric, by)
            axis.plot(x / scale, mean, linewidth=1.8, **styles[name])
            if len(runs) >= FEW:
                axis.fill_between(x / scale, lower, upper, color=styles[name]["color"], alpha=0.18, linewidth=0)
            for run in runs:  # the axis shows every run, and of a band as much as fits: with two seeds it is endless
                curve = run.curve(comparison.metric)
                low, high = min(low, curve.values.min()), max(high, curve.values.max())
                if 1 < len(runs) < FEW:
                    along = getattr(curve, by) / scale
                    axis.plot(along, curve.values, color=styles[name]["color"], alpha=0.3, linewidth=0.8)
        if low <= high:
            margin = 0.06 * (high - low) or 1
            axis.set_ylim(low - margin, high + margin)
        axis.set(xlabel=label, ylabel=comparison.metric.split("/")[-1].replace("_", " "))
    axes[0].set_title(fill(env_id, 40))
    divisor, letter = unit_of(max(run.steps for run in here))
    axes[0].xaxis.set_major_formatter(lambda x, _: f"{x / divisor:g}{letter}" if x else "0")


def draw_aggregate(axis: Any, comparison: Comparison, styles: Styles) -> None:
    """The interquartile mean of the normalized scores with its interval, a line for each group."""
    for position, name in enumerate(comparison.groups):
        strata = comparison.normalized(name)
        colour = styles[name]["color"]
        if stats.several(strata):
            bounds = stats.interval(stats.pooled_iqm, strata)
            axis.plot(bounds, [-position] * 2, color=colour, linewidth=7, alpha=0.35, solid_capstyle="butt")
        axis.plot(stats.pooled_iqm(strata), -position, "|", color=colour, markersize=11, markeredgewidth=2.5)
    names = [fill(name, 24) for name in comparison.groups]
    axis.set_yticks([-i for i in range(len(names))], names, fontsize=8)
    axis.set(title=f"{all_of(len(comparison.common))} environments", xlabel="IQM of normalized scores")
    axis.set_ylim(0.6 - len(names), 0.6)


def draw_efficiency(axis: Any, comparison: Comparison, styles: Styles) -> None:
    """The interquartile mean of the normalized scores in the course of training."""
    efficiency = comparison.efficiency
    for name, (iqm, low, high) in efficiency.lines.items():
        axis.plot(efficiency.x, iqm, linewidth=1.8, **styles[name])
        if stats.several(comparison.normalized(name)):
            axis.fill_between(efficiency.x, low, high, color=styles[name]["color"], alpha=0.15, linewidth=0)
    axis.set(title="sample efficiency", xlabel=f"environment {efficiency.unit}", ylabel="IQM of normalized scores")
    if efficiency.unit == "steps":
        divisor, letter = unit_of(efficiency.x[-1])
        axis.xaxis.set_major_formatter(lambda x, _: f"{x / divisor:g}{letter}" if x else "0")
    else:
        axis.set_xlabel("% of the environment steps")


def draw_profile(axis: Any, comparison: Comparison, styles: Styles) -> None:
    """The share of runs above each normalized score."""
    highest = max(float(x.max()) for name in comparison.groups for x in comparison.normalized(name))
    thresholds = np.linspace(0, max(1.0, highest), 101)
    for name in comparison.groups:
        strata = comparison.normalized(name)
        axis.step(thresholds, stats.profile(strata, thresholds), where="post", **styles[name])
        if min(map(len, strata)) >= FEW:  # of fewer seeds, it hides everything
            low, high = stats.interval(lambda x: stats.profile(x, thresholds), strata)
            band = {"color": styles[name]["color"], "alpha": 0.15, "linewidth": 0, "step": "post"}
            axis.fill_between(thresholds, low, high, **band)
    axis.set(title="performance profile", xlabel="normalized score τ", ylabel="share of runs above τ")
    axis.set_ylim(-0.02, 1.02)


def drawn_pairs(comparison: Comparison) -> list[Pair]:
    """Every two groups over the environments they share, as many as there is room for."""
    last = {(pair.x, pair.y): pair for pair in comparison.pairs}  # the last of a pair is over all environments
    return list(last.values())[:MOST_PAIRS]


def pair_name(pair: Pair) -> str:
    return fill(f"{pair.x} > {pair.y}", 40)


def draw_improvement(axis: Any, comparison: Comparison, styles: Styles) -> None:
    """The probability of improvement of every two groups over the environments they share."""
    shown = drawn_pairs(comparison)
    for position, pair in enumerate(shown):
        xs, ys = comparison.of(pair.x, pair.env_ids), comparison.of(pair.y, pair.env_ids)
        if stats.several(xs, ys):
            bounds = stats.interval(stats.improvement, xs, ys)
            axis.plot(bounds, [-position] * 2, color="#555555", linewidth=5, alpha=0.35, solid_capstyle="butt")
        axis.plot(stats.improvement(xs, ys), -position, "o", color="#222222", markersize=5)
    axis.axvline(0.5, color="#555555", linewidth=1, linestyle=":")
    axis.set_yticks([-i for i in range(len(shown))], [pair_name(pair) for pair in shown], fontsize=8)
    total = len({(pair.x, pair.y) for pair in comparison.pairs})
    more = f"the first {len(shown)} of {total} pairs; the table has all" if total > len(shown) else "P(x > y)"
    axis.set(title="probability of improvement", xlabel=more, xlim=(-0.02, 1.02), ylim=(0.6 - len(shown), 0.6))
