"""Soft Actor-Critic (SAC) for Atari games: with discrete actions, expectations over actions are exact sums.

Paper:   https://arxiv.org/abs/1910.07207 (Christodoulou 2019)
Docs:    docs/rl-algorithms/sac_atari.md
Parent:  sac_continuous_action.py
Run:     python cleanrl/sac_atari.py --env-id BeamRiderNoFrameskip-v4
"""

import signal

if __name__ == "__main__":  # Ctrl+C during the imports below ends the program without a traceback
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import json
import math
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
    env_id: str = "BeamRiderNoFrameskip-v4"
    """the id of the environment"""
    total_timesteps: int = 5_000_000
    """environment steps of the whole run, all environments together"""
    policy_lr: float = 3e-4
    """the learning rate of the policy"""
    q_lr: float = 3e-4
    """the learning rate of the critics and of the temperature"""
    num_envs: int = 1
    """the number of parallel environments"""
    buffer_size: int = 1_000_000
    """transitions that the replay buffer holds"""
    gamma: float = 0.99
    """the discount factor"""
    tau: float = 1.0
    """how far the target networks move towards the networks: 1 copies them"""
    batch_size: int = 64
    """transitions in a minibatch"""
    learning_starts: int = 20_000
    """environment steps before the first update, with random actions"""
    update_frequency: int = 4
    """environment steps between updates"""
    target_network_frequency: int = 8000
    """environment steps between updates of the target networks"""
    alpha: float = 0.2
    """the temperature (the weight of the entropy) with --no-autotune"""
    autotune: bool = True
    """tune the temperature to a given entropy"""
    target_entropy_scale: float = 0.89
    """that entropy, in units of the entropy of random actions"""


def make_env(env_id, idx, capture_video, run_dir):
    def thunk():
        from stable_baselines3.common.atari_wrappers import ClipRewardEnv, EpisodicLifeEnv, FireResetEnv

        # differs from sac_continuous_action.py: as in ppo_atari.py
        is_filmed = capture_video and idx == 0
        env = gym.make(f"ale_py:{env_id}", obs_type="grayscale", frameskip=1, render_mode="rgb_array")
        env = gym.wrappers.AtariPreprocessing(env)  # no-op starts, 4 frames a step, 84x84 pixels
        if is_filmed:
            env = gym.wrappers.RecordVideo(env, f"{run_dir}/videos")
        env = gym.wrappers.RecordEpisodeStatistics(env)
        env = EpisodicLifeEnv(env)  # a lost life ends the episode, but not the game
        if "FIRE" in env.unwrapped.get_action_meanings():
            env = FireResetEnv(env)  # some games wait for FIRE before they start
        env = gym.wrappers.FrameStackObservation(ClipRewardEnv(env), 4)
        return env

    return thunk


def make_envs(env_id, num_envs, capture_video, run_dir):
    # SAME_STEP: when an episode ends, next_obs begins the next one, and infos["final_obs"] is the end of the old one
    thunks = [make_env(env_id, idx, capture_video, run_dir) for idx in range(num_envs)]
    return gym.vector.SyncVectorEnv(thunks, copy=False, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)


def layer_init(layer):
    nn.init.kaiming_normal_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def cnn(output_dim):
    return nn.Sequential(  # the convolutional network of Mnih et al. 2015
        layer_init(nn.Conv2d(4, 32, 8, stride=4)),
        nn.ReLU(),
        layer_init(nn.Conv2d(32, 64, 4, stride=2)),
        nn.ReLU(),
        layer_init(nn.Conv2d(64, 64, 3)),
        nn.ReLU(),
        nn.Flatten(),
        layer_init(nn.Linear(3136, 512)),
        nn.ReLU(),
        layer_init(nn.Linear(512, output_dim)),
    )


class QNetwork(nn.Module):
    def __init__(self, envs):
        super().__init__()
        self.network = cnn(int(envs.single_action_space.n))

    def forward(self, x):  # differs from sac_continuous_action.py: the values of all actions
        return self.network(x / 255)  # pixels are scaled to [0, 1]


class Actor(nn.Module):
    def __init__(self, envs):
        super().__init__()
        self.network = cnn(int(envs.single_action_space.n))

    def forward(self, x):
        # differs from sac_continuous_action.py: the log-probabilities of all actions
        return self.network(x / 255).log_softmax(-1)

    @torch.inference_mode()
    def get_action(self, x, deterministic=False):
        logprobs = self(x)
        if not deterministic:
            # Gumbel-max trick: the argmax of log-probabilities plus Gumbel noise is a sample of the policy
            gumbel_noise = -torch.empty_like(logprobs).exponential_().log()
            logprobs = logprobs + gumbel_noise
        return logprobs.argmax(-1)


class ReplayBuffer:
    """The latest transitions, each a row of obs, next_obs, action, reward, termination. New ones replace the oldest."""

    def __init__(self, size, obs_dim, action_dim, device):
        self.widths = [obs_dim, obs_dim, action_dim, 1, 1]
        self.rows = np.zeros((size, sum(self.widths)))  # float64: nothing is rounded
        self.num_added = 0
        self.device = device  # where minibatches go; the rows stay in main memory
        self.frames = torch.from_numpy(np.zeros((size + size // 25 + 1000, 84, 84), np.uint8)).to(device)
        self.num_frames = 0  # differs from sac_continuous_action.py: rows have the numbers of frames
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


@torch.no_grad()
def update_target(target_network, network, tau):
    """Polyak averaging: every weight of the target network moves by a share tau towards that of the network."""
    for target_param, param in zip(target_network.parameters(), network.parameters()):
        target_param.lerp_(param, tau)


def load_policy(model_path, envs, device="cpu", deterministic=True):
    """Load the trained policy: a function from observations to actions, both NumPy arrays."""
    # differs from td3_continuous_action.py: actions can also be sampled
    actor = Actor(envs).to(device)
    weights = load_file(model_path, device=str(device))
    names = [name for name in weights if name.startswith("actor.")]  # not those of a critic
    actor.load_state_dict({name.removeprefix("actor."): weights[name] for name in names})

    def policy(obs):
        x = torch.as_tensor(obs, dtype=torch.float32, device=device)
        return actor.get_action(x, deterministic).cpu().numpy()

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
    actor = Actor(envs).to(device)
    qf1 = QNetwork(envs).to(device)
    qf2 = QNetwork(envs).to(device)
    qf1_target = QNetwork(envs).to(device)
    qf2_target = QNetwork(envs).to(device)
    qf1_target.load_state_dict(qf1.state_dict())
    qf2_target.load_state_dict(qf2.state_dict())
    # The temperature is what entropy is worth. Learning its logarithm keeps it positive.
    initial_alpha = 1.0 if args.autotune else args.alpha
    log_alpha = nn.Parameter(torch.tensor(initial_alpha, device=device).log())
    target_entropy = args.target_entropy_scale * math.log(envs.single_action_space.n)
    policy_lr = torch.tensor(args.policy_lr, device=device)  # a tensor: a recorded update sees it change
    q_lr = torch.tensor(args.q_lr, device=device)
    q_params = list(qf1.parameters()) + list(qf2.parameters())
    q_optimizer = torch.optim.Adam(q_params, q_lr, eps=1e-4, fused=True)
    actor_optimizer = torch.optim.Adam(actor.parameters(), policy_lr, eps=1e-4, fused=True)
    alpha_optimizer = torch.optim.Adam([log_alpha], q_lr, eps=1e-4, fused=True)

    def update_actor(mb_obs):
        # Actor: towards actions of higher value and higher entropy
        actor_optimizer.zero_grad()
        alpha = log_alpha.detach().exp()
        logprobs = actor(mb_obs)
        q_values = torch.min(qf1(mb_obs), qf2(mb_obs))
        actor_loss = (logprobs.exp() * (alpha * logprobs - q_values)).sum(-1).mean()
        actor_loss.backward(inputs=list(actor.parameters()))  # no gradients for the critics
        actor_optimizer.step()
        stats = {"actor_loss": actor_loss.detach(), "alpha": alpha}
        if args.autotune:  # Temperature: up while the entropy is below its target, and down above it
            alpha_optimizer.zero_grad()
            entropy = -(logprobs.exp() * logprobs).sum(-1).detach()
            alpha_loss = (log_alpha.exp() * (entropy - target_entropy)).mean()
            alpha_loss.backward()
            alpha_optimizer.step()
            stats["alpha_loss"] = alpha_loss.detach()
        return stats

    def update(mb_obs, mb_next_obs, mb_actions, mb_rewards, mb_terminations):
        # Critics: their target is the reward plus the discounted value and entropy of what the policy does next
        q_optimizer.zero_grad()
        with torch.no_grad():
            next_logprobs = actor(mb_next_obs)
            qf1_next_values = qf1_target(mb_next_obs)
            qf2_next_values = qf2_target(mb_next_obs)
            # clipped double Q-learning (Fujimoto et al. 2018, eq. 10): the larger of two estimates is often too high
            next_q_values = torch.min(qf1_next_values, qf2_next_values)
            next_q_values = next_q_values - log_alpha.exp() * next_logprobs  # -logprob estimates the entropy
            # the expectation over the next actions: a sum, weighted with their probabilities
            next_q_values = (next_logprobs.exp() * next_q_values).sum(-1, keepdim=True)
            td_target = mb_rewards + args.gamma * next_q_values * (1 - mb_terminations)
        qf1_values = qf1(mb_obs).gather(-1, mb_actions.long())
        qf2_values = qf2(mb_obs).gather(-1, mb_actions.long())
        qf1_loss = nn.functional.mse_loss(qf1_values, td_target)
        qf2_loss = nn.functional.mse_loss(qf2_values, td_target)
        qf_loss = qf1_loss + qf2_loss
        qf_loss.backward()
        q_optimizer.step()
        stats = {
            "qf1_values": qf1_values.detach().mean(),
            "qf2_values": qf2_values.detach().mean(),
            "qf1_loss": qf1_loss.detach(),
            "qf2_loss": qf2_loss.detach(),
            "qf_loss": qf_loss.detach() / 2,  # trained as their sum, logged as their mean
        }

        stats |= update_actor(mb_obs)
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
        "actor": actor,
        "qf1": qf1,
        "qf2": qf2,
        "qf1_target": qf1_target,
        "qf2_target": qf2_target,
        "q_optimizer": q_optimizer,
        "actor_optimizer": actor_optimizer,
        "log_alpha": log_alpha,
        "alpha_optimizer": alpha_optimizer,
        "buffer": buffer,
    }
    if args.resume:
        run.restore(checkpoint, state)  # fills `state`, which is read below
        if state["next_obs"] is not checkpoint["next_obs"]:
            buffer.stacks.clear()  # environments that cannot be restored start new episodes
    global_step = state["global_step"]
    next_obs = state["next_obs"]
    recent_returns = state["recent_returns"]

    act = actor.get_action
    if run:  # may speed up `act` and `update`; only --compile changes the rounding of results
        act, update = run.accelerate(args, __file__, act, update, state)
        writer = run.start(run_dir, args, __file__, global_step)  # Ctrl+C now saves a checkpoint
    else:
        writer = SummaryWriter(run_dir)
    progress = tqdm(total=args.total_timesteps, initial=global_step, unit="step", disable=None)
    print_frequency = 100 * (args.total_timesteps // 2000 + 1)  # without a terminal, about 20 lines
    stats = {}
    logged_step = global_step  # of the last log; a resumed run goes on from here
    start_time = time.perf_counter()
    for global_step in range(logged_step + args.num_envs, args.total_timesteps + 1, args.num_envs):
        # Act: at random until learning starts, then by the policy
        obs = next_obs.copy()  # a copy: the environments reuse their array
        if global_step > args.learning_starts:
            x = torch.as_tensor(obs, dtype=torch.float32, device=device)
            actions = act(x).cpu().numpy()
        else:
            actions = np.random.randint(envs.single_action_space.n, size=args.num_envs)

        # Learn: an update every few steps, before the next one: a GPU computes while the environments step
        if global_step > args.learning_starts and buffer.num_added > 0:  # empty in the first round
            for step in range(global_step - args.num_envs + 1, global_step + 1):
                if step % args.update_frequency == 0:
                    minibatch = [x.to(device) for x in buffer.sample(args.batch_size)]
                    mb_obs, mb_next_obs, mb_actions, mb_rewards, mb_terminations = minibatch
                    stats = update(mb_obs, mb_next_obs, mb_actions, mb_rewards, mb_terminations)
                if step % args.target_network_frequency == 0:
                    update_target(qf1_target, qf1, args.tau)
                    update_target(qf2_target, qf2, args.tau)

        # Step
        next_obs, rewards, terminations, truncations, infos = envs.step(actions)
        real_next_obs = next_obs.copy()
        for idx in np.flatnonzero(terminations | truncations):  # next_obs begins the next episode
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
                if not x.isfinite():
                    raise FloatingPointError(f"{name} is not finite at global_step={global_step}")
                writer.add_scalar(f"losses/{name}", x, global_step)
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
        model = nn.ModuleDict({"actor": actor, "qf1": qf1, "qf2": qf2})
        save_file(model.state_dict(), f"{run_dir}/{args.exp_name}.safetensors", metadata)
    if run:  # evaluates, uploads, and says where everything is
        run.finish(run_dir, args, writer, make_envs, load_policy, recent_returns)
    writer.close()
