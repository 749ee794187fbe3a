"""Environments whose actions are counted from 1: `--env-id from_one:FromOne-v0` with this folder on PYTHONPATH."""

import gymnasium as gym
import numpy as np


class FromOne(gym.Env):
    """The action that the observation shows, 1, 2 or 3, earns a point. Any other number than these is an error."""

    observation_space = gym.spaces.Box(0, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(3, start=1)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), {}

    def observe(self):
        self.wanted = int(self.np_random.integers(3))
        return np.eye(3, dtype=np.float32)[self.wanted]

    def step(self, action):
        if not self.action_space.contains(action):
            raise ValueError(f"{action} is no action")
        reward = float(action == self.wanted + 1)
        self.steps += 1
        return self.observe(), reward, self.steps == 20, False, {}


gym.register("FromOne-v0", FromOne)
