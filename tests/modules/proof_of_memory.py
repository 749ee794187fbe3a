"""Proof-of-Memory: `--env-id proof_of_memory:ProofOfMemory-v0` with this folder on PYTHONPATH.

A walker in the middle of a corridor is shown a sign that tells which of the two ends holds the prize. The sign is taken
away, and after a pause the walk begins. The prize is worth 1, the other end -1, and every other step of the walk -0.1.
So a walker that remembers the sign gets 0.9, and one that does not gets -0.1 at best, on average.
"""

import gymnasium as gym
import numpy as np

SIGN_STEPS = 2  # how long the sign can be seen
START = 4  # the first step of the walk: to move while the sign is there would make the position a reminder of it
LENGTH = 2  # steps from the middle to either end


class ProofOfMemory(gym.Env):
    """One sees the sign at the left, the position and the sign at the right. The actions are to go left or right."""

    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, terminates: bool = True):
        self.terminates = terminates

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        self.position = 0
        self.prize = int(self.np_random.choice([-LENGTH, LENGTH]))
        return self.observe(), {}

    def observe(self):
        sign = np.sign(self.prize) if self.steps < SIGN_STEPS else 0
        return np.array([-sign, self.position / LENGTH, sign], np.float32)

    def step(self, action):
        self.steps += 1
        if self.steps <= START:
            return self.observe(), 0.0, False, False, {}
        self.position += 1 if action == 1 else -1
        if abs(self.position) < LENGTH:
            return self.observe(), -0.1, False, False, {}
        reward = 1.0 if self.position == self.prize else -1.0
        return self.observe(), reward, self.terminates, not self.terminates, {}


gym.register("ProofOfMemory-v0", ProofOfMemory)
gym.register("CutProofOfMemory-v0", ProofOfMemory, kwargs={"terminates": False})  # cut off at the ends, but not over
