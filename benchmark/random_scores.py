"""What a policy that draws its actions at random scores: rows for cleanrl_utils/rlops/reference_scores.csv.

Usage:
    python benchmark/random_scores.py CartPole-v1 Acrobot-v1
"""

import sys
from typing import Annotated

import gymnasium as gym
import tyro

from cleanrl_utils import command_line


def random_score(env_id: str, episodes: int) -> float:
    """The mean return of a policy that draws its actions uniformly."""
    env = gym.make(env_id)
    env.action_space.seed(1)
    total = 0.0
    for episode in range(episodes):
        env.reset(seed=1 if episode == 0 else None)
        done = False
        while not done:
            _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            total += float(reward)
            done = terminated or truncated
    return total / episodes


def measure(env_ids: Annotated[list[str], tyro.conf.Positional], episodes: int = 100) -> None:
    """Print rows for reference_scores.csv: what a random policy scores.

    Args:
        env_ids: the environments
        episodes: in each of them
    """
    for env_id in env_ids:
        try:
            score = random_score(env_id, episodes)
        except (gym.error.Error, ImportError) as error:
            sys.exit(f"{env_id}: {' '.join(str(error).split())}")
        print(f"{env_id},{score:.6g},,measured over {episodes} episodes", flush=True)


if __name__ == "__main__":
    command_line.run(measure)
