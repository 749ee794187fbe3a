"""The videos of runs: at which training step each was made, and where the page finds it."""

import base64
import os
import re
from pathlib import Path

import numpy as np

from cleanrl_utils.rlops.events import Curve


def find_videos(run_dir: Path, args: dict, returns: Curve | None) -> list[tuple[int | None, Path]]:
    """The run's videos with the training step at which each ended; None for those of the evaluation.

    The names hold the number of an episode of the first environment, whose episodes end at steps 1, 1 + num_envs, ...
    """
    ends = returns.steps if returns is not None else np.array([])
    ends = ends[(ends - 1) % args.get("num_envs", 1) == 0]
    videos = []
    for path in sorted(run_dir.glob("**/*.mp4")):
        episode, step = (re.search(rf"{kind}-(\d+)", path.name) for kind in ("episode", "step"))
        if "evaluation" in path.relative_to(run_dir).parts:
            videos.append((None, path))
        elif step:
            videos.append((int(step[1]), path))
        elif episode and int(episode[1]) < len(ends):
            videos.append((int(ends[int(episode[1])]), path))
        else:  # of an episode that did not end
            videos.append((int(returns.steps[-1]) if returns is not None else 0, path))
    return sorted(videos, key=lambda video: (video[0] is None, video[0] or 0, video[1]))


def place_videos(paths: list[Path], page: Path, limit_mb: float) -> tuple[dict[Path, tuple[str, bool]], str]:
    """Where the page finds each video: in itself while there is room, else beside it; and a sentence that says so."""
    sources, room = {}, limit_mb * 1e6
    for path in dict.fromkeys(paths):
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
    count = f"{linked} of its {len(sources)} videos"
    return sources, f"{count} are links: they play while the page stays where it is, beside the runs."
