"""Small environments that catch a learner's mistakes: `--env-id trap_envs:Cut-v0` with this folder on PYTHONPATH."""

import gymnasium as gym
import numpy as np


class Constant(gym.Env):
    """Reward 1 at every step and nothing to see; an episode of five steps is cut off, or ends for good."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, terminates: bool):
        self.terminates = terminates

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.ones(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        end = self.steps == 5
        return np.ones(1, np.float32), 1.0, end and self.terminates, end and not self.terminates, {}


class Broken(Constant):
    """Something goes wrong in the 100th step of an environment: a NaN reward, or an exception."""

    count = 0

    def __init__(self, error: str):
        super().__init__(terminates=True)
        self.error = error

    def step(self, action):
        obs, reward, termination, truncation, info = super().step(action)
        self.count += 1
        if self.count == 100 and self.error == "exception":
            raise RuntimeError("the simulator exploded")
        return obs, np.nan if self.count == 100 else reward, termination, truncation, info


class Unpicklable(Constant):
    """An environment whose state cannot be saved."""

    def __init__(self):
        super().__init__(terminates=True)
        self.handle = open("/dev/null")  # noqa: SIM115


gym.register("Cut-v0", Constant, kwargs={"terminates": False})
gym.register("Ended-v0", Constant, kwargs={"terminates": True})
gym.register("NaN-v0", Broken, kwargs={"error": "nan"})
gym.register("Exploding-v0", Broken, kwargs={"error": "exception"})
gym.register("Unpicklable-v0", Unpicklable)
