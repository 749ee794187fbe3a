"""Evaluate the trained policies of runs.

Usage:
    python -m cleanrl_utils.evaluate RUN_DIR [RUN_DIR ...] --episodes 10 [--capture-video] [--stochastic] [--json]

Works for every algorithm file that has `make_envs` and `load_policy`: same wrappers and observation statistics as in
training, raw returns. The algorithm is the copy of its source in the run folder, i.e. exactly what was trained.

The result says to which step the model was trained; if the run has gone on since, a warning says so. An episode that
does not end is cut off, and counts with its return so far.
"""

import importlib.util
import os
import random
import sys
import textwrap
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from json import dumps, loads
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
import tyro
from safetensors import SafetensorError, safe_open

from cleanrl_utils import backend, command_line, provenance
from cleanrl_utils.checkpoint import last_step
from cleanrl_utils.envpool_games import EnvPoolGames, is_pool
from cleanrl_utils.snapshot import end_games, layers, stop_filming
from cleanrl_utils.words import plural

HAS_SCREEN = sys.platform != "linux" or bool(os.environ.keys() & {"DISPLAY", "WAYLAND_DISPLAY"})
if not HAS_SCREEN:
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame films without a screen, but complains about its absence
    if {"--capture-video", "--capture_video"} & set(sys.argv):  # only then: where EGL fails, so does importing MuJoCo
        os.environ.setdefault("MUJOCO_GL", "egl")

# Resuming goes on counting where it stopped, and evaluating again is meant to replace the videos.
warnings.filterwarnings("ignore", message=".*Overwriting existing videos")

SEED_OFFSET = 1_000_000  # evaluation episodes start where training episodes did not
MAX_EPISODE_STEPS = 108_000  # the frames of half an hour of Atari, the limit that papers use
MAX_FILM_BYTES = 4e9  # the frames of a film are kept in memory until it is written


@dataclass
class Evaluation:
    """Raw episodic returns, in the order of environments and then of their episodes, and their summary."""

    returns: list[float]
    lengths: list[int]
    num_cut_off: int = 0
    """how many of the episodes did not end by themselves"""
    max_episode_steps: int = MAX_EPISODE_STEPS
    """after so many steps they were cut off"""
    global_step: int | None = None
    """the step to which the model was trained, where the model says so"""
    run_step: int | None = None
    """the step that its run has reached, where it is known"""

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
        text = f"return {self.mean:.2f}"
        if len(self.returns) > 1:  # a single one has no spread
            low, high = self.interval
            text = f"mean {text}, std {self.std:.2f}, 95% interval of the mean [{low:.2f}, {high:.2f}]"
        text += f", {plural(len(self.returns), 'episode')}"
        if self.num_cut_off:
            text += f" ({self.num_cut_off} cut off after {self.max_episode_steps} steps)"
        if self.global_step is not None:
            text += f", trained to step {self.global_step}"
            if self.run_step is not None and self.run_step > self.global_step:
                text += f" (the run is at step {self.run_step})"
        return text


class GymnasiumGames:
    """gymnasium's environments with the raw return and the length of each episode so far."""

    def __init__(self, envs: Any):
        self.envs = envs
        self.reset, self.step, self.close = envs.reset, envs.step, envs.close
        # RecordEpisodeStatistics: wrappers around it may clip rewards, or end an episode with each life.
        self.statistics = [layer for layer in layers(envs) if "episode_returns" in vars(layer)]

    @property
    def returns(self) -> np.ndarray:
        return np.array([wrapper.episode_returns for wrapper in self.statistics])

    @property
    def lengths(self) -> np.ndarray:
        return np.array([wrapper.episode_lengths for wrapper in self.statistics])

    def starts(self, dones: np.ndarray) -> np.ndarray:
        """Which environments show the first observation of an episode now: those in which one has just ended."""
        return dones

    def reset_some(self, which: np.ndarray, obs: np.ndarray) -> np.ndarray:
        """Start new games in some of the environments; returns the observations of all."""
        end_games(self.envs)
        obs, _ = self.envs.reset(options={"reset_mask": which})
        return obs


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
    max_episode_steps: int = MAX_EPISODE_STEPS,
    show: Callable[[np.ndarray, int], None] | None = None,
) -> Evaluation:
    """Run the policy for a number of episodes, some of them side by side.

    Every environment gets its fixed share of the episodes: taking the first to finish would favour short ones. They are
    filmed into `video_dir`, or played one after the other, and each frame and its rate are given to `show`.
    """
    device = device or ("cuda" if backend.has_gpu() else "cpu")
    shares = [len(share) for share in np.array_split(range(episodes), 1 if show else min(episodes, 10))]
    random_states = backend.random_states()
    random.seed(seed)  # EnvPool's seed is drawn when it is made
    envs = make_envs(env_id, len(shares), video_dir is not None, str(video_dir))
    random.setstate(random_states["random"])
    if is_pool(envs):
        games = envs = EnvPoolGames(envs, video_dir)
    else:
        games = GymnasiumGames(envs)
    np.random.seed(seed)
    if backend.pytorch():
        backend.pytorch().manual_seed(seed)
    backend.check_jax()
    try:
        policy = load_policy(model_path, envs, device, deterministic)
    except (RuntimeError, SafetensorError, KeyError) as error:  # a damaged file, or the tensors of another network
        raise OSError(f"{model_path} does not load: {textwrap.shorten(str(error), 300)}") from error
    films = []
    if video_dir is not None:
        films = [layer for layer in layers(envs) if "recorded_frames" in vars(layer)]
        for path in Path(video_dir, "videos").glob("rl-video-episode-*.mp4"):
            path.unlink()  # of an earlier evaluation
    if show:
        if not films:
            raise ValueError(f"{env_id} has no pictures to show")
        game = films[0].env
        stop_filming(envs)
        films = []

    results = [[] for _ in shares]  # of each environment: the return and the length of its episodes
    num_cut_off = 0
    obs, _ = games.reset(seed=seed)
    while any(len(result) < share for result, share in zip(results, shares, strict=True)):
        try:
            actions = policy(obs)
        except Exception as error:  # a network in JAX looks at its parameters when it is first called
            if not backend.is_misfit(error):
                raise
            reason = f"{error} is not in {tensor_names(model_path)}" if isinstance(error, KeyError) else str(error)
            raise OSError(f"{model_path} does not load: {textwrap.shorten(reason, 300)}") from error
        obs, _, terminations, truncations, infos = games.step(actions)
        if show:
            show(game.render(), game.metadata.get("render_fps", 30))
        starts = games.starts(terminations | truncations)
        final_info = infos.get("final_info", {})
        for idx in np.flatnonzero(final_info.get("_episode", ())):
            results[idx].append((float(final_info["episode"]["r"][idx]), int(final_info["episode"]["l"][idx])))
        too_long = games.lengths >= max_episode_steps
        if too_long.any():
            for idx in np.flatnonzero(too_long):
                num_cut_off += len(results[idx]) < shares[idx]
                results[idx].append((float(games.returns[idx]), int(games.lengths[idx])))
            obs = games.reset_some(too_long, obs)
            starts = starts | too_long
        if hasattr(policy, "reset"):  # a recurrent policy forgets the past before an episode starts
            policy.reset(starts)
        for film in films:
            if film.recording and film_bytes(film) > MAX_FILM_BYTES:
                film.stop_recording()  # writes the film of the episode up to here
        if films and len(results[0]) >= shares[0]:  # the first environment, which is filmed, has played its share
            stop_filming(envs)
            films = []
    games.close()
    backend.set_random_states(random_states)
    kept = [episode for result, share in zip(results, shares, strict=True) for episode in result[:share]]
    returns = [episodic_return for episodic_return, _ in kept]
    lengths = [length for _, length in kept]
    return Evaluation(returns, lengths, num_cut_off, max_episode_steps, model_step(model_path))


def film_bytes(film: gym.wrappers.RecordVideo) -> int:
    """The memory that the frames of a film take, all of one size."""
    frames = film.recorded_frames
    return len(frames) * frames[0].nbytes if frames else 0


def model_metadata(model_path: str | Path) -> dict[str, str]:
    """What a model says of itself: `args` and `global_step`. Old models say less."""
    try:
        with safe_open(model_path, "numpy") as file:
            return file.metadata() or {}
    except (OSError, SafetensorError):
        return {}


def model_step(model_path: str | Path) -> int | None:
    """The step to which a model was trained, or None if it does not say."""
    try:
        return int(model_metadata(model_path)["global_step"])
    except (KeyError, ValueError):
        return None


def tensor_names(model_path: str | Path) -> str:
    with safe_open(model_path, "numpy") as model:
        return ", ".join(sorted(model.keys()))


def model_args(model_path: str | Path) -> dict | None:
    """The arguments with which a model was trained, or None if it does not say: its run may have gone on."""
    try:
        args = loads(model_metadata(model_path)["args"])
    except (KeyError, ValueError):
        return None
    return args if isinstance(args, dict) else None


def describe_age(run_dir: str | Path, model_path: str | Path) -> str:
    """What is wrong with a model that is older than its run; empty if it is not, or if either of them does not say."""
    trained_to, run_at = model_step(model_path), last_step(run_dir)
    if trained_to is None or run_at is None:
        return ""
    if trained_to < run_at:
        since = f"has gone on to step {run_at}"
    elif went_back(run_dir, model_path, trained_to):
        since = "was resumed from an earlier step since"
    else:
        return ""
    facts = f"the model was trained to step {trained_to}, but the run {since}"
    return f"{facts} (for a newer model: --resume {run_dir} --save-model)"


def went_back(run_dir: str | Path, model_path: str | Path, trained_to: int) -> bool:
    """Whether the run was resumed, after the model was saved, from a checkpoint that is older than the model."""
    sessions = provenance.read(run_dir).get("sessions", [])
    saved = time.strftime(provenance.TIME, time.gmtime(Path(model_path).stat().st_mtime))
    return any(session["from_step"] < trained_to and session.get("started", "") > saved for session in sessions)


def evaluation_seed(seed: int) -> int:
    """The seed of the episodes that evaluate a run with this seed; it stays within what NumPy takes."""
    return (seed + SEED_OFFSET) % 2**32


def load_run(run_dir: str | Path) -> tuple[dict, ModuleType, Path]:
    """A run's arguments, its algorithm (from the copy of the source in the folder) and the path of its model."""
    run_dir = Path(run_dir)
    if not (run_dir / "args.json").exists():
        raise FileNotFoundError(f"{run_dir} is not a run folder: it has no args.json")
    args = loads((run_dir / "args.json").read_text())
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


def evaluate_run(
    args: dict,
    module: ModuleType,
    model_path: Path,
    seed: int | None = None,
    device: str | None = None,
    **options: Any,
) -> Evaluation:
    """Evaluate what `load_run` has found, by default in episodes that the run was not trained on."""
    seed = evaluation_seed(args["seed"]) if seed is None else seed
    functions = module.make_envs, module.load_policy
    with backend.place_jax(device):
        return evaluate(model_path, args["env_id"], *functions, seed=seed, device=device, **options)


def main(
    run_dirs: Annotated[list[Path], tyro.conf.Positional],
    episodes: int = 10,
    seed: int | None = None,
    capture_video: bool = False,
    stochastic: bool = False,
    max_episode_steps: int = MAX_EPISODE_STEPS,
    cuda: bool = True,
    json: bool = False,
) -> None:
    """Evaluate the trained policies of runs.

    Args:
        run_dirs: the folders of the runs, trained with --save-model
        episodes: how many episodes each
        seed: seed of the environments and of a stochastic policy; by default one derived from the run's
        capture_video: record the episodes of the first environment into RUN_DIR/evaluation/videos
        stochastic: sample actions as in training instead of taking the most likely ones
        max_episode_steps: cut an episode off after so many steps
        cuda: use the GPU when there is one
        json: print a list of all results as JSON, every single return included
    """
    if not run_dirs:
        sys.exit("name the folder of at least one run, such as runs/CartPole-v1__ppo__1__1700000000")
    for flag, value in {"--episodes": episodes, "--max-episode-steps": max_episode_steps}.items():
        if value < 1:
            sys.exit(f"{flag} must be at least 1")
    results, failures = [], []
    for run_dir in run_dirs:
        try:
            args, module, model_path = load_run(run_dir)
            age = describe_age(run_dir, model_path)
            if age:
                print(f"warning: {age}", file=sys.stderr)
            result = evaluate_run(
                args,
                module,
                model_path,
                episodes=episodes,
                seed=seed,
                deterministic=not stochastic,
                video_dir=run_dir / "evaluation" if capture_video else None,
                device=None if cuda else "cpu",
                max_episode_steps=max_episode_steps,
            )
            result.run_step = last_step(run_dir)
        except (OSError, ImportError, ValueError, gym.error.Error) as error:
            failures.append(f"cannot evaluate {run_dir}: {error}")
            continue
        about = {"run_dir": str(run_dir), "env_id": args["env_id"], "exp_name": args["exp_name"], "seed": args["seed"]}
        results.append(about | {"mean": result.mean, "std": result.std, "interval": result.interval} | asdict(result))
        if not json:
            name = f"{run_dir}: " if len(run_dirs) > 1 else ""
            print(f"{name}{args['env_id']} {module.__name__}: {result}", flush=True)
            if capture_video:
                print(f"video: {run_dir}/evaluation/videos")
    if json:
        print(dumps(results, indent=2))
    if failures:
        sys.exit("\n".join(failures))


if __name__ == "__main__":
    command_line.run(main, prog="python -m cleanrl_utils.evaluate")
