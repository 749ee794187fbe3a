"""Stable-Baselines3's DQN with the hyper-parameters and the loss of dqn.py: does it drop from 500 on CartPole-v1, too?

Usage: python benchmark/dqn_stable_baselines3.py [--env-id CartPole-v1] [--seed 1] [--total-timesteps 500000]

Another implementation of the same method tells a fault of ours from a habit of the method. Stable-Baselines3's own loss
(Huber's) and its clipping of gradients at 10 are replaced by what dqn.py has: the squared error, and no clipping. The
run's folder is like those of our files, so that rlops compares them. A run cannot be resumed.
"""

import sys
import time
from dataclasses import dataclass

import torch
import tyro
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

from cleanrl import dqn
from cleanrl_utils import provenance, run, stop


@dataclass
class Args:
    exp_name: str = "dqn_stable_baselines3"
    """the name of this experiment"""
    seed: int = 1
    """seed of the experiment"""
    env_id: str = "CartPole-v1"
    """the id of the environment"""
    total_timesteps: int = 500_000
    """environment steps of the experiment"""
    track: bool = False
    """also log to Weights & Biases"""
    resume: str | None = None
    """not possible here"""


class EpisodeLogger(BaseCallback):
    """Logs finished episodes under the names of our files."""

    def __init__(self, writer):
        super().__init__()
        self.writer = writer

    def _on_step(self):
        for info in self.locals["infos"]:
            if "episode" in info:
                self.writer.add_scalar("charts/episodic_return", info["episode"]["r"], self.num_timesteps)
                self.writer.add_scalar("charts/episodic_length", info["episode"]["l"], self.num_timesteps)
        return True


if __name__ == "__main__":
    args = tyro.cli(Args)
    if args.resume:
        sys.exit("--resume: a run of this script cannot be resumed; start it anew")
    torch.set_num_threads(1)
    torch.nn.functional.smooth_l1_loss = torch.nn.functional.mse_loss
    run_dir = f"runs/{args.env_id}__{args.exp_name}__{args.seed}__{int(time.time())}"
    writer = run.start(run_dir, args, __file__, 0)
    stop.stop_at_once("it cannot be resumed; start it anew")
    ours = dqn.Args()
    model = DQN(
        "MlpPolicy",
        make_vec_env(args.env_id),
        learning_rate=ours.learning_rate,
        buffer_size=ours.buffer_size,
        learning_starts=ours.learning_starts,
        batch_size=ours.batch_size,
        tau=ours.tau,
        gamma=ours.gamma,
        train_freq=ours.train_frequency,
        gradient_steps=1,
        target_update_interval=ours.target_network_frequency,
        exploration_fraction=ours.exploration_fraction,
        exploration_initial_eps=ours.start_e,
        exploration_final_eps=ours.end_e,
        max_grad_norm=float("inf"),
        policy_kwargs={"net_arch": [120, 84]},
        seed=args.seed,
        device="cpu",
    )
    model.learn(args.total_timesteps, EpisodeLogger(writer))
    writer.close()
    provenance.note_step(run_dir, model.num_timesteps)
