"""Categorical DQN (C51): DQN that learns the distribution of the return instead of its mean, for discrete actions.

Paper:   https://arxiv.org/abs/1707.06887 (Bellemare, Dabney and Munos 2017)
Docs:    docs/rl-algorithms/c51.md
Parent:  dqn.py
Run:     python cleanrl/c51.py --env-id CartPole-v1
"""

import json
import os
import random
import sys
import time
from collections import deque
from dataclasses import dataclass

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
    """compile the update with `torch.compile`: half a minute of warm-up; the gain depends on network and device"""
    cudagraphs: bool = True
    """replay policy and update as they were recorded, on the GPU as CUDA graphs: the same numbers, much faster"""
    track: bool = False
    """also log to Weights & Biases"""
    wandb_project_name: str = "cleanRL"
    """the project on Weights & Biases"""
    wandb_entity: str | None = None
    """the entity (team) of the project on Weights & Biases"""
    capture_video: bool = False
    """record videos of the first environment, and of the evaluation, into `RUN_DIR/videos`"""
    save_model: bool = False
    """save the trained model into `RUN_DIR/{exp_name}.safetensors` and evaluate it"""
    upload_model: bool = False
    """upload the saved model to the Hugging Face Hub"""
    hf_entity: str = ""
    """the user or organisation on the Hugging Face Hub"""
    checkpoint_frequency: int = 100_000
    """environment steps between checkpoints (0: never)"""
    resume: str | None = None
    """continue the run in this folder from its last checkpoint; flags given beside it win over the saved ones"""

    # Algorithm specific arguments
    env_id: str = "CartPole-v1"
    """the id of the environment"""
    total_timesteps: int = 500_000
    """environment steps of the whole run, all environments together"""
    learning_rate: float = 2.5e-4
    """the learning rate of the optimizer"""
    num_envs: int = 1
    """the number of parallel environments"""
    n_atoms: int = 101
    """the number of atoms: the returns, evenly spaced, that have a probability"""
    v_min: float = -100.0
    """the lowest atom; returns below it count as it"""
    v_max: float = 100.0
    """the highest atom; returns above it count as it"""
    buffer_size: int = 10_000
    """transitions that the replay buffer holds"""
    gamma: float = 0.99
    """the discount factor"""
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
        video = {"render_mode": "rgb_array"} if capture_video and idx == 0 else {}
        env = gym.make(env_id, **video)
        if not isinstance(env.action_space, gym.spaces.Discrete):
            raise ValueError(f"its actions are {env.action_space}; for Box actions there is ppo_continuous_action.py")
        if len(env.observation_space.shape or ()) != 1:  # integers, matrices and dictionaries become one vector
            env = gym.wrappers.FlattenObservation(env)
        env = gym.wrappers.RecordEpisodeStatistics(env)
        if video:
            env = gym.wrappers.RecordVideo(env, f"{run_dir}/videos")
        return env

    return thunk


def make_envs(env_id, num_envs, capture_video, run_dir):
    # SAME_STEP: the step that ends an episode returns the next one's first observation; infos["final_obs"] has its last
    thunks = [make_env(env_id, idx, capture_video, run_dir) for idx in range(num_envs)]
    return gym.vector.SyncVectorEnv(thunks, copy=False, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)


class QNetwork(nn.Module):
    # differs from dqn.py: an action has a probability for each atom, as logits, and their mean is its value
    def __init__(self, envs, n_atoms=101, v_min=-100, v_max=100):
        super().__init__()
        obs_dim, num_actions = envs.single_observation_space.shape[0], int(envs.single_action_space.n)
        hidden = nn.Linear(obs_dim, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()
        distributions = nn.Linear(84, num_actions * n_atoms), nn.Unflatten(-1, (num_actions, n_atoms))
        self.network = nn.Sequential(*hidden, *distributions)
        self.register_buffer("atoms", torch.linspace(v_min, v_max, n_atoms))

    def forward(self, x):
        for layer in self.network:  # `forward` skips the machinery of nn.Module, a fifth of the time of so small a call
            x = layer.forward(x)
        return x

    @torch.inference_mode()
    def get_action(self, x):
        return (self.forward(x).softmax(-1) @ self.atoms).argmax(-1)


class ReplayBuffer:
    """The last transitions, each one row of an array, so that a minibatch is gathered at once."""

    def __init__(self, size, widths, device):
        self.widths = widths  # of obs, next_obs, actions, rewards and terminations in a row
        self.rows, self.count, self.new = torch.zeros((size, sum(widths)), device=device), 0, []

    def add(self, *transitions):
        """A step of all environments; the next observation at the end of an episode is its final one."""
        self.new.append(transitions)

    def write(self):
        """Move all that was added since the last time to its place, over the oldest rows."""
        rows, self.new = (np.column_stack([np.concatenate(x) for x in zip(*self.new)]) if self.new else ()), []
        while len(rows):
            place = self.rows[self.count % len(self.rows) :][: len(rows)]
            place[:] = torch.as_tensor(rows[: len(place)], dtype=place.dtype)
            self.count, rows = self.count + len(place), rows[len(place) :]

    def sample(self, batch_size):
        self.write()
        inds = torch.randint(min(self.count, len(self.rows)), (batch_size,), device=self.rows.device)
        return self.rows[inds].split(self.widths, -1)

    def state_dict(self):
        self.write()
        return vars(self) | {"rows": self.rows[: self.count].clone()}

    def load_state_dict(self, state):
        self.rows[: len(state["rows"])] = state["rows"]
        vars(self).update(state | {"rows": self.rows})


def linear_schedule(start_e, end_e, duration, step):
    return start_e + (end_e - start_e) * min(step / duration, 1)


def project_distribution(pmfs, returns, atoms):
    """Move probabilities from any returns to the atoms; each is split between the two around it, their mean kept."""
    intervals = len(atoms) - 1
    spacing = (atoms[-1] - atoms[0]) / intervals
    position = ((returns - atoms[0]) / spacing).clamp(0, intervals)
    lower = position.long().clamp(0, intervals - 1)  # the highest atom is the upper end of the last interval
    upper_pmfs = pmfs * (position - lower)
    return torch.zeros_like(pmfs).scatter_add(-1, lower, pmfs - upper_pmfs).scatter_add(-1, lower + 1, upper_pmfs)


def c51_loss(logits, next_logits, actions, rewards, terminations, gamma, atoms):
    """The loss of a minibatch (Bellemare et al. 2017, algorithm 1), and what to log as a dictionary."""
    batch = torch.arange(len(actions), device=actions.device)
    next_pmfs = next_logits.softmax(-1)  # (batch, actions, atoms)
    next_pmfs = next_pmfs[batch, (next_pmfs @ atoms).argmax(-1)]  # of the greedy action
    returns = rewards + gamma * atoms * (1 - terminations)
    target_pmfs = project_distribution(next_pmfs, returns, atoms)
    old_logits = logits[batch, actions.squeeze(-1).long()]
    old_pmfs = old_logits.softmax(-1)
    loss = -(target_pmfs * old_pmfs.clamp(1e-5, 1 - 1e-5).log()).sum(-1).mean()  # clamped: no gradient beyond
    return loss, {"loss": loss.detach(), "q_values": (old_pmfs.detach() @ atoms).mean()}


def load_policy(model_path, envs, device="cpu", deterministic=True):
    """The trained policy as a function from observations to actions, NumPy to NumPy; it is always greedy."""
    # differs from dqn.py: the number of atoms is the model's
    state = load_file(model_path, device=str(device))
    q_network = QNetwork(envs, len(state["atoms"])).to(device)
    q_network.load_state_dict(state)
    return lambda obs: q_network.get_action(torch.as_tensor(obs, device=device).float()).cpu().numpy()


if __name__ == "__main__":
    args = tyro.cli(Args)
    try:  # what a run leaves on disk and on the web; copied out of the repository, this file trains without it
        from cleanrl_utils import run
    except ImportError:
        run = None
        if args.resume or args.track or args.upload_model or args.compile:
            sys.exit("--resume, --track, --upload-model, --compile need cleanrl_utils: install it from the repository")
    if args.resume:
        args, checkpoint = run.load_checkpoint(args.resume, __file__, Args)
    if min(args.num_envs, args.buffer_size, args.batch_size, args.train_frequency, args.target_network_frequency) < 1:
        sys.exit("--num-envs, --buffer-size, --batch-size, --train- and --target-network-frequency are at least 1")
    if args.total_timesteps <= args.learning_starts:
        sys.exit(f"--total-timesteps {args.total_timesteps}: more than --learning-starts {args.learning_starts}")
    support = args.n_atoms, args.v_min, args.v_max
    if args.n_atoms < 2 or not 0 < args.v_max - args.v_min < float("inf"):
        sys.exit(f"--n-atoms is at least 2, --v-min is less than --v-max, and both are finite; not {support}")

    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what determinism asks of cuBLAS
    torch.use_deterministic_algorithms(args.torch_deterministic)
    torch.set_num_threads(1)  # on matrices this small, threads cost more than they give
    device = torch.device("cuda" if torch.cuda.is_available() and args.cuda else "cpu")

    run_dir = args.resume or f"runs/{args.env_id.replace('/', '_')}__{args.exp_name}__{args.seed}__{int(time.time())}"
    try:
        envs = make_envs(args.env_id, args.num_envs, args.capture_video, run_dir)
        q_network, target_network = QNetwork(envs, *support).to(device), QNetwork(envs, *support).to(device)
        target_network.requires_grad_(False).load_state_dict(q_network.state_dict())
        lr = torch.tensor(args.learning_rate, device=device)  # a tensor: CUDA graphs read it anew at each replay
        eps = 0.01 / args.batch_size  # as in the paper
        optimizer = torch.optim.Adam(q_network.parameters(), lr, eps=eps, fused=True, capturable=lr.is_cuda)
        shape = args.buffer_size, (*envs.single_observation_space.shape[:1] * 2, 1, 1, 1)
        buffer = run.fit(ReplayBuffer, *shape, device) if run else ReplayBuffer(*shape, device)
    except (gym.error.Error, AssertionError, ImportError, TypeError, ValueError, OSError) as error:
        sys.exit(f"cannot train on {args.env_id}: {run.advice(args.env_id, error) if run else error}")

    def backward(obs, next_obs, actions, rewards, terminations):
        with torch.no_grad():
            next_logits = target_network(next_obs)
        loss, stats = c51_loss(q_network(obs), next_logits, actions, rewards, terminations, args.gamma, q_network.atoms)
        loss.backward()
        return stats

    def update(*minibatch):
        optimizer.zero_grad()
        stats = backward(*minibatch)
        optimizer.step()
        return stats

    if run:  # the same numbers, faster: replayed or compiled; to print or to break inside of them, --no-cudagraphs
        q_network.get_action, backward, update = run.accelerate(args, device, q_network.get_action, backward, update)

    # Storage
    global_step, recent_returns, stats = 0, deque(maxlen=100), {}
    duration = max(args.exploration_fraction * args.total_timesteps, 1)
    next_obs, _ = envs.reset(seed=args.seed)
    stateful = {"q_network": q_network, "target_network": target_network, "optimizer": optimizer, "buffer": buffer}
    if args.resume:
        global_step, next_obs, recent_returns = run.restore(checkpoint, envs, **stateful)
    writer = run.start(run_dir, args, __file__, global_step) if run else SummaryWriter(run_dir)
    progress = tqdm(total=args.total_timesteps, initial=global_step, unit="step", disable=None)
    start_time, logged_step = time.perf_counter(), global_step
    for global_step in range(logged_step + args.num_envs, args.total_timesteps + 1, args.num_envs):
        # Act: epsilon-greedily, each environment on its own
        obs = next_obs.copy()  # the environments reuse their array
        explore = np.random.rand(args.num_envs) < linear_schedule(args.start_e, args.end_e, duration, global_step)
        actions = (np.random.rand(args.num_envs) * envs.single_action_space.n).astype(int)  # faster than randint
        if not explore.all():
            greedy = q_network.get_action(torch.as_tensor(obs, device=device).float()).cpu().numpy()
            actions = np.where(explore, actions, greedy)

        # Learn: before the environments step, so that on a GPU both happen at the same time
        learning = global_step > max(args.learning_starts, args.num_envs)
        for step in range(global_step - args.num_envs + 1, global_step + 1) if learning else ():
            if step % args.train_frequency == 0:
                stats = update(*(x.to(device) for x in buffer.sample(args.batch_size)))
            if step % args.target_network_frequency == 0:
                target_network.load_state_dict(q_network.state_dict())

        # Step
        next_obs, rewards, terminations, truncations, infos = envs.step(actions)
        real_next_obs = next_obs.copy()
        for idx in np.flatnonzero(terminations | truncations):  # not the first observation of the next episode
            real_next_obs[idx] = infos["final_obs"][idx]
        buffer.add(obs, real_next_obs, actions, rewards, terminations)
        if "episode" in infos.get("final_info", ()):
            episodes = infos["final_info"]["episode"]
            for idx in np.flatnonzero(infos["final_info"]["_episode"]):
                recent_returns.append(episodes["r"][idx])
                episode_step = global_step - args.num_envs + idx + 1  # no two episodes share a step
                writer.add_scalar("charts/episodic_return", episodes["r"][idx], episode_step)
                writer.add_scalar("charts/episodic_length", episodes["l"][idx], episode_step)

        # Log
        if global_step % 100 < args.num_envs:
            for name, x in stats.items():
                if not np.isfinite(x := x.item()):
                    raise FloatingPointError(f"{name} is not finite at global_step={global_step}")
                writer.add_scalar(f"losses/{name}", x, global_step)
            sps = (global_step - logged_step) / (time.perf_counter() - start_time)
            writer.add_scalar("charts/SPS", sps, global_step)
            recent_return = np.mean(recent_returns or [np.nan])
            progress.set_postfix(episodic_return=recent_return, refresh=False)
            progress.update(global_step - logged_step)
            start_time, logged_step, stats = time.perf_counter(), global_step, {}
            if progress.disable and global_step % (args.total_timesteps // 2000 * 100 + 100) < args.num_envs:
                print(f"global_step={global_step}, episodic_return={recent_return:.1f}, SPS={sps:.0f}")
        if run and run.checkpoint_due(args, global_step, args.num_envs):
            state = {"global_step": global_step, "next_obs": next_obs, "recent_returns": recent_returns}
            run.save_checkpoint(run_dir, args, __file__, envs, writer, state, **stateful)

    envs.close()
    progress.close()
    if args.save_model:
        save_file(q_network.state_dict(), f"{run_dir}/{args.exp_name}.safetensors", {"args": json.dumps(vars(args))})
    if run:  # evaluate, upload, and say where everything is
        run.finish(run_dir, args, writer, make_envs, load_policy, recent_returns)
    writer.close()
