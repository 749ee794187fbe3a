"""How far a run is, in `RUN_DIR/progress.json`, for whoever watches it: its curves reach the disk minutes later."""

import time
from collections import deque
from pathlib import Path
from typing import Any

from cleanrl_utils.curves import event_file
from cleanrl_utils.files import read_json, write_json

INTERVAL = 1.0  # seconds between two notes


def final_step(args: dict[str, Any]) -> int:
    """The step at which the training ends: it takes all environments, and whole rollouts, at a time.

    Updates of an offline phase, before the first environment step, are counted as steps as well.
    """
    steps = args.get("num_envs", 1) * args.get("num_steps", 1)
    return args.get("offline_steps", 0) + args.get("total_timesteps", 0) // steps * steps


def follow(writer: Any, run_dir: str, total_steps: int) -> None:
    """From now on, note what the script logs with this writer of curves, PyTorch's or that of writer.py."""
    file = event_file(writer)
    add_event = file.add_event
    recent_returns = deque(maxlen=100)
    next_note = 0.0

    def add_and_note(event: Any) -> None:
        nonlocal next_note
        add_event(event)
        for scalar in event.summary.value:
            if scalar.tag == "charts/episodic_return":
                recent_returns.append(scalar.simple_value)
            if scalar.tag == "charts/SPS" and time.monotonic() >= next_note:  # what a script logs regularly
                next_note = time.monotonic() + INTERVAL
                mean = sum(recent_returns) / len(recent_returns) if recent_returns else None
                facts = {"step": event.step, "total_steps": total_steps, "sps": scalar.simple_value}
                note(run_dir, facts | {"episodic_return": mean})

    file.add_event = add_and_note


def note(run_dir: str | Path, facts: dict[str, float | None]) -> None:
    """Change what is known; that this fails is no reason to end a training."""
    try:
        write_json(Path(run_dir, "progress.json"), read(run_dir) | facts)
    except OSError:
        pass


def read(run_dir: str | Path) -> dict[str, float | None]:
    return read_json(Path(run_dir, "progress.json"))
