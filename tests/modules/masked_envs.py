"""Small environments with masks of valid actions: `--env-id masked_envs:Corridor-v0` with this folder on PYTHONPATH."""

import gymnasium as gym
import numpy as np


class Corridor(gym.Env):
    """Walk to the last of eight rooms within 40 steps. In each room two of 50 actions do something: on, and back."""

    rooms, num_actions = 8, 50

    def __init__(self, strict: bool = False):
        self.observation_space = gym.spaces.Discrete(self.rooms)
        self.action_space = gym.spaces.Discrete(self.num_actions)
        self.strict = strict

    def mask(self) -> np.ndarray:
        mask = np.zeros(self.num_actions, np.int8)
        mask[[7 * self.room % 50, (7 * self.room + 1) % 50]] = 1
        return mask

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.room, self.steps = 0, 0
        return self.room, {"action_mask": self.mask()}

    def step(self, action):
        if self.strict:
            assert self.mask()[action], f"action {action} is invalid in room {self.room}"
        self.steps += 1
        if action == 7 * self.room % 50:
            self.room += 1
        elif action == (7 * self.room + 1) % 50:
            self.room = max(self.room - 1, 0)
        is_last = self.room == self.rooms - 1
        return self.room, float(is_last), is_last, self.steps == 40 and not is_last, {"action_mask": self.mask()}


class Whims(gym.Env):
    """Each step it draws anew which of six actions, counted from 3, are valid: no other mask fits. The last never is.

    What is seen is a picture of noise. An invalid action is an error. Masks come from a method, as lists of bools.
    """

    observation_space = gym.spaces.Box(-1, 1, (2, 3), np.float32)
    action_space = gym.spaces.Discrete(6, start=3)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.draw(), {}

    def draw(self) -> np.ndarray:
        self.valid = self.np_random.random(6) < 0.4
        self.valid[self.np_random.integers(5)] = True
        self.valid[5] = False
        return self.np_random.uniform(-1, 1, (2, 3)).astype(np.float32)

    def action_masks(self) -> list[bool]:
        return self.valid.tolist()

    def step(self, action):
        assert self.valid[action - 3], f"action {action} is invalid"
        self.steps += 1
        return self.draw(), float(action), False, self.steps == 11, {}


class WrongMask(Corridor):
    def mask(self) -> np.ndarray:
        return np.ones(3)


gym.register("Corridor-v0", Corridor)
gym.register("StrictCorridor-v0", Corridor, kwargs={"strict": True})
gym.register("Whims-v0", Whims)
gym.register("WrongMask-v0", WrongMask)
