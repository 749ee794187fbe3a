"""Environments with state that no snapshot sees.

Usage: `--env-id unsavable_envs:ClassState-v0` with this folder on PYTHONPATH.
Two can be saved, for comparison: Steps and SharedRandomness.
"""

import random
import time

import gymnasium as gym
import numpy as np
import torch

BOARD = {"games": 0}  # a global variable, shared by all environments


class Steps(gym.Env):
    """Episodes of eight steps. One sees how many there were, a random number, and what `hidden` says."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = gym.spaces.Discrete(2)
    delay = 0.0

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.clock = 0  # a number, though it is named like the clock of a window
        return self.observe(), {}

    def step(self, action):
        time.sleep(self.delay)
        self.clock += 1
        return self.observe(), float(action), self.clock == 8, False, {}

    def observe(self):
        return np.array([self.clock, self.np_random.normal(), self.hidden()])

    def hidden(self):
        """What a snapshot may overlook; nothing here."""
        return 0.0


class ClassState(Steps):
    """Counts the steps of all environments together, on the class."""

    total = 0

    def hidden(self):
        ClassState.total += 1
        return ClassState.total


class GlobalState(Steps):
    """Counts the games of all environments together, in a global variable: only a reset changes it."""

    def reset(self, seed=None, options=None):
        BOARD["games"] += 1
        return super().reset(seed=seed)

    def hidden(self):
        return BOARD["games"]


class Counter:
    """Counts, but pickles as its constructor's arguments: a copy begins at the start again."""

    def __init__(self, start):
        self.start = start
        self.count = start

    def __call__(self):
        self.count += 1
        return self.count

    def __reduce__(self):
        return Counter, (self.start,)


class LossyAttribute(Steps):
    def __init__(self):
        self.hidden = Counter(5)


class Closure(Steps):
    """Functions are not saved, and this one remembers something."""

    def __init__(self):
        numbers = []

        def hidden():
            numbers.append(1)
            return len(numbers)

        self.hidden = hidden


class Generator(Steps):
    """Python cannot pickle a generator at all."""

    def __init__(self):
        self.numbers = (x * x for x in range(10**9))

    def hidden(self):
        return next(self.numbers)


class OneWay:
    """Can be pickled, but not unpickled."""

    def __getstate__(self):
        return {"something": 1}

    def __setstate__(self, state):
        raise RuntimeError("there is no way back")


class NoWayBack(Steps):
    def __init__(self):
        self.part = OneWay()


class SharedRandomness(Steps):
    """Draws from the generators that belong to the whole program, which every checkpoint holds."""

    def hidden(self):
        return random.random() + np.random.random() + torch.rand(1).item()


class NoSeed(Steps):
    """Forgets to hand the seed on to gymnasium."""

    def reset(self, seed=None, options=None):
        return super().reset()


class OwnGenerator(Steps):
    """Has a random generator of its own, which takes the seed in `reset` alone."""

    def __init__(self):
        self.generator = np.random.default_rng(0)

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.generator = np.random.default_rng(seed)
        return super().reset()

    def observe(self):
        return self.generator.normal(size=3)


SAVABLE = [Steps, SharedRandomness]
UNSAVABLE = [ClassState, GlobalState, LossyAttribute, Closure, Generator, NoWayBack]
for kind in [*SAVABLE, *UNSAVABLE, NoSeed, OwnGenerator]:
    gym.register(f"{kind.__name__}-v0", kind)
