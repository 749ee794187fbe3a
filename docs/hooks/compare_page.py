"""The page of rlops over all results in the repository, as one file that needs no network."""

import tempfile
from pathlib import Path

from cleanrl_utils.rlops import grouping, page
from cleanrl_utils.rlops.compare import Comparison
from cleanrl_utils.rlops.normalize import scales
from cleanrl_utils.rlops.runs import RETURN, Warn, read_paths

NAME = "compare.html"
LAST = 100  # episodes that make the score of a run, as everywhere


def make_page(results: Path, warn: Warn) -> str:
    """What `python -m cleanrl_utils.rlops benchmark/results` writes as compare.html."""
    runs = grouping.group(read_paths([results], warn), [], [], warn)
    known, scale = scales(sorted({run.env_id for run in runs}), "runs")
    comparison = Comparison(runs, RETURN, LAST, scale, known)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, NAME)
        page.write(comparison, path, "All results in the repository", embed_videos_mb=0)
        return path.read_text(encoding="utf-8")
