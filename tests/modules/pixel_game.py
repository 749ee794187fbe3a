"""A game in the place of an Atari game, easy enough for a minute of one core.

Usage: python tests/modules/pixel_game.py cleanrl/ppo_atari.py --env-id Drift-v0 [further flags of the script]
"""

import runpy
import sys

import gymnasium as gym
import numpy as np

FRAMES = 64  # of a game; up to 30 of them are no-ops


class Drift(gym.Env):
    """A bar drifts to the left or to the right; a frame is worth a point if the action says where.

    No single picture shows the direction: it takes the stack of frames, in their order.
    """

    observation_space = gym.spaces.Box(0, 255, (84, 84), np.uint8)
    action_space = gym.spaces.Discrete(3)
    _frameskip = 1

    def __init__(self, obs_type: str, frameskip: int, render_mode: str | None = None):
        assert (obs_type, frameskip) == ("grayscale", 1)

    @property
    def ale(self):  # the wrappers ask the emulator: an object with `lives` and `getScreenGrayscale`
        return self

    def lives(self) -> int:
        return 0

    def getScreenGrayscale(self, screen: np.ndarray) -> None:  # noqa: N802
        screen[...] = self.screen()

    def get_action_meanings(self) -> list[str]:
        return ["NOOP", "RIGHT", "LEFT"]

    def screen(self) -> np.ndarray:
        screen = np.zeros((84, 84), np.uint8)
        screen[:, np.arange(self.position, self.position + 12) % 84] = 255
        return screen

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.frame, self.position, self.speed = 0, self.np_random.integers(84), self.np_random.choice([-1, 1])
        return self.screen(), {}

    def step(self, action):
        self.frame += 1
        self.position += self.speed
        reward = float(action == (1 if self.speed > 0 else 2))
        return self.screen(), reward, self.frame == FRAMES, False, {}


gym.register("Drift-v0", Drift)

if __name__ == "__main__":
    sys.argv[:] = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
