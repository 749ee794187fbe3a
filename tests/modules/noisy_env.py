"""An environment of noise that keeps a diary: `--env-id noisy_env:Noisy-v0` with this folder on PYTHONPATH."""

import gymnasium as gym
import numpy as np

DIARIES = []  # per environment: a row for each step


class Noisy(gym.Env):
    """Observations far from zero and of very different sizes, random rewards, episodes that end or are cut off."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = gym.spaces.Box(-0.5, 0.5, (2,), np.float32)

    def __init__(self):
        self.diary = []
        DIARIES.append(self.diary)

    def observe(self):
        self.seen = self.np_random.normal([5.0, -200.0, 0.0], [0.1, 30.0, 2.0])
        return self.seen

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return self.observe(), {}

    def step(self, action):
        reward = self.np_random.normal(3.0, 20.0)
        termination, truncation = self.np_random.random(2) < 0.1
        self.diary.append([*self.seen, *action, reward, termination or truncation])
        return self.observe(), reward, bool(termination), bool(truncation and not termination), {}


gym.register("Noisy-v0", Noisy)
gym.register("Matrix-v0", type("Matrix", (Noisy,), {"action_space": gym.spaces.Box(-1, 1, (2, 2))}))
