"""Scores on a scale that is the same in every environment, so that they can be summarized over environments.

`reference_scores.csv` has what a random policy and a human score in the 57 Atari games, as published (30 no-op starts,
Wang et al. 2016, https://arxiv.org/abs/1511.06581, after Mnih et al. 2015), and what a random policy scores in other
environments, measured with benchmark/random_scores.py.
"""

import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

PUBLISHED = Path(__file__).resolve().parents[2] / "benchmark" / "results" / "published.csv"
Bounds = dict[str, tuple[float, float]]


@dataclass(frozen=True)
class Scale:
    """What counts as 0 and as 1."""

    name: str
    words: str
    """what 0 and 1 are, as the end of a sentence"""
    bounds: Bounds | None = None
    """of each environment; None: those of the runs that are compared"""


BY_RUNS = Scale("runs", "0 is the lowest and 1 the highest run compared here")


def game_of(env_id: str) -> str:
    """Breakout of Breakout-v5, ALE/Breakout-v5 and BreakoutNoFrameskip-v4; other names stay as they are."""
    found = re.fullmatch(r"(?:ALE/)?(\w+?)(?:NoFrameskip|Deterministic)?-v\d", env_id, re.IGNORECASE)
    return found[1] if found else env_id


def read_table(path: Path, columns: Iterable[str]) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        reader = csv.DictReader(file)
        if not set(columns) <= set(reader.fieldnames or []):
            raise ValueError(f"--normalize {path}: its columns should be {','.join(columns)}")
        return list(reader)


def reference(column: str) -> dict[str, float]:
    """The shipped scores of a column, `random` or `human`, by environment or Atari game."""
    with files("cleanrl_utils.rlops").joinpath("reference_scores.csv").open(newline="") as file:
        return {row["env_id"]: float(row[column]) for row in csv.DictReader(file) if row[column]}


def best_published() -> dict[str, float]:
    """The best published score of any algorithm, by environment or Atari game; empty away from the repository."""
    best: dict[str, float] = {}
    if PUBLISHED.exists():
        games = reference("human")
        for row in read_table(PUBLISHED, ("env_id", "mean")):
            game = game_of(row["env_id"])
            name = game if game in games else row["env_id"]
            best[name] = max(best.get(name, float("-inf")), float(row["mean"]))
    return best


def between(env_ids: Iterable[str], low: dict[str, float], high: dict[str, float]) -> Bounds:
    """The bounds of the environments that both tables know, if they leave room between them."""
    bounds = {}
    for env_id in env_ids:
        name = env_id if env_id in low else game_of(env_id)
        if name in low and name in high and low[name] < high[name]:
            bounds[env_id] = (low[name], high[name])
    return bounds


def read_given(path: Path, env_ids: Iterable[str]) -> Bounds:
    """The bounds in a file with the columns env_id, low, high."""
    bounds = {}
    for row in read_table(path, ("env_id", "low", "high")):
        try:
            low, high = float(row["low"]), float(row["high"])
        except (TypeError, ValueError) as error:
            raise ValueError(f"--normalize {path}: {row['env_id']}: {error}") from error
        if not low < high:
            raise ValueError(f"--normalize {path}: {row['env_id']}: low {low:g} is not below high {high:g}")
        bounds[row["env_id"]] = (low, high)
    return {env_id: bounds[env_id] for env_id in env_ids if env_id in bounds}


def scales(env_ids: list[str], wanted: str) -> tuple[list[Scale], Scale]:
    """All scales that know any of the environments, and the one that is asked for by name or by a file's name."""
    low = reference("random")
    human = Scale("human", "0 is a random policy and 1 a human", between(env_ids, low, reference("human")))
    words = "0 is a random policy and 1 the best published score of any algorithm of CleanRL"
    published = Scale("published", words, between(env_ids, low, best_published()))
    known = [BY_RUNS, human, published]
    if wanted == "given":
        raise ValueError(
            "--normalize given: name the file instead, with columns env_id,low,high: --normalize scores.csv"
        )
    if wanted == "published" and not PUBLISHED.exists():
        raise ValueError("--normalize published: its scores are in the repository of CleanRL, not in the package")
    if wanted.endswith(".csv"):
        path = Path(wanted)
        if not path.is_file():
            raise ValueError(f"--normalize {wanted}: no such file")
        words = f"0 and 1 are the scores given in {path.name}"
        known.append(Scale(path.name, words, read_given(path, env_ids)))
    chosen = next((scale for scale in known if scale.name == Path(wanted).name), None)
    if chosen is None:
        raise ValueError(f"--normalize {wanted}: there are runs, human, published, and files that end in .csv")
    if chosen.bounds == {}:
        raise ValueError(
            f"--normalize {wanted}: it has no scores of {', '.join(env_ids[:5])}{', ...' if env_ids[5:] else ''}; "
            "give your own, with columns env_id,low,high: --normalize scores.csv"
        )
    return [scale for scale in known if scale.bounds != {}], chosen
