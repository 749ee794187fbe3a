"""Save and restore the exact state of environments, so that a resumed run equals one that never stopped.

Pickling an environment is not enough: many pickle as their constructor's arguments and silently start again. Here the
attributes of every layer of wrappers are saved instead: counters, physics, random generators and all.
"""

import pickle
from collections.abc import Iterator
from types import FunctionType
from typing import Any

# Attributes that say how an environment is built or drawn, not where it is.
STRUCTURE = {"env", "envs", "env_fns", "spec", "metadata", "_saved_kwargs"}
RENDERING = {"screen", "clock", "surf", "font", "window", "window_surface", "renderer", "viewer", "recorded_frames"}


def layers(envs: Any) -> Iterator[Any]:
    """Every object that makes up `envs`: vector wrappers, then the wrappers of each single environment, outside in."""
    yield envs
    for inner in getattr(envs, "envs", None) or [vars(envs).get("env")]:
        if inner is not None:
            yield from layers(inner)


def take_snapshot(envs: Any) -> list[dict] | None:
    """The attributes of each layer, or None where something that matters cannot be saved."""
    snapshot = []
    for layer in layers(envs):
        names = vars(layer).keys() - STRUCTURE - RENDERING
        state = {name: vars(layer)[name] for name in names if not isinstance(vars(layer)[name], FunctionType)}
        try:
            pickle.dumps(state)
        except Exception:  # whatever a foreign object raises: it cannot be saved
            return None
        snapshot.append(state)
    return snapshot


def restore_snapshot(envs: Any, snapshot: list[dict]) -> None:
    """Put `envs`, built as they were when the snapshot was taken, into its state."""
    for layer, state in zip(layers(envs), snapshot, strict=True):
        vars(layer).update(state)
