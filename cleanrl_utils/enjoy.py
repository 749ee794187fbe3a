"""Watch a trained policy play: from a run folder or from the Hugging Face Hub.

Usage:
    python -m cleanrl_utils.enjoy --exp-name dqn --env-id CartPole-v1 --eval-episodes 10 [--seed 1] [--capture-video]
    python -m cleanrl_utils.enjoy RUN_DIR

Where there is a screen it opens a window, elsewhere it records a video. By name it takes the newest run of that name in
runs/ that has a model, and looks on the hub if there is none, or if --hf-entity says where. What comes from the hub is
never executed: see cleanrl_utils/huggingface.py. The score says to which step the policy was trained; if its run has
gone on since, a warning says so.
"""

import difflib
import json
import os
import sys
import tempfile
from ctypes.util import find_library
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import gymnasium as gym
import numpy as np
import tyro

from cleanrl_utils import command_line
from cleanrl_utils.checkpoint import last_step
from cleanrl_utils.evaluate import HAS_SCREEN, MAX_EPISODE_STEPS, Evaluation, describe_age, evaluate_run, load_run
from cleanrl_utils.huggingface import ALGORITHMS, HubError, load_pulled, pull_from_hub, repository


def find_run(exp_name: str, env_id: str, seed: int | str) -> Path | None:
    """The newest run of that name that has a model."""
    pattern = f"{env_id.replace('/', '_')}__{exp_name}__{seed}__*/{exp_name}.safetensors"
    models = sorted(Path("runs").glob(pattern), key=lambda path: path.stat().st_mtime)
    return models[-1].parent if models else None


def show_difference(source: Path | None) -> None:
    """Print how the source in a repository differs from ours, which is what plays."""
    if source is None:
        print("the repository has no source")
        return
    ours = ALGORITHMS / source.name
    texts = [path.read_text(errors="replace").splitlines(keepends=True) for path in (ours, source)]
    lines = difflib.unified_diff(*texts, fromfile=f"cleanrl/{ours.name}", tofile=f"hub/{source.name}")
    # control characters in a stranger's file could rewrite what the terminal shows
    text = "".join(char for char in "".join(lines) if char.isprintable() or char in "\n\t")
    print(text or f"{source.name} is the same as here")


def main(
    run_dir: Annotated[Path | None, tyro.conf.Positional] = None,
    exp_name: str = "",
    env_id: str = "",
    seed: int = 1,
    eval_episodes: int = 10,
    hf_entity: str = "",
    hf_repository: str = "",
    show: Literal["auto", "window", "video", "nothing"] = "auto",
    capture_video: bool = False,
    stochastic: bool = False,
    show_source: bool = False,
    max_episode_steps: int = MAX_EPISODE_STEPS,
    cuda: bool = True,
) -> None:
    """Watch a trained policy play: from a run folder or from the Hugging Face Hub.

    Args:
        run_dir: the folder of a run, trained with --save-model
        exp_name: the name of the experiment, like dqn
        env_id: the id of the environment
        seed: the seed with which it was trained
        eval_episodes: how many episodes to play
        hf_entity: the user or organisation on the hub; by default runs/ is searched first, then cleanrl on the hub
        hf_repository: the whole name of a repository, like cleanrl/CartPole-v1-dqn-seed1
        show: a window, a video of the first environment, or the score alone; auto is a window where there is a screen
        capture_video: the same as --show video
        stochastic: sample actions as in training instead of taking the most likely ones
        show_source: print how the algorithm file in the repository differs from the one here, and stop
        max_episode_steps: cut an episode off after so many steps
        cuda: use the GPU when there is one
    """
    for flag, value in {"--eval-episodes": eval_episodes, "--max-episode-steps": max_episode_steps}.items():
        if value < 1:
            sys.exit(f"{flag} must be at least 1")
    is_automatic = show == "auto" and not capture_video
    if capture_video:
        show = "video"
    elif show == "auto":
        show = "window" if HAS_SCREEN else "video"
    if show == "video" and not HAS_SCREEN and find_library("EGL"):
        os.environ.setdefault("MUJOCO_GL", "egl")
    if not run_dir and not hf_repository and not (exp_name and env_id):
        sys.exit("name a policy: RUN_DIR, or --exp-name and --env-id, or --hf-repository")
    claimed = None
    try:
        local = run_dir or (find_run(exp_name, env_id, seed) if not hf_entity and not hf_repository else None)
        if local:
            name, video_dir = str(local), local / "evaluation"
            args, module, model_path = load_run(local)
            age = describe_age(local, model_path)
            if age:
                print(f"warning: {age}", file=sys.stderr)
        else:
            if not hf_entity and not hf_repository and (other := find_run(exp_name, env_id, "*")):
                print(f"note: runs/ has no model of seed {seed}, but {other}; looking on the hub", file=sys.stderr)
            name = hf_repository or repository(hf_entity or "cleanrl", env_id, exp_name, seed)
            folder, video_dir = pull_from_hub(name), Path("runs", "enjoy", name.replace("/", "_"))
            args, module, model_path, source = load_pulled(folder)
            if show_source:
                show_difference(source)
                return
            if args["env_id"] != env_id and (env_id or ":" in args["env_id"]):
                # `package:id` imports a package: only if the user, not the repository, says so
                raise HubError(f"the policy was trained on {args['env_id']!r}: give that as --env-id to play it")
            claimed = read_scores(folder / "evaluation.json")
            if source and source.read_bytes() != (ALGORITHMS / source.name).read_bytes():
                print(f"note: it was trained by another version of {source.name} (--show-source); ours plays it")
        play = partial(
            evaluate_run,
            args,
            module,
            model_path,
            episodes=eval_episodes,
            deterministic=not stochastic,
            device=None if cuda else "cpu",
            max_episode_steps=max_episode_steps,
        )
        try:
            if show == "window":
                with tempfile.TemporaryDirectory() as folder:  # nothing is recorded there
                    result = play(video_dir=folder, show=Window(f"{args['exp_name']}, {args['env_id']}").show)
            else:
                result = play(video_dir=video_dir if show == "video" else None)
        except Exception as error:  # whatever a renderer raises
            reason = " ".join(str(error).split())[:200]
            if isinstance(error, OSError) or show == "nothing":
                raise
            if not is_automatic:
                raise ValueError(f"no pictures ({reason}); --show nothing plays without") from error
            print(f"note: no pictures ({reason})", file=sys.stderr)
            os.environ.pop("MUJOCO_GL", None)
            show = "nothing"
            result = play()
        if local:
            result.run_step = last_step(local)
    except (HubError, OSError, ImportError, ValueError, gym.error.Error) as error:
        sys.exit(f"cannot play: {' '.join(str(error).split())}")
    print(f"policy:  {name}")
    if claimed:
        print(f"claimed: {claimed}")
    print(f"{'here:' if claimed else 'score:':<8} {result}")
    if show == "video":
        print(f"video:   {video_dir}/videos")


class Window:
    """Shows the frames of a game at its pace. Once it is closed, the rest is played unseen."""

    def __init__(self, title: str):
        import pygame

        self.pygame, self.title, self.screen, self.closed = pygame, title, None, False

    def show(self, frame: np.ndarray, frames_per_second: int) -> None:
        if self.closed:
            return
        pygame = self.pygame
        height, width, _ = frame.shape
        scale = max(1, 480 // height)  # those of Atari are small
        size = width * scale, height * scale
        if self.screen is None:
            pygame.display.init()
            self.screen, self.clock = pygame.display.set_mode(size), pygame.time.Clock()
            pygame.display.set_caption(self.title)
        picture = pygame.surfarray.make_surface(frame.swapaxes(0, 1))
        self.screen.blit(pygame.transform.scale(picture, size), (0, 0))
        pygame.display.flip()
        self.clock.tick(frames_per_second)
        if any(event.type == pygame.QUIT for event in pygame.event.get()):
            self.closed = True
            pygame.display.quit()


def read_scores(path: Path) -> Evaluation | None:
    """What a repository says its policy scores."""
    try:
        scores = json.loads(path.read_text())
        result = Evaluation([float(x) for x in scores["returns"]], [int(x) for x in scores["lengths"]])
        for name in ("num_cut_off", "max_episode_steps", "global_step", "run_step"):  # what older ones do not say
            if scores.get(name) is not None:
                setattr(result, name, int(scores[name]))
        return result
    except (OSError, ValueError, KeyError, TypeError):
        return None


if __name__ == "__main__":
    command_line.run(main, prog="python -m cleanrl_utils.enjoy")
