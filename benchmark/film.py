"""A trained robot as a small moving picture (WebP or GIF), such as the one of the README.

Usage:
    python cleanrl/ppo_continuous_action.py --env-id Walker2d-v4 --seed 1 --no-cuda --save-model
    MUJOCO_GL=egl python benchmark/film.py RUN_DIR docs/assets/walker2d.webp

The camera moves along with the robot, which gymnasium's own for Walker2d-v4 does not. Pictures are taken at 25 a second
of simulated time, so that the film runs as fast as the robot. Needs the extra mujoco, and Pillow, which comes with it.
"""

import importlib.util
import sys
from pathlib import Path

import gymnasium as gym
import tyro
from PIL import Image

from cleanrl_utils import command_line
from cleanrl_utils.evaluate import model_args


def load_script(run_dir: Path):
    """The algorithm file as it was trained, from its copy in the run folder."""
    (path,) = run_dir.glob("*.py")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def film(run_dir: Path, image: Path, start: float = 2.0, seconds: float = 4.0, width: int = 320, seed: int = 7) -> None:
    """Let a trained policy play, and film a part of it.

    Args:
        run_dir: the folder of the run, trained with --save-model
        image: the film to write, .webp (small) or .gif
        start: where the film begins, in seconds of simulated time
        seconds: how long it is
        width: in pixels; three quarters of it is the height
        seed: of the environment
    """
    (model,) = run_dir.glob("*.safetensors")
    script, env_id = load_script(run_dir), model_args(model)["env_id"]
    policy = script.load_policy(str(model), script.make_envs(env_id, 1, False, ""), "cpu")
    env = gym.make(env_id, render_mode="rgb_array", width=width, height=width * 3 // 4)
    renderer = env.unwrapped.mujoco_renderer
    renderer.camera_id = -1  # none of the model's own
    renderer.default_cam_config = {
        "type": 0,
        "distance": 3.4,
        "elevation": -10.0,
        "azimuth": 90.0,
    }  # type 0: moved by us
    env = gym.wrappers.ClipAction(gym.wrappers.FlattenObservation(env))
    frame_skip = round(1 / (25 * env.unwrapped.dt))
    obs, _ = env.reset(seed=seed)
    env.render()  # makes the renderer's viewer
    frames, episode_return = [], 0.0
    for step in range(round((start + seconds) / env.unwrapped.dt)):
        if step * env.unwrapped.dt >= start and step % frame_skip == 0:
            renderer.viewer.cam.lookat[:] = env.unwrapped.data.qpos[0], 0.0, 0.9
            frames.append(Image.fromarray(env.render()))
        obs, reward, terminated, truncated, _ = env.step(policy(obs[None])[0])
        episode_return += reward
        if terminated or truncated:
            break
    env.close()
    if not frames:
        sys.exit(f"{env_id}: the episode was over after {step + 1} steps, before the film began (--start {start})")
    frames[0].save(image, save_all=True, append_images=frames[1:], duration=40, loop=0, quality=60)
    size = image.stat().st_size / 1000
    print(f"{image}: {len(frames)} pictures, {size:.0f} kB; return {episode_return:.0f} in {step + 1} steps")


if __name__ == "__main__":
    command_line.run(tyro.conf.configure(tyro.conf.PositionalRequiredArgs)(film))
