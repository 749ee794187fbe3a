"""Categorical DQN (C51) for Atari games: learns from pixels, and stores each frame in its replay buffer once.

An observation is a stack of 4 frames, and 3 of them are in the observation before it as well. So the replay buffer
numbers the frames in the order in which they come, keeps them in a ring (number n in place n % len(frames)), and has
the numbers in its rows: a million transitions take 7.4 GB, and whole stacks would take 56 GB. A step brings one frame,
the start of an episode another one: there is room for a start every 25 steps. If there are more, the oldest transitions
lose frames and are no longer drawn.

Paper:   https://arxiv.org/abs/1707.06887 (Bellemare, Dabney and Munos 2017)
Docs:    docs/rl-algorithms/c51_atari.md
Parent:  c51.py
Run:     python cleanrl/c51_atari.py --env-id BreakoutNoFrameskip-v4
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
    env_id: str = "BreakoutNoFrameskip-v4"
    """the id of the environment"""
    total_timesteps: int = 10_000_000
    """environment steps of the whole run, all environments together"""
    learning_rate: float = 2.5e-4
    """the learning rate of the optimizer"""
    num_envs: int = 1
    """the number of parallel environments"""
    n_atoms: int = 51
    """the number of atoms: the returns, evenly spaced, that have a probability"""
    v_min: float = -10.0
    """the lowest atom; returns below it count as it"""
    v_max: float = 10.0
    """the highest atom; returns above it count as it"""
    buffer_size: int = 1_000_000
    """transitions that the replay buffer holds"""
    gamma: float = 0.99
    """the discount factor"""
    target_network_frequency: int = 10_000
    """environment steps between updates of the target network"""
    batch_size: int = 32
    """transitions in a minibatch"""
    start_e: float = 1.0
    """the probability of a random action at the start"""
    end_e: float = 0.01
    """the probability of a random action at the end"""
    exploration_fraction: float = 0.10
    """the share of the run in which that probability falls from start_e to end_e"""
    learning_starts: int = 80_000
    """environment steps before the first update"""
    train_frequency: int = 4
    """environment steps between updates"""


def make_env(env_id, idx, capture_video, run_dir):
    def thunk():
        from stable_baselines3.common.atari_wrappers import ClipRewardEnv, EpisodicLifeEnv, FireResetEnv

        is_filmed = capture_video and idx == 0
        env = gym.make(f"ale_py:{env_id}", obs_type="grayscale", frameskip=1, render_mode="rgb_array")
        env = gym.wrappers.AtariPreprocessing(env)  # no-op starts, 4 frames a step, 84x84 pixels
        if is_filmed:
            env = gym.wrappers.RecordVideo(env, f"{run_dir}/videos")
        env = gym.wrappers.RecordEpisodeStatistics(env)
        env = EpisodicLifeEnv(env)  # a lost life ends the episode, but not the game
        if "FIRE" in env.unwrapped.get_action_meanings():
            env = FireResetEnv(env)  # some games wait for FIRE before they start
        env = gym.wrappers.FrameStackObservation(ClipRewardEnv(env), 4)  # differs from c51.py: as in ppo_atari.py
        return env

    return thunk


def make_envs(env_id, num_envs, capture_video, run_dir):
    # SAME_STEP: when an episode ends, next_obs begins the next one, and infos["final_obs"] is the end of the old one
    thunks = [make_env(env_id, idx, capture_video, run_dir) for idx in range(num_envs)]
    return gym.vector.SyncVectorEnv(thunks, copy=False, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)


class QNetwork(nn.Module):
    def __init__(self, envs, atoms):  # differs from dqn.py: an action has a probability for each atom, as logits
        super().__init__()
        num_actions = int(envs.single_action_space.n)
        self.layer1 = nn.Conv2d(4, 32, 8, stride=4)  # differs from c51.py: the network of Mnih et al. 2015
        self.layer2 = nn.Conv2d(32, 64, 4, stride=2)
        self.layer3 = nn.Conv2d(64, 64, 3)
        self.layer4 = nn.Linear(3136, 512)
        self.head = nn.Linear(512, num_actions * len(atoms))
        self.atoms = nn.Buffer(atoms)

    def forward(self, x):
        x = self.layer1(x / 255).relu()  # pixels are scaled to [0, 1]
        x = self.layer2(x).relu()
        x = self.layer3(x).relu()
        x = self.layer4(x.flatten(1)).relu()
        logits = self.head(x)
        return logits.unflatten(-1, (-1, len(self.atoms)))  # (batch, actions, atoms)

    @torch.inference_mode()
    def get_action(self, x):
        pmfs = self(x).softmax(-1)
        q_values = pmfs @ self.atoms  # the value of an action is the mean of its distribution
        return q_values.argmax(-1)


class ReplayBuffer:
    """The latest transitions, each a row of obs, next_obs, action, reward, termination. New ones replace the oldest."""

    def __init__(self, size, obs_dim, action_dim, device):
        self.widths = [obs_dim, obs_dim, action_dim, 1, 1]
        self.rows = np.zeros((size, sum(self.widths)))  # float64: nothing is rounded
        self.num_added = 0
        self.device = device  # where minibatches go; the rows stay in main memory
        self.frames = torch.from_numpy(np.zeros((size + size // 25 + 1000, 84, 84), np.uint8)).to(device)
        self.num_frames = 0  # differs from c51.py: obs and next_obs are numbers of frames
        self.stacks = {}  # the numbers of the 4 frames that an environment shows, for those in the midst of an episode

    def add_frame(self, frame):
        self.frames[self.num_frames % len(self.frames)] = torch.from_numpy(frame)
        self.num_frames += 1
        return self.num_frames - 1

    def add(self, obs, next_obs, actions, rewards, terminations, truncations):
        for idx, outcome in enumerate(zip(actions, rewards, terminations)):
            if idx not in self.stacks:  # an episode starts, with 4 times the same frame
                self.stacks[idx] = [self.add_frame(obs[idx, -1])] * 4
            frames = self.stacks.pop(idx) + [self.add_frame(next_obs[idx, -1])]
            self.rows[self.num_added % len(self.rows)] = frames[:4] + frames[1:] + list(outcome)
            self.num_added += 1
            if not (terminations[idx] or truncations[idx]):
                self.stacks[idx] = frames[1:]

    def sample(self, batch_size):
        num_rows = min(self.num_added, len(self.rows))
        inds = torch.randint(num_rows, (batch_size,)).numpy()
        for i in range(batch_size):
            while self.rows[inds[i], 0] < self.num_frames - len(self.frames):  # its first frame has been overwritten
                inds[i] = torch.randint(num_rows, ())
        rows = torch.from_numpy(self.rows[inds]).to(self.device)
        obs, next_obs, actions, rewards, terminations = rows.float().split(self.widths, dim=-1)
        obs, next_obs = self.frames[rows[:, :8].long() % len(self.frames)].hsplit(2)
        return obs, next_obs, actions, rewards, terminations

    def state_dict(self):
        return {
            "rows": torch.from_numpy(self.rows[: self.num_added]),
            "num_added": self.num_added,
            "frames": self.frames[: self.num_frames].cpu(),
            "num_frames": self.num_frames,
            "stacks": self.stacks,
        }

    def load_state_dict(self, state):
        self.rows[: len(state["rows"])] = state["rows"]
        self.num_added = state["num_added"]
        self.frames[: len(state["frames"])] = state["frames"]
        self.num_frames = state["num_frames"]
        self.stacks = state["stacks"]


def linear_schedule(start_e, end_e, duration, step):
    return start_e + (end_e - start_e) * min(step / duration, 1)


def project_distribution(pmfs, returns, atoms):
    """Split the probability of each return between the two atoms around it so that its mean stays the same."""
    num_intervals = len(atoms) - 1
    spacing = (atoms[-1] - atoms[0]) / num_intervals
    position = (returns - atoms[0]) / spacing
    position = position.clamp(0, num_intervals)  # returns beyond the atoms count as the first or the last one
    lower = position.long().clamp(0, num_intervals - 1)  # the highest atom is the upper end of the last interval
    upper_share = position - lower
    upper_pmfs = pmfs * upper_share
    lower_pmfs = pmfs - upper_pmfs
    projected = torch.zeros_like(pmfs)
    projected = projected.scatter_add(-1, lower, lower_pmfs)
    return projected.scatter_add(-1, lower + 1, upper_pmfs)


def c51_loss(logits, next_logits, actions, rewards, terminations, gamma, atoms):
    """The loss of a minibatch (Bellemare et al. 2017, algorithm 1), and a dictionary of what to log."""
    batch = torch.arange(len(actions), device=actions.device)
    next_pmfs = next_logits.softmax(-1)  # (batch, actions, atoms)
    next_q_values = next_pmfs @ atoms
    next_pmfs = next_pmfs[batch, next_q_values.argmax(-1)]  # those of the best actions
    returns = rewards + gamma * atoms * (1 - terminations)
    target_pmfs = project_distribution(next_pmfs, returns, atoms)
    old_actions = actions.squeeze(-1).long()
    old_logits = logits[batch, old_actions]
    old_pmfs = old_logits.softmax(-1)
    log_pmfs = old_pmfs.clamp(1e-5, 1 - 1e-5).log()  # clamped: there is no gradient beyond these bounds
    loss = -(target_pmfs * log_pmfs).sum(-1).mean()  # the cross-entropy
    taken_q_values = old_pmfs.detach() @ atoms
    stats = {"loss": loss.detach(), "q_values": taken_q_values.mean()}
    return loss, stats


def load_policy(model_path, envs, device="cpu", deterministic=True):
    """Load the trained policy: a function from observations to actions, both NumPy arrays. It is always greedy."""
    weights = load_file(model_path, device=str(device))
    q_network = QNetwork(envs, weights["atoms"]).to(device)  # differs from dqn.py: the atoms are part of the model
    q_network.load_state_dict(weights)

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
    atoms = torch.linspace(args.v_min, args.v_max, args.n_atoms, device=device)
    q_network = QNetwork(envs, atoms).to(device)
    target_network = QNetwork(envs, atoms).to(device)
    target_network.load_state_dict(q_network.state_dict())
    learning_rate = torch.tensor(args.learning_rate, device=device)  # a tensor: a recorded update sees it change
    adam_epsilon = 0.01 / args.batch_size  # as in the paper
    optimizer = torch.optim.Adam(q_network.parameters(), learning_rate, eps=adam_epsilon, fused=True)

    def update(mb_obs, mb_next_obs, mb_actions, mb_rewards, mb_terminations):
        optimizer.zero_grad()
        with torch.no_grad():
            next_logits = target_network(mb_next_obs)
        logits = q_network(mb_obs)
        loss, stats = c51_loss(logits, next_logits, mb_actions, mb_rewards, mb_terminations, args.gamma, atoms)
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
        if state["next_obs"] is not checkpoint["next_obs"]:
            buffer.stacks.clear()  # environments that cannot be restored start new episodes
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
                    target_network.load_state_dict(q_network.state_dict())

        # Step
        next_obs, rewards, terminations, truncations, infos = envs.step(actions)
        real_next_obs = next_obs.copy()
        if "final_obs" in infos:  # at the end of an episode, next_obs already begins the next one
            for idx in np.flatnonzero(infos["_final_obs"]):
                real_next_obs[idx] = infos["final_obs"][idx]
        buffer.add(obs, real_next_obs, actions, rewards, terminations, truncations)
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
