"""Evaluate the trained policy of a run.

Usage:
    python -m cleanrl_utils.evaluate RUN_DIR --episodes 10 [--capture-video] [--stochastic] [--seed 1]

Works for every algorithm file that has `make_envs` and `load_policy`: same wrappers and observation statistics as in
training, raw returns. The algorithm is the copy of its source in the run folder, i.e. exactly what was trained.
"""

import importlib.util
import json
import os
import random
import sys
import textwrap
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
import torch
import tyro
from safetensors import SafetensorError

if sys.platform == "linux" and not os.environ.keys() & {"DISPLAY", "WAYLAND_DISPLAY"}:
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame films without a screen, but complains about its absence
    if {"--capture-video", "--capture_video"} & set(sys.argv):  # only then: where EGL fails, so does importing MuJoCo
        os.environ.setdefault("MUJOCO_GL", "egl")

# Resuming goes on counting where it stopped, and evaluating again is meant to replace the videos.
warnings.filterwarnings("ignore", message=".*Overwriting existing videos")

SEED_OFFSET = 1_000_000  # evaluation episodes start where training episodes did not


@dataclass
class Evaluation:
    """Raw episodic returns, in the order of environments and then of their episodes, and their summary."""

    returns: list[float]
    lengths: list[int]

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        return float(np.std(self.returns))

    @property
    def interval(self) -> tuple[float, float]:
        """95% confidence interval of the mean, by bootstrap (10,000 resamples, seeded)."""
        resamples = np.random.default_rng(0).choice(self.returns, (10_000, len(self.returns)))
        low, high = np.percentile(resamples.mean(1), [2.5, 97.5])
        return float(low), float(high)

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"mean return {self.mean:.2f}, std {self.std:.2f}, 95% interval of the mean [{low:.2f}, {high:.2f}], "
            f"{len(self.returns)} episodes"
        )


class EnvPoolGames:
    """EnvPool's environments with the infos of gymnasium's: raw returns and lengths of whole games, not of lives."""

    def __init__(self, pool: Any):
        self.pool = pool
        self.single_observation_space, self.single_action_space = pool.observation_space, pool.action_space

    def reset(self, seed: int | None = None) -> tuple:
        """EnvPool takes its seed when it is made."""
        self.returns = np.zeros(self.pool.num_envs)
        return self.pool.reset()

    def step(self, actions: np.ndarray) -> tuple:
        *outcome, infos = self.pool.step(actions)
        self.returns = self.returns + infos["reward"]
        episode = {"r": self.returns, "l": infos["elapsed_step"]}
        over = infos["terminated"].astype(bool) | outcome[3]
        self.returns = self.returns * ~over
        return *outcome, {"final_info": {"episode": episode, "_episode": over}}

    def close(self) -> None:
        self.pool.close()


def evaluate(
    model_path: str | Path,
    env_id: str,
    make_envs: Callable,
    load_policy: Callable,
    episodes: int = 10,
    seed: int = SEED_OFFSET,
    deterministic: bool = True,
    video_dir: str | Path | None = None,
    device: str | None = None,
) -> Evaluation:
    """Run the policy for a number of episodes, some of them side by side.

    Every environment gets its fixed share of the episodes: taking the first to finish would favour short ones.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    shares = [len(share) for share in np.array_split(range(episodes), min(episodes, 10))]
    random_state, generator_state = random.getstate(), torch.get_rng_state()
    random.seed(seed)  # EnvPool's seed is drawn when it is made
    envs = make_envs(env_id, len(shares), video_dir is not None, str(video_dir))
    random.setstate(random_state)
    if hasattr(envs, "recv"):
        envs = EnvPoolGames(envs)
    torch.manual_seed(seed)
    try:
        policy = load_policy(model_path, envs, device, deterministic)
    except (RuntimeError, SafetensorError) as error:  # a damaged file, or the tensors of another network
        raise OSError(f"{model_path} does not load: {textwrap.shorten(str(error), 300)}") from error
    results = [[] for _ in shares]
    obs, _ = envs.reset(seed=seed)
    while any(len(result) < share for result, share in zip(results, shares, strict=True)):
        obs, _, terminations, truncations, infos = envs.step(policy(obs))
        if hasattr(policy, "reset"):  # a recurrent policy forgets at the end of an episode
            policy.reset(terminations | truncations)
        final_info = infos.get("final_info", {})
        for idx in np.flatnonzero(final_info.get("_episode", ())):
            results[idx].append((float(final_info["episode"]["r"][idx]), int(final_info["episode"]["l"][idx])))
    envs.close()
    torch.set_rng_state(generator_state)
    kept = [episode for result, share in zip(results, shares, strict=True) for episode in result[:share]]
    return Evaluation([r for r, _ in kept], [length for _, length in kept])


def load_run(run_dir: str | Path) -> tuple[dict, ModuleType, Path]:
    """A run's arguments, its algorithm (from the copy of the source in the folder) and the path of its model."""
    run_dir = Path(run_dir)
    if not (run_dir / "args.json").exists():
        raise FileNotFoundError(f"{run_dir} is not a run folder: it has no args.json")
    args = json.loads((run_dir / "args.json").read_text())
    model_path = run_dir / f"{args['exp_name']}.safetensors"
    if not model_path.exists():
        raise FileNotFoundError(f"{run_dir} has no model: train with --save-model, or resume it with that flag")
    source = next(run_dir.glob("*.py"), None)
    if source is None:
        raise FileNotFoundError(f"{run_dir} has lost the copy of its algorithm file")
    spec = importlib.util.spec_from_file_location(source.stem, source)
    module = importlib.util.module_from_spec(spec)
    sys.modules[source.stem] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return args, module, model_path


def main(
    run_dir: Annotated[Path, tyro.conf.Positional],
    episodes: int = 10,
    seed: int | None = None,
    capture_video: bool = False,
    stochastic: bool = False,
    cuda: bool = True,
) -> None:
    """Evaluate the trained policy of a run.

    Args:
        run_dir: the folder of the run, trained with --save-model
        episodes: how many episodes
        seed: seed of the environments and of a stochastic policy; by default one derived from the run's
        capture_video: record the episodes of the first environment into RUN_DIR/evaluation/videos
        stochastic: sample actions as in training instead of taking the most likely ones
        cuda: use the GPU when there is one
    """
    if episodes < 1:
        sys.exit("--episodes must be at least 1")
    try:
        args, module, model_path = load_run(run_dir)
        result = evaluate(
            model_path,
            args["env_id"],
            module.make_envs,
            module.load_policy,
            episodes=episodes,
            seed=args["seed"] + SEED_OFFSET if seed is None else seed,
            deterministic=not stochastic,
            video_dir=run_dir / "evaluation" if capture_video else None,
            device=None if cuda else "cpu",
        )
    except (OSError, ImportError, ValueError, gym.error.Error) as error:
        sys.exit(f"cannot evaluate: {error}")
    print(f"{args['env_id']} {module.__name__}: {result}")
    if capture_video:
        print(f"video: {run_dir}/evaluation/videos")


if __name__ == "__main__":
    tyro.cli(main)
