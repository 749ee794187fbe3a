"""One HTML page with everything in it: opened from disk, it needs no network and no server."""

import json
import math
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from cleanrl_utils.rlops import stats
from cleanrl_utils.rlops.compare import Comparison, budget
from cleanrl_utils.rlops.grouping import differences
from cleanrl_utils.rlops.runs import Run
from cleanrl_utils.rlops.videos import place_videos

SCRIPTS = ("base", "stats", "select", "chart", "curves", "tables", "main")  # each uses those before it
NUMBERS = 1_500_000  # in the page's curves, about 10 MB: with many runs, curves have fewer points


def rounded(values: np.ndarray) -> list[float | None]:
    """Five significant digits, as JSON knows them."""
    return [float(f"{x:.5g}") if math.isfinite(x) else None for x in values]


def describe(run: Run, comparison: Comparison, points: int, sources: dict[Path, tuple[str, bool]]) -> dict[str, Any]:
    """What the page knows of a run."""
    steps, seconds, curves = run.thin(points)
    tags = [comparison.metric, *(tag for tag in run.curves if tag != comparison.metric)]
    videos = [{"step": step, "source": sources[path][0], "embedded": sources[path][1]} for step, path in run.videos]
    return {
        "name": run.name,
        "group": run.group,
        "env": run.env_id,
        "seed": run.seed,
        "status": run.status,
        "commit": run.commit,
        "versions": run.versions,
        "hardware": run.hardware,
        "command": run.command,
        "tags": run.tags,
        "source": run.source,
        "args": {name: value for name, value in (run.args or run.settings).items() if value is not None},
        "partial": not run.args,
        "last": run.steps,
        "budget": budget(run),
        "time": round(run.seconds, 1),
        "steps": [round(float(x), 2) for x in steps],
        "seconds": rounded(seconds),
        "curves": {tag: rounded(values) for tag, values in curves.items()},
        "scores": {tag: run.score(tag, comparison.window) for tag in tags},
        "videos": videos,
    }


def varying(runs: list[Run]) -> list[str]:
    """The arguments in which runs differ, where they have them, or of which some runs of an algorithm have none."""
    found = []
    for algorithm in dict.fromkeys(run.algorithm for run in runs):
        found += differences([run for run in runs if run.algorithm == algorithm])
    for name in dict.fromkeys(name for run in runs for name in run.settings):
        if len({run.settings[name] for run in runs if name in run.settings}) > 1:
            found.append(name)
    return [name for name in dict.fromkeys(found) if name != "commit"]


def write(comparison: Comparison, path: Path, title: str, embed_videos_mb: float) -> None:
    """Write the page."""
    series = sum(len(run.curves) + 2 for run in comparison.runs)
    points = int(np.clip(NUMBERS / series, 20, 200))
    paths = [video for run in comparison.runs for _, video in run.videos]
    sources, about_videos = place_videos(paths, path, embed_videos_mb)
    data = {
        "title": title,
        "made": time.strftime("%Y-%m-%d %H:%M"),
        "metric": comparison.metric,
        "window": comparison.window,
        "grouping": "algorithm"
        if {run.group for run in comparison.runs} <= {run.algorithm for run in comparison.runs}
        else "as compared",
        "t975": stats.T975,
        "varying": varying(comparison.runs),
        "normalize": comparison.scale.name,
        "scales": [{"name": x.name, "words": x.words, "bounds": x.bounds} for x in comparison.scales],
        "notes": comparison.notes(),
        "videos": about_videos,
        "runs": [describe(run, comparison, points, sources) for run in comparison.runs],
    }
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    text = text.replace("<", "\\u003c")  # no tag ends the script early
    parts = files("cleanrl_utils.rlops").joinpath("web")
    page = parts.joinpath("page.html").read_text("utf-8")
    escaped = title.replace("&", "&amp;").replace("<", "&lt;")
    for mark, content in (
        ("__TITLE__", escaped),
        ("__STYLE__", parts.joinpath("page.css").read_text("utf-8")),
        ("__SCRIPT__", "\n".join(parts.joinpath(f"{name}.js").read_text("utf-8") for name in SCRIPTS)),
        ("__DATA__", text),
    ):
        page = page.replace(mark, content, 1)
    path.write_text(page, "utf-8")
