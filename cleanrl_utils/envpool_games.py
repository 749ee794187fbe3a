"""What is special about EnvPool: it has pools of environments that are seeded, counted and filmed otherwise."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np


def is_pool(envs: Any) -> bool:
    return hasattr(envs, "recv")


def new_pool(pool: Any, seed: int) -> Any:
    """A pool of EnvPool like this one with another seed."""
    spec_class = type(pool.spec)
    config = spec_class.gen_config(**(pool.config | {"seed": seed}))
    pool.close()
    return type(pool)(spec_class(config))


class FirstGame(gym.Env):
    """The first environment of a pool of EnvPool, as RecordVideo films it: with pixels as large as 4 by 4."""

    render_mode, metadata = "rgb_array", {"render_fps": 15}

    def __init__(self, pool: Any):
        self.pool = pool

    def reset(self, seed: int | None = None, options: dict | None = None) -> tuple:
        return None, {}

    def step(self, action: Any) -> tuple:
        return None, 0.0, False, False, {}

    def render(self) -> np.ndarray:
        return self.pool.render()[0].repeat(4, axis=0).repeat(4, axis=1)


class EnvPoolGames:
    """EnvPool's environments with the infos of gymnasium's: raw returns and lengths of whole games, not of lives."""

    def __init__(self, pool: Any, video_dir: str | Path | None = None):
        self.pool, self.num_envs = pool, pool.num_envs
        self.single_observation_space, self.single_action_space = pool.observation_space, pool.action_space
        self.env = gym.wrappers.RecordVideo(FirstGame(pool), f"{video_dir}/videos") if video_dir is not None else None

    def reset(self, seed: int | None = None) -> tuple:
        """EnvPool takes its seed when it is made."""
        self.returns = np.zeros(self.num_envs)
        self.lengths = np.zeros(self.num_envs, int)
        self.dones = np.zeros(self.num_envs, bool)
        first_obs = self.pool.reset()
        if self.env:
            self.env.reset()  # a film begins
        return first_obs

    def step(self, actions: np.ndarray) -> tuple:
        obs, rewards, terminations, truncations, infos = self.pool.step(actions)
        self.returns = self.returns + infos.get("reward", rewards)  # of Atari, those that are not clipped
        self.lengths = infos["elapsed_step"]
        episode = {"r": self.returns, "l": self.lengths}
        over = infos.get("terminated", terminations).astype(bool) | truncations
        if self.env and self.lengths[0] == 0:  # the step after the end of an episode, which only resets
            self.env.reset()
        elif self.env:
            self.env.step(None)
        if self.env and self.env.recording and over[0]:
            self.env.stop_recording()  # which writes the film
        self.returns = self.returns * ~over
        self.lengths = self.lengths * ~over
        return obs, rewards, terminations, truncations, {"final_info": {"episode": episode, "_episode": over}}

    def starts(self, dones: np.ndarray) -> np.ndarray:
        """Which environments show the first observation of an episode now, one step after the last one of another."""
        starts, self.dones = self.dones, dones
        return starts

    def reset_some(self, which: np.ndarray, obs: np.ndarray) -> np.ndarray:
        """Start new games in some of the environments; returns the observations of all, given those so far."""
        first_obs, infos = self.pool.reset(np.flatnonzero(which))
        obs = np.array(obs)
        obs[infos["env_id"]] = first_obs
        self.returns = self.returns * ~which
        self.lengths = self.lengths * ~which
        self.dones = self.dones & ~which
        if self.env and which[0]:
            self.env.reset()
        return obs

    def close(self) -> None:
        self.pool.close()
