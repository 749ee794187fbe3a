"""Export the trained policy of a run as ONNX, to be used without PyTorch or JAX.

Usage:
    python -m cleanrl_utils.export RUN_DIR [--output policy.onnx] [--allow-stale]

The file holds the deterministic policy, observation statistics included: from a batch of observations to a batch of
actions. A policy with a memory takes its state as a second input and returns the next one. Before it is written, it is
compared with the original on observations of the environment and on random ones. A model that is older than its run is
only exported with --allow-stale.
"""

import importlib
import importlib.metadata
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
import tyro
from safetensors import SafetensorError

from cleanrl_utils import backend, command_line
from cleanrl_utils.envpool_games import EnvPoolGames, is_pool
from cleanrl_utils.evaluate import describe_age, load_run, model_args, model_step
from cleanrl_utils.files import replacing

TOLERANCE = 1e-5
BATCH = 13  # for tracing: a size that no other axis of a state has


class ExportError(Exception):
    """What is wrong and what to do, in one line."""


def sample_observations(envs: Any, count: int, rng: np.random.Generator) -> np.ndarray:
    """Half of them from playing at random, half drawn from the observation space, however far it reaches."""
    space = envs.single_observation_space
    space.seed(int(rng.integers(2**31)))
    envs.single_action_space.seed(int(rng.integers(2**31)))
    obs, _ = envs.reset(seed=int(rng.integers(2**31)))
    batches = [np.array(obs)]
    while sum(map(len, batches)) < count // 2:
        actions = np.array([envs.single_action_space.sample() for _ in range(len(obs))])
        obs = envs.step(actions)[0]
        batches.append(np.array(obs))
    drawn = np.stack([space.sample() for _ in range(count - sum(map(len, batches)))])
    if drawn.dtype.kind == "f":
        drawn = np.clip(drawn, -100, 100)
    return np.concatenate([*batches, drawn.astype(batches[0].dtype)])


def input_type(obs: np.ndarray) -> np.dtype:
    """What the exported policy takes: real numbers in single precision, as the network does, pixels as they are."""
    return np.dtype(np.float32) if obs.dtype.kind == "f" else obs.dtype


def difference(x: np.ndarray, y: np.ndarray) -> float:
    """The largest one between two arrays, relative to the largest number of a row where that is above 1."""
    if x.shape != y.shape or x.dtype != y.dtype:
        return np.inf
    x, y = x.reshape(len(x), -1), y.reshape(len(y), -1)
    return float(np.max(np.abs(x - y) / np.maximum(1, np.abs(x).max(1, keepdims=True))))


def largest_differences(session: Any, act: Callable, memories: list[np.ndarray], obs: np.ndarray) -> list[float]:
    """Of actions and, where the original tells them, of scores, between ONNX and the original, step after step.

    A memory must go on as the original's does.
    """
    names = [x.name for x in session.get_inputs()]
    obs, given = obs.astype(input_type(obs)), obs

    def run(batch: np.ndarray, states: list[np.ndarray]) -> list[np.ndarray]:
        return session.run(None, dict(zip(names, [batch, *states], strict=True)))

    states, originals, outcomes = [np.zeros_like(x) for x in memories], [], []
    for start in range(0, len(obs), BATCH):
        expected = act(given[start : start + BATCH])
        outcome = run(obs[start : start + BATCH], states)
        states = outcome[len(outcome) - len(memories) :]
        originals.append(expected)
        outcomes.append(outcome[: len(expected)])
    # and all at once, which is another size of batch; with a memory, only the first step has the same past
    shapes = [[len(obs) if size == BATCH else size for size in x.shape] for x in memories]
    states = [np.zeros(shape, x.dtype) for shape, x in zip(shapes, memories)]
    rows = BATCH if states else len(obs)
    at_once = run(obs, states)
    worst = []
    for x, y, z in zip(map(np.concatenate, zip(*originals)), map(np.concatenate, zip(*outcomes)), at_once):
        worst.append(max(difference(x, y), difference(x[:rows], z[:rows])))
    return worst


def export(
    run_dir: str | Path,
    output: str | Path | None = None,
    tolerance: float = TOLERANCE,
    seed: int = 0,
    allow_stale: bool = False,
) -> tuple[Path, str]:
    """Write a run's policy as ONNX once it is proven equal; returns the path and a description."""
    try:
        import onnxruntime
        import onnxscript  # noqa: F401 (PyTorch's exporter needs it)
    except ImportError as error:
        raise ExportError('exporting needs an extra: pip install "cleanrl[onnx]"') from error
    args, module, model_path = load_run(run_dir)
    library = importlib.import_module("cleanrl_utils.export_" + ("jax" if hasattr(module, "jax") else "torch"))
    age = describe_age(run_dir, model_path)
    if age and not allow_stale:
        raise ExportError(f"{age}; to export the old one: --allow-stale")
    output = Path(output or model_path.with_suffix(".onnx"))
    envs = module.make_envs(args["env_id"], BATCH, False, "")
    if is_pool(envs):
        envs = EnvPoolGames(envs)
    obs = sample_observations(envs, 40 * BATCH, np.random.default_rng(seed))
    backend.check_jax()
    try:
        model, memories = library.trace(module.load_policy(model_path, envs, "cpu", True), obs[:BATCH])
        original = module.load_policy(model_path, envs, "cpu", True)  # anew: without a memory of what was tried on it
    finally:
        envs.close()
    about = {"exp_name": args["exp_name"], "env_id": args["env_id"]}
    about |= {"args": json.dumps(model_args(model_path) or args)}
    about |= {"cleanrl": importlib.metadata.version("cleanrl"), **library.versions()}
    if model_step(model_path) is not None:
        about["global_step"] = model_step(model_path)
    for name, value in about.items():
        model.metadata_props.add(key=name, value=str(value))
    data = model.SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    worst, *of_scores = largest_differences(session, partial(library.act_and_score, original), memories, obs)
    # Actions count; what discrete ones are chosen from may be, as in C51, a small sum of numbers from -100 to 100
    for what, found, limit in (("actions", worst, tolerance), ("scores", max(of_scores, default=0), 10 * tolerance)):
        if not found <= limit:
            advice = f"not written. If rounding explains it, raise --tolerance {tolerance:g}"
            raise ExportError(f"it differs from the original in its {what} by {found:.2g}: {advice}")
    output.parent.mkdir(parents=True, exist_ok=True)
    with replacing(output, "wb") as file:
        file.write(data)
    inputs, outputs = (
        ", ".join(f"{x.name} {x.type.removeprefix('tensor')} {x.shape}" for x in ports)
        for ports in (session.get_inputs(), session.get_outputs())
    )
    found = f"largest difference from the original: {max(worst, *of_scores, 0):.1e}, over {len(obs)} observations"
    return output, f"{inputs} -> {outputs}\n{found}"


def main(
    run_dir: Annotated[Path, tyro.conf.Positional],
    output: Path | None = None,
    tolerance: float = TOLERANCE,
    allow_stale: bool = False,
) -> None:
    """Export the trained policy of a run as ONNX.

    Args:
        run_dir: the folder of the run, trained with --save-model
        output: where to write; by default beside the model
        tolerance: by how much its actions may differ from the original's
        allow_stale: export the model even if its run has gone on since it was saved
    """
    try:
        path, description = export(run_dir, output, tolerance, allow_stale=allow_stale)
    except (ExportError, OSError, ImportError, ValueError, RuntimeError, SafetensorError, gym.error.Error) as error:
        sys.exit(f"cannot export: {' '.join(str(error).split())[:500]}")
    print(f"{path}: {description}")


if __name__ == "__main__":
    from cleanrl_utils import export as this  # the copy of this module that the libraries' modules know

    command_line.run(this.main, prog="python -m cleanrl_utils.export")
