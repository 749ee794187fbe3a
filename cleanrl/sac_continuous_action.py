"""Soft Actor-Critic (SAC): a stochastic policy that is rewarded for its entropy, with the two critics of TD3.

Paper:   https://arxiv.org/abs/1812.05905 (Haarnoja et al. 2018)
Docs:    docs/rl-algorithms/sac_continuous_action.md
Parent:  td3_continuous_action.py
Run:     python cleanrl/sac_continuous_action.py --env-id Hopper-v4
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

LOG_STD_MIN = -5  # the logarithm of the standard deviation is squashed between these two
LOG_STD_MAX = 2
LOG_SQRT_2PI = math.log(math.sqrt(2 * math.pi))


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
    env_id: str = "Hopper-v4"
    """the id of the environment"""
    total_timesteps: int = 1_000_000
    """environment steps of the whole run, all environments together"""
    policy_lr: float = 3e-4
    """the learning rate of the policy"""
    q_lr: float = 1e-3
    """the learning rate of the critics and of the temperature"""
    num_envs: int = 1
    """the number of parallel environments"""
    buffer_size: int = 1_000_000
    """transitions that the replay buffer holds"""
    gamma: float = 0.99
    """the discount factor"""
    tau: float = 0.005
    """how far the target networks move towards the networks: 1 copies them"""
    batch_size: int = 256
    """transitions in a minibatch"""
    learning_starts: int = 5_000
    """environment steps before the first update, with random actions"""
    policy_frequency: int = 2
    """environment steps between updates of the policy, which then catches up on those it missed"""
    target_network_frequency: int = 1
    """environment steps between updates of the target networks"""
    alpha: float = 0.2
    """the temperature (the weight of the entropy) with --no-autotune"""
    autotune: bool = True
    """tune the temperature towards an entropy of -1 per component of an action"""


def make_env(env_id, idx, capture_video, run_dir):
    def thunk():
        if env_id.startswith("dm_control/"):
            import shimmy  # noqa: F401 (importing it registers these environments)
        is_filmed = capture_video and idx == 0
        env = gym.make(env_id, render_mode="rgb_array") if is_filmed else gym.make(env_id)
        space = env.action_space
        if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1 or not space.is_bounded():
            raise ValueError(f"its actions are {space}, not a bounded vector; try dqn.py or ppo_continuous_action.py")
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


def mlp(input_dim, output_dim):
    return nn.Sequential(
        nn.Linear(input_dim, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, output_dim)
    )


class QNetwork(nn.Module):
    def __init__(self, envs):
        super().__init__()
        self.network = mlp(envs.single_observation_space.shape[0] + envs.single_action_space.shape[0], 1)

    def forward(self, x, action):
        return self.network(torch.cat([x, action], dim=-1))


class Actor(nn.Module):
    def __init__(self, envs):
        super().__init__()
        self.network = mlp(envs.single_observation_space.shape[0], 2 * envs.single_action_space.shape[0])
        # each component of an action has bounds of its own; buffers are saved with the network
        self.low = nn.Buffer(torch.tensor(envs.single_action_space.low, dtype=torch.float32))
        self.high = nn.Buffer(torch.tensor(envs.single_action_space.high, dtype=torch.float32))
        self.action_scale = nn.Buffer((self.high - self.low) / 2)
        self.action_bias = nn.Buffer((self.high + self.low) / 2)

    def forward(self, x):
        # differs from td3_continuous_action.py: mean and log(std) of a normal variable u; the action is tanh(u), scaled
        mean, log_std = self.network(x).chunk(2, dim=-1)
        log_std = LOG_STD_MIN + (LOG_STD_MAX - LOG_STD_MIN) * (log_std.tanh() + 1) / 2
        return mean, log_std

    @torch.inference_mode()
    def get_action(self, x, deterministic=False):
        u, log_std = self(x)  # the mean, until noise is added
        if not deterministic:
            u = u + log_std.exp() * torch.randn_like(u)
        action = u.tanh() * self.action_scale + self.action_bias
        return action.clamp(self.low, self.high)  # rounding errors may leave the bounds

    def get_action_and_logprob(self, x):
        """Sample actions so that gradients flow through them into the policy (the reparameterization trick)."""
        mean, log_std = self(x)
        noise = torch.randn_like(mean)
        u = mean + log_std.exp() * noise
        action = u.tanh() * self.action_scale + self.action_bias
        return action, log_prob(u, log_std, noise, self.action_scale)


class ReplayBuffer:
    """The latest transitions, each a row of obs, next_obs, action, reward, termination. New ones replace the oldest."""

    def __init__(self, size, obs_dim, action_dim, device):
        self.widths = [obs_dim, obs_dim, action_dim, 1, 1]
        self.rows = np.zeros((size, sum(self.widths)), dtype=np.float32)
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
        return rows.float().split(self.widths, dim=-1)

    def state_dict(self):
        return {
            "rows": torch.from_numpy(self.rows[: self.num_added]),
            "num_added": self.num_added,
        }

    def load_state_dict(self, state):
        self.rows[: len(state["rows"])] = state["rows"]
        self.num_added = state["num_added"]


def log_prob(u, log_std, noise, action_scale):
    """The log-density of tanh(u) * action_scale + action_bias for u = mean + std * noise, by change of variables."""
    log_normal = -0.5 * noise**2 - log_std - LOG_SQRT_2PI
    # The slope of tanh is (2 / (e^u + e^-u))^2. This form of its logarithm is accurate even where tanh(u) rounds to 1.
    log_slope = 2 * (math.log(2) - u - nn.functional.softplus(-2 * u))
    return (log_normal - log_slope - action_scale.log()).sum(-1, keepdim=True)


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
    target_entropy = -envs.single_action_space.shape[0]  # a density can have a negative entropy
    policy_lr = torch.tensor(args.policy_lr, device=device)  # a tensor: a recorded update sees it change
    q_lr = torch.tensor(args.q_lr, device=device)
    q_params = list(qf1.parameters()) + list(qf2.parameters())
    q_optimizer = torch.optim.Adam(q_params, q_lr, fused=True)
    actor_optimizer = torch.optim.Adam(actor.parameters(), policy_lr, fused=True)
    alpha_optimizer = torch.optim.Adam([log_alpha], q_lr, fused=True)

    def update_actor(mb_obs):
        # Actor: towards actions of higher value and higher entropy
        actor_optimizer.zero_grad()
        alpha = log_alpha.detach().exp()
        actions, logprobs = actor.get_action_and_logprob(mb_obs)
        q_values = torch.min(qf1(mb_obs, actions), qf2(mb_obs, actions))
        actor_loss = (alpha * logprobs - q_values).mean()
        actor_loss.backward(inputs=list(actor.parameters()))  # no gradients for the critics
        actor_optimizer.step()
        stats = {"actor_loss": actor_loss.detach(), "alpha": alpha}
        if args.autotune:  # Temperature: up while the entropy is below its target, and down above it
            alpha_optimizer.zero_grad()
            alpha_loss = -(log_alpha.exp() * (logprobs.detach() + target_entropy)).mean()
            alpha_loss.backward()
            alpha_optimizer.step()
            stats["alpha_loss"] = alpha_loss.detach()
        return stats

    def update(mb_obs, mb_next_obs, mb_actions, mb_rewards, mb_terminations, policy_is_due, targets_are_due):
        # Critics: their target is the reward plus the discounted value and entropy of what the policy does next
        q_optimizer.zero_grad()
        with torch.no_grad():
            next_actions, next_logprobs = actor.get_action_and_logprob(mb_next_obs)
            qf1_next_values = qf1_target(mb_next_obs, next_actions)
            qf2_next_values = qf2_target(mb_next_obs, next_actions)
            # clipped double Q-learning (Fujimoto et al. 2018, eq. 10): the larger of two estimates is often too high
            next_q_values = torch.min(qf1_next_values, qf2_next_values)
            next_q_values = next_q_values - log_alpha.exp() * next_logprobs  # -logprob estimates the entropy
            td_target = mb_rewards + args.gamma * next_q_values * (1 - mb_terminations)
        qf1_values = qf1(mb_obs, mb_actions)
        qf2_values = qf2(mb_obs, mb_actions)
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

        if policy_is_due:
            for _ in range(args.policy_frequency):  # catch up on the delayed updates, with this minibatch
                stats |= update_actor(mb_obs)
        if targets_are_due:
            update_target(qf1_target, qf1, args.tau)
            update_target(qf2_target, qf2, args.tau)
        return stats

    # Storage
    next_obs, _ = envs.reset(seed=args.seed)
    if run:  # checks that it fits into memory, and chooses the device
        buffer = run.place_buffer(ReplayBuffer, args.buffer_size, next_obs.shape[1], envs.action_space.shape[1], device)
    else:
        buffer = ReplayBuffer(args.buffer_size, next_obs.shape[1], envs.action_space.shape[1], device)

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
            actions = np.random.uniform(envs.action_space.low, envs.action_space.high).astype(np.float32)

        # Learn: an update for each transition, before the next step: a GPU computes while the environments step
        if global_step > args.learning_starts and buffer.num_added > 0:  # empty in the first round
            for step in range(global_step - args.num_envs + 1, global_step + 1):
                mb_obs, mb_next_obs, mb_actions, mb_rewards, mb_terminations = buffer.sample(args.batch_size)
                policy_is_due = step % args.policy_frequency == 0
                targets_are_due = step % args.target_network_frequency == 0
                stats |= update(
                    mb_obs, mb_next_obs, mb_actions, mb_rewards, mb_terminations, policy_is_due, targets_are_due
                )

        # Step
        next_obs, rewards, terminations, truncations, infos = envs.step(actions)
        real_next_obs = next_obs.copy()
        for idx in np.flatnonzero(terminations | truncations):  # next_obs begins the next episode
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
