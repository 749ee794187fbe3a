"""One HTML page with everything in it: opened from disk, it needs no network and no server."""

import base64
import json
import math
import os
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from cleanrl_utils.rlops import stats
from cleanrl_utils.rlops.compare import Comparison
from cleanrl_utils.rlops.runs import COMPUTED, PLUMBING, Run

NUMBERS = 1_500_000  # in the page's curves, about 10 MB: with many runs, curves have fewer points


def rounded(values: np.ndarray) -> list[float | None]:
    """Five significant digits, as JSON knows them."""
    return [float(f"{x:.5g}") if math.isfinite(x) else None for x in values]


def video_sources(runs: list[Run], page: Path, limit_mb: float) -> tuple[dict[Path, tuple[str, bool]], str]:
    """Where the page finds each video: in itself while there is room, else beside it; and a sentence that says so."""
    sources, room = {}, limit_mb * 1e6
    paths = list(dict.fromkeys(path for run in runs for _, path in run.videos))
    for path in paths:
        size = path.stat().st_size
        if size <= room:
            room -= size
            sources[path] = ("data:video/mp4;base64," + base64.b64encode(path.read_bytes()).decode(), True)
        else:
            sources[path] = (Path(os.path.relpath(path, page.parent)).as_posix(), False)
    linked = sum(not embedded for _, embedded in sources.values())
    if not paths:
        return sources, ""
    if not linked:
        return sources, "Its videos are inside it."
    return (
        sources,
        f"{linked} of its {len(paths)} videos are links: they play while the page stays where it is, beside the runs.",
    )


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
        "args": {name: value for name, value in run.args.items() if value is not None},
        "last": run.steps,
        "time": round(run.seconds, 1),
        "steps": [round(float(x), 2) for x in steps],
        "seconds": rounded(seconds),
        "curves": {tag: rounded(values) for tag, values in curves.items()},
        "scores": {tag: run.score(tag, comparison.window) for tag in tags},
        "videos": videos,
    }


def write(comparison: Comparison, path: Path, title: str, embed_videos_mb: float) -> None:
    """Write the page."""
    series = sum(len(run.curves) + 2 for run in comparison.runs)
    points = int(np.clip(NUMBERS / series, 20, 200))
    sources, about_videos = video_sources(comparison.runs, path, embed_videos_mb)
    data = {
        "title": title,
        "made": time.strftime("%Y-%m-%d %H:%M"),
        "metric": comparison.metric,
        "window": comparison.window,
        "grouping": "algorithm"
        if {run.group for run in comparison.runs} <= {run.algorithm for run in comparison.runs}
        else "as compared",
        "t975": stats.T975,
        "plumbing": sorted(PLUMBING | COMPUTED),
        "notes": comparison.notes(),
        "videos": about_videos,
        "runs": [describe(run, comparison, points, sources) for run in comparison.runs],
    }
    text = json.dumps(data, allow_nan=False, separators=(",", ":")).replace(
        "<", "\\u003c"
    )  # no tag ends the script early
    parts = files("cleanrl_utils.rlops")
    page = parts.joinpath("page.html").read_text("utf-8")
    escaped = title.replace("&", "&amp;").replace("<", "&lt;")
    for mark, content in (
        ("__TITLE__", escaped),
        ("__STYLE__", parts.joinpath("page.css").read_text("utf-8")),
        ("__SCRIPT__", parts.joinpath("page.js").read_text("utf-8")),
        ("__DATA__", text),
    ):
        page = page.replace(mark, content, 1)
    path.write_text(page, "utf-8")
