"""How far a run is, in `RUN_DIR/progress.json`, for whoever watches it: its curves reach the disk minutes later."""

import json
import time
from collections import deque
from pathlib import Path
from typing import Any

from cleanrl_utils.files import replacing

INTERVAL = 1.0  # seconds between two notes


def follow(writer: Any, run_dir: str, total_steps: int) -> None:
    """From now on, note what the script logs with this writer of curves."""
    add_scalar = writer.add_scalar
    recent_returns = deque(maxlen=100)
    next_note = 0.0

    def add_and_note(tag: str, value: Any, step: int) -> None:
        nonlocal next_note
        add_scalar(tag, value, step)
        if tag == "charts/episodic_return":
            recent_returns.append(value)
        if tag == "charts/SPS" and time.monotonic() >= next_note:  # what a script logs regularly
            next_note = time.monotonic() + INTERVAL
            mean = float(sum(recent_returns) / len(recent_returns)) if recent_returns else None
            facts = {"step": int(step), "total_steps": total_steps, "sps": float(value), "episodic_return": mean}
            note(run_dir, facts)

    writer.add_scalar = add_and_note


def note(run_dir: str | Path, facts: dict[str, float | None]) -> None:
    """Change what is known; that this fails is no reason to end a training."""
    try:
        with replacing(Path(run_dir, "progress.json")) as file:
            json.dump(read(run_dir) | facts, file)
    except OSError:
        pass


def read(run_dir: str | Path) -> dict[str, float | None]:
    try:
        return json.loads(Path(run_dir, "progress.json").read_text())
    except (OSError, ValueError):
        return {}
