"""Deep Q-Network (DQN): Q-learning with a replay buffer and a target network, for discrete actions.

Paper:   https://www.nature.com/articles/nature14236 (Mnih et al. 2015)
Docs:    docs/rl-algorithms/dqn.md
Parent:  none
Run:     python cleanrl/dqn.py --env-id CartPole-v1
"""

import signal

if __name__ == "__main__":  # Ctrl+C during the imports below ends the program without a traceback
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import json
import os
import random
import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import Literal

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
import tyro
from safetensors.torch import load_file, save_file
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm


@dataclass
class Args:
    exp_name: str = os.path.basename(__file__)[: -len(".py")]
    """the name of this experiment"""
    seed: int = 1
    """seed of the experiment"""
    torch_deterministic: bool = True
    """use only deterministic algorithms: on one machine, the same seed gives the same numbers"""
    cuda: bool = True
    """train on the GPU when there is one"""
    compile: bool = False
    """compile the update with `torch.compile`: faster after half a minute, slightly different rounding"""
    accelerate: Literal["auto", "on", "off"] = "auto"
    """repeat recorded operations: `auto` in files proven to give the same bits, `on` in all, audited, `off` never"""
    track: bool = False
    """also log to Weights & Biases"""
    wandb_project_name: str = "cleanRL"
    """the project on Weights & Biases"""
    wandb_entity: str | None = None
    """the entity (team) of the project on Weights & Biases"""
    capture_video: bool = False
    """record videos of the first environment and of the evaluation, in the folder of the run"""
    save_model: bool = False
    """save the trained model as `{exp_name}.safetensors` in the folder of the run, and evaluate it"""
    upload_model: bool = False
    """upload the saved model to the Hugging Face Hub"""
    hf_entity: str = ""
    """the user or organisation on the Hugging Face Hub"""
    checkpoint_frequency: int = 100_000
    """environment steps between checkpoints, at most ten minutes apart (0: only when interrupted)"""
    resume: str | None = None
    """continue the run in this folder; other flags on the command line override the saved ones"""

    # Algorithm specific arguments
    env_id: str = "CartPole-v1"
    """the id of the environment"""
    total_timesteps: int = 500_000
    """environment steps of the whole run, all environments together"""
    learning_rate: float = 2.5e-4
    """the learning rate of the optimizer"""
    num_envs: int = 1
    """the number of parallel environments"""
    buffer_size: int = 10_000
    """transitions that the replay buffer holds"""
    gamma: float = 0.99
    """the discount factor"""
    tau: float = 1.0
    """how far an update moves the target network towards the Q-network: 1 copies it"""
    target_network_frequency: int = 500
    """environment steps between updates of the target network"""
    batch_size: int = 128
    """transitions in a minibatch"""
    start_e: float = 1.0
    """the probability of a random action at the start"""
    end_e: float = 0.05
    """the probability of a random action at the end"""
    exploration_fraction: float = 0.5
    """the share of the run in which that probability falls from start_e to end_e"""
    learning_starts: int = 10_000
    """environment steps before the first update"""
    train_frequency: int = 10
    """environment steps between updates"""


def make_env(env_id, idx, capture_video, run_dir):
    def thunk():
        is_filmed = capture_video and idx == 0
        env = gym.make(env_id, render_mode="rgb_array") if is_filmed else gym.make(env_id)
        action_space = env.action_space
        if not isinstance(action_space, gym.spaces.Discrete):
            raise ValueError(f"its actions are {action_space}; try ddpg_continuous_action.py")
        if action_space.start != 0:  # the policy counts actions from 0, this environment does not
            from_0 = gym.spaces.Discrete(action_space.n)
            env = gym.wrappers.TransformAction(env, lambda action: action + action_space.start, from_0)
        env = gym.wrappers.FlattenObservation(env)  # a vector, copied: resets may overwrite the original
        if is_filmed:
            env = gym.wrappers.RecordVideo(env, f"{run_dir}/videos")
        env = gym.wrappers.RecordEpisodeStatistics(env)
        return env

    return thunk


def make_envs(env_id, num_envs, capture_video, run_dir):
    # SAME_STEP: when an episode ends, next_obs begins the next one, and infos["final_obs"] is the end of the old one
    thunks = [make_env(env_id, idx, capture_video, run_dir) for idx in range(num_envs)]
    return gym.vector.SyncVectorEnv(thunks, copy=False, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)


class QNetwork(nn.Module):
    def __init__(self, envs):
        super().__init__()
        obs_dim = envs.single_observation_space.shape[0]
        num_actions = int(envs.single_action_space.n)
        self.layer1 = nn.Linear(obs_dim, 120)
        self.layer2 = nn.Linear(120, 84)
        self.head = nn.Linear(84, num_actions)

    def forward(self, x):
        x = self.layer1(x).relu()
        x = self.layer2(x).relu()
        return self.head(x)

    @torch.inference_mode()
    def get_action(self, x):
        return self(x).argmax(-1)


class ReplayBuffer:
    """The latest transitions, each a row of obs, next_obs, action, reward, termination. New ones replace the oldest."""

    def __init__(self, size, obs_dim, action_dim, device):
        self.widths = [obs_dim, obs_dim, action_dim, 1, 1]
        self.rows = np.zeros((size, sum(self.widths)))  # float64: nothing is rounded
        self.num_added = 0
        self.device = device  # where minibatches go; the rows stay in main memory

    def add(self, obs, next_obs, actions, rewards, terminations):
        columns = [obs, next_obs, actions.reshape(len(obs), -1), rewards[:, None], terminations[:, None]]
        for row in np.concatenate(columns, axis=1):
            self.rows[self.num_added % len(self.rows)] = row
            self.num_added += 1

    def sample(self, batch_size):
        num_rows = min(self.num_added, len(self.rows))
        inds = torch.randint(num_rows, (batch_size,)).numpy()
        rows = torch.from_numpy(self.rows[inds]).to(self.device)
        obs, next_obs, actions, rewards, terminations = rows.float().split(self.widths, dim=-1)
        return obs, next_obs, actions, rewards, terminations

    def state_dict(self):
        return {
            "rows": torch.from_numpy(self.rows[: self.num_added]),
            "num_added": self.num_added,
        }

    def load_state_dict(self, state):
        self.rows[: len(state["rows"])] = state["rows"]
        self.num_added = state["num_added"]


def linear_schedule(start_e, end_e, duration, step):
    return start_e + (end_e - start_e) * min(step / duration, 1)


def dqn_loss(q_values, next_q_values, actions, rewards, terminations, gamma):
    """The loss of a minibatch (Mnih et al. 2015, algorithm 1), and what to log. Truncated episodes bootstrap."""
    td_target = rewards + gamma * next_q_values.amax(-1, keepdim=True) * (1 - terminations)
    taken_q_values = q_values.gather(-1, actions.long())
    td_loss = ((taken_q_values - td_target) ** 2).mean()
    return td_loss, {"td_loss": td_loss.detach(), "q_values": taken_q_values.detach().mean()}


@torch.no_grad()
def update_target(target_network, q_network, tau):  # with tau = 1, the target network becomes a copy
    for target_param, param in zip(target_network.parameters(), q_network.parameters()):
        target_param.lerp_(param, tau)


def load_policy(model_path, envs, device="cpu", deterministic=True):
    """Load the trained policy: a function from observations to actions, both NumPy arrays. It is always greedy."""
    q_network = QNetwork(envs).to(device)
    q_network.load_state_dict(load_file(model_path, device=str(device)))

    def policy(obs):
        x = torch.as_tensor(obs, dtype=torch.float32, device=device)
        return q_network.get_action(x).cpu().numpy()

    return policy


if __name__ == "__main__":
    try:  # `run` adds checkpoints, evaluation, tracking and acceleration; training works without it
        from cleanrl_utils import run

        args = run.parse_args(Args)
    except ModuleNotFoundError:
        run = None
        args = tyro.cli(Args)
        if args.resume or args.track or args.upload_model or args.compile:
            sys.exit("--resume, --track, --upload-model, --compile: install cleanrl_utils for them")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # Ctrl+C raises an exception again
    if run:  # checks the flags; with --resume, reads the flags and the checkpoint of that run
        args, checkpoint = run.prepare(args, __file__)

    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # for determinism on a GPU
    torch.use_deterministic_algorithms(args.torch_deterministic)
    torch.set_num_threads(1)  # on matrices this small, threads cost more time than they save
    device = torch.device("cuda" if torch.cuda.is_available() and args.cuda else "cpu")

    run_name = f"{args.env_id.replace('/', '_')}__{args.exp_name}__{args.seed}__{int(time.time())}"
    run_dir = args.resume or f"runs/{run_name}"
    try:
        envs = make_envs(args.env_id, args.num_envs, args.capture_video, run_dir)
    except Exception as error:  # an unknown id, a package that is missing, actions of another kind
        sys.exit(run.explain_env_error(args.env_id, error) if run else f"{args.env_id}: {error}")
    q_network = QNetwork(envs).to(device)
    target_network = QNetwork(envs).to(device)
    target_network.load_state_dict(q_network.state_dict())
    learning_rate = torch.tensor(args.learning_rate, device=device)  # a tensor: a recorded update sees it change
    optimizer = torch.optim.Adam(q_network.parameters(), learning_rate, fused=True)

    def update(mb_obs, mb_next_obs, mb_actions, mb_rewards, mb_terminations):
        optimizer.zero_grad()
        with torch.no_grad():
            next_q_values = target_network(mb_next_obs)
        q_values = q_network(mb_obs)
        loss, stats = dqn_loss(q_values, next_q_values, mb_actions, mb_rewards, mb_terminations, args.gamma)
        loss.backward()
        optimizer.step()
        return stats

    # Storage
    next_obs, _ = envs.reset(seed=args.seed)
    if run:  # checks that it fits into memory, and chooses the device
        buffer = run.place_buffer(ReplayBuffer, args.buffer_size, next_obs.shape[1], 1, device=device)
    else:
        buffer = ReplayBuffer(args.buffer_size, next_obs.shape[1], 1, device)

    # State: what a checkpoint saves and a resumed run restores, in addition to flags and random generators
    state = {
        "global_step": 0,
        "next_obs": next_obs,
        "recent_returns": deque(maxlen=100),
        "envs": envs,
        "q_network": q_network,
        "target_network": target_network,
        "optimizer": optimizer,
        "buffer": buffer,
    }
    if args.resume:
        run.restore(checkpoint, state)  # fills `state`, which is read below
    global_step = state["global_step"]
    next_obs = state["next_obs"]
    recent_returns = state["recent_returns"]

    act = q_network.get_action
    if run:  # may speed up `act` and `update`; only --compile changes the rounding of results
        act, update = run.accelerate(args, __file__, act, update, state)
        writer = run.start(run_dir, args, __file__, global_step)  # Ctrl+C now saves a checkpoint
    else:
        writer = SummaryWriter(run_dir)
    progress = tqdm(total=args.total_timesteps, initial=global_step, unit="step", disable=None)
    print_frequency = 100 * (args.total_timesteps // 2000 + 1)  # without a terminal, about 20 lines
    exploration_steps = max(args.exploration_fraction * args.total_timesteps, 1)
    stats = {}
    logged_step = global_step  # of the last log; a resumed run goes on from here
    start_time = time.perf_counter()
    for global_step in range(logged_step + args.num_envs, args.total_timesteps + 1, args.num_envs):
        # Act: epsilon-greedily, each environment on its own
        obs = next_obs.copy()  # a copy: the environments reuse their array
        epsilon = linear_schedule(args.start_e, args.end_e, exploration_steps, global_step)
        explore = np.random.rand(args.num_envs) < epsilon
        actions = (np.random.rand(args.num_envs) * envs.single_action_space.n).astype(int)  # faster than randint
        if not explore.all():
            x = torch.from_numpy(obs).to(device, torch.float32)
            greedy_actions = act(x).cpu().numpy()
            actions = np.where(explore, actions, greedy_actions)

        # Learn: before the environments step, so that a GPU works at the same time. A round is `num_envs` steps.
        if global_step > args.learning_starts and buffer.num_added > 0:  # empty in the first round
            for step in range(global_step - args.num_envs + 1, global_step + 1):
                if step % args.train_frequency == 0:
                    minibatch = [x.to(device) for x in buffer.sample(args.batch_size)]
                    mb_obs, mb_next_obs, mb_actions, mb_rewards, mb_terminations = minibatch
                    stats = update(mb_obs, mb_next_obs, mb_actions, mb_rewards, mb_terminations)
                if step % args.target_network_frequency == 0:
                    update_target(target_network, q_network, args.tau)

        # Step
        next_obs, rewards, terminations, truncations, infos = envs.step(actions)
        real_next_obs = next_obs.copy()
        if "final_obs" in infos:  # at the end of an episode, next_obs already begins the next one
            for idx in np.flatnonzero(infos["_final_obs"]):
                real_next_obs[idx] = infos["final_obs"][idx]
        buffer.add(obs, real_next_obs, actions, rewards, terminations)
        if "episode" in infos.get("final_info", {}):  # `_episode` tells where one has ended
            episodes = infos["final_info"]["episode"]
            for idx in np.flatnonzero(infos["final_info"]["_episode"]):
                recent_returns.append(episodes["r"][idx])
                episode_step = global_step - args.num_envs + idx + 1  # one step per environment
                writer.add_scalar("charts/episodic_return", episodes["r"][idx], episode_step)
                writer.add_scalar("charts/episodic_length", episodes["l"][idx], episode_step)

        # Log: whenever a multiple of 100 steps is reached, the statistics of the latest minibatch
        if global_step % 100 < args.num_envs:
            for name, x in stats.items():
                if not np.isfinite(x.item()):
                    raise FloatingPointError(f"{name} is not finite at global_step={global_step}")
                writer.add_scalar(f"losses/{name}", x, global_step)
            stats = {}
            sps = (global_step - logged_step) / (time.perf_counter() - start_time)
            writer.add_scalar("charts/SPS", sps, global_step)
            recent_return = np.mean(recent_returns or [np.nan])
            progress.set_postfix(episodic_return=recent_return, refresh=False)
            progress.update(global_step - logged_step)
            logged_step = global_step
            start_time = time.perf_counter()
            if progress.disable and global_step % print_frequency < args.num_envs:
                print(f"global_step={global_step}, episodic_return={recent_return:.1f}, SPS={sps:.0f}")

        # Checkpoint: regularly, and on Ctrl+C or SIGTERM; then `save_checkpoint` also ends the program
        if run and run.checkpoint_due(args, global_step, args.num_envs):
            state.update(global_step=global_step, next_obs=next_obs)
            run.save_checkpoint(run_dir, args, __file__, writer, state)

    envs.close()
    progress.close()
    if args.save_model:
        metadata = {"args": json.dumps(vars(args)), "global_step": str(global_step)}
        save_file(q_network.state_dict(), f"{run_dir}/{args.exp_name}.safetensors", metadata)
    if run:  # evaluates, uploads, and says where everything is
        run.finish(run_dir, args, writer, make_envs, load_policy, recent_returns)
    writer.close()
