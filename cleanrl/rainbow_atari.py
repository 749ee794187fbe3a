"""Rainbow for Atari games: C51 with noisy and dueling networks, double Q-learning, n-step returns and priorities.

An observation is a stack of 4 frames, and 3 of them are in the observation before it as well. So the replay buffer
numbers the frames in the order in which they come, keeps them in a ring (number n in place n % len(frames)), and has
the numbers in its rows: a million transitions take 7.4 GB, and whole stacks would take 56 GB. A step brings one frame,
the start of an episode another one: there is room for a start every 25 steps. If there are more, the oldest transitions
lose frames and are no longer drawn.

Paper:   https://arxiv.org/abs/1710.02298 (Hessel et al. 2018)
Docs:    docs/rl-algorithms/rainbow_atari.md
Parent:  c51_atari.py
Run:     python cleanrl/rainbow_atari.py --env-id BreakoutNoFrameskip-v4
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
    env_id: str = "BreakoutNoFrameskip-v4"
    """the id of the environment"""
    total_timesteps: int = 10_000_000
    """environment steps of the whole run, all environments together"""
    learning_rate: float = 6.25e-5
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
    n_step: int = 3
    """the rewards that are added up before the rest of a return is bootstrapped"""
    tau: float = 1.0
    """how far an update moves the target network towards the Q-network: 1 copies it"""
    target_network_frequency: int = 8000
    """environment steps between updates of the target network"""
    batch_size: int = 32
    """transitions in a minibatch"""
    prioritized_replay_alpha: float = 0.5
    """how much the priority of a transition counts when it is drawn: 0 draws all of them equally often"""
    prioritized_replay_beta: float = 0.4
    """how much importance weights correct for that at the start; at the end they correct for all of it"""
    prioritized_replay_eps: float = 1e-6
    """what is added to every priority, so that none is zero"""
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


class NoisyLinear(nn.Module):
    """A linear layer with noise on its weights and biases. It learns how much to explore: the scale of the noise.

    The noise is factorised (Fortunato et al. 2018, equations 10 and 11): input j draws a number e_j and output i draws
    e_i; the noise on the weight between them is e_i * e_j, and that on the bias is e_i. So it is enough to multiply the
    inputs by e_j and the outputs by e_i. Every row of a batch draws its own noise: each environment explores by itself.
    """

    def __init__(self, in_features, out_features):
        super().__init__()
        self.mean = nn.Linear(in_features, out_features)  # its initial weights are those of the paper
        self.scale = nn.Linear(in_features, out_features)
        initial_scale = 0.5 / math.sqrt(in_features)
        nn.init.constant_(self.scale.weight, initial_scale)
        nn.init.constant_(self.scale.bias, initial_scale)

    def forward(self, x):
        mean = self.mean(x)
        if not self.training:  # a policy that does not explore
            return mean
        return mean + self.draw_noise_like(mean) * self.scale(self.draw_noise_like(x) * x)

    def draw_noise_like(self, x):
        noise = torch.randn_like(x)
        return noise.sign() * noise.abs().sqrt()


class QNetwork(nn.Module):
    def __init__(self, envs, atoms):  # differs from dqn.py: an action has a probability for each atom, as logits
        super().__init__()
        num_actions = int(envs.single_action_space.n)
        self.layer1 = nn.Conv2d(4, 32, 8, stride=4)  # differs from c51.py: the network of Mnih et al. 2015
        self.layer2 = nn.Conv2d(32, 64, 4, stride=2)
        self.layer3 = nn.Conv2d(64, 64, 3)
        # differs from c51_atari.py: noisy layers in two streams, a dueling network (Wang et al. 2016, equation 9)
        self.value_layer = NoisyLinear(3136, 512)
        self.value_head = NoisyLinear(512, len(atoms))
        self.advantage_layer = NoisyLinear(3136, 512)
        self.advantage_head = NoisyLinear(512, num_actions * len(atoms))
        self.atoms = nn.Buffer(atoms)

    def forward(self, x):
        x = self.layer1(x / 255).relu()  # pixels are scaled to [0, 1]
        x = self.layer2(x).relu()
        x = self.layer3(x).relu()
        x = x.flatten(1)
        value = self.value_head(self.value_layer(x).relu())
        advantages = self.advantage_head(self.advantage_layer(x).relu())
        advantages = advantages.unflatten(-1, (-1, len(self.atoms)))  # (batch, actions, atoms)
        return value.unsqueeze(1) + advantages - advantages.mean(1, keepdim=True)

    @torch.inference_mode()
    def get_action(self, x):
        pmfs = self(x).softmax(-1)
        q_values = pmfs @ self.atoms  # the value of an action is the mean of its distribution
        return q_values.argmax(-1)


class Priorities:
    """The priorities of the rows of a replay buffer; a row is drawn with a probability in proportion to its priority.

    To add up a million of them for every minibatch would take too long. So they are kept in blocks, together with the
    sum of each block: first a block is drawn by its sum, then a row of the block by its priority.
    """

    def __init__(self, size):
        self.block_size = 200  # fast for a million rows and minibatches of 32
        self.values = np.zeros((math.ceil(size / self.block_size), self.block_size))
        self.sums = np.zeros(len(self.values))

    def get(self, inds):
        return self.values[inds // self.block_size, inds % self.block_size]

    def set(self, inds, values):
        blocks = inds // self.block_size
        self.values[blocks, inds % self.block_size] = values
        self.sums[blocks] = self.values[blocks].sum(-1)

    def draw(self, batch_size):
        # One row from each of batch_size equal parts of the sum of all priorities, so that a minibatch covers all of it
        # (Schaul et al. 2016, appendix B.2.1). Random numbers above 0, up to 1, so that no priority of 0 is ever drawn.
        random_numbers = 1 - torch.rand((2, batch_size), dtype=torch.float64).numpy()
        sums = self.sums.cumsum()
        shares = (np.arange(batch_size) + random_numbers[0]) / batch_size
        blocks = np.searchsorted(sums, shares * sums[-1])
        sums_inside = self.values[blocks].cumsum(-1)  # (batch_size, block_size)
        shares_inside = random_numbers[1].reshape(-1, 1)
        inds_inside = (sums_inside < shares_inside * sums_inside[:, -1:]).sum(-1)
        return blocks * self.block_size + inds_inside


class ReplayBuffer:
    """The latest transitions, each a row of obs, next_obs, action, reward, discount. New ones replace the oldest.

    A transition spans up to n_step steps: it starts with one and grows as further steps come, until its episode ends.
    Its next_obs is the last one, its reward is the discounted sum of their rewards, and its discount is that of the
    value of next_obs: gamma to the power of the number of its steps, or 0 after a termination.
    """

    def __init__(self, size, obs_dim, action_dim, n_step, gamma, device):
        self.widths = [obs_dim, obs_dim, action_dim, 1, 1]
        self.rows = np.zeros((size, sum(self.widths)))  # float64: nothing is rounded
        self.num_added = 0
        self.device = device  # where minibatches go; the rows stay in main memory
        self.frames = torch.from_numpy(np.zeros((size + size // 25 + 1000, 84, 84), np.uint8)).to(device)
        self.num_frames = 0  # differs from c51.py: obs and next_obs are numbers of frames
        self.stacks = {}  # the numbers of the 4 frames that an environment shows, for those in the midst of an episode
        self.n_step = n_step  # differs from c51_atari.py: transitions of several steps, and priorities
        self.gamma = gamma
        self.growing = {}  # the latest n_step rows of an environment, all of the same episode
        self.priorities = Priorities(size)
        self.max_priority = 1.0

    def add_frame(self, frame):
        self.frames[self.num_frames % len(self.frames)] = torch.from_numpy(frame)
        self.num_frames += 1
        return self.num_frames - 1

    def add(self, obs, next_obs, actions, rewards, terminations, truncations):
        for idx, (action, reward, termination) in enumerate(zip(actions, rewards, terminations)):
            if idx not in self.stacks:  # an episode starts, with 4 times the same frame
                self.stacks[idx] = [self.add_frame(obs[idx, -1])] * 4
                self.growing[idx] = deque(maxlen=self.n_step)
            frames = self.stacks.pop(idx) + [self.add_frame(next_obs[idx, -1])]
            new_row = self.num_added % len(self.rows)
            self.rows[new_row] = frames[:4] + frames[1:] + [action, 0, 1]
            self.num_added += 1
            self.growing[idx].append(new_row)
            for row in self.growing[idx]:  # the step is the first one of the new row, and a later one of the others
                self.rows[row, 4:8] = frames[1:]  # next_obs
                self.rows[row, 9] += self.rows[row, 10] * reward  # the reward, by the discount so far
                self.rows[row, 10] *= self.gamma * (1 - termination)  # the discount
            self.priorities.set(new_row, self.max_priority)  # so that it is drawn soon
            if not (terminations[idx] or truncations[idx]):
                self.stacks[idx] = frames[1:]

    def draw(self, batch_size):
        """The numbers of rows, drawn in proportion to their priorities."""
        while True:
            inds = self.priorities.draw(batch_size)
            is_lost = self.rows[inds, 0] < self.num_frames - len(self.frames)  # the first frame has been overwritten
            if not is_lost.any():
                return inds
            self.priorities.set(inds[is_lost], 0)  # and draw all of them anew

    def get(self, inds, beta):
        # Importance weights make up for rows that are drawn more often than others (Schaul et al. 2016, section 3.4).
        # They are divided by the largest one: the number of rows and the sum of all priorities cancel out.
        priorities = self.priorities.get(inds)
        weights = torch.from_numpy((priorities / priorities.min()) ** -beta)
        rows = torch.from_numpy(self.rows[inds]).to(self.device)
        obs, next_obs, actions, rewards, discounts = rows.float().split(self.widths, dim=-1)
        obs, next_obs = self.frames[rows[:, :8].long() % len(self.frames)].hsplit(2)
        return obs, next_obs, actions, rewards, discounts, weights.float()

    def set_priorities(self, inds, priorities):
        self.priorities.set(inds, priorities)
        self.max_priority = max(self.max_priority, priorities.max())

    def state_dict(self):
        return {
            "rows": torch.from_numpy(self.rows[: self.num_added]),
            "num_added": self.num_added,
            "frames": self.frames[: self.num_frames].cpu(),
            "num_frames": self.num_frames,
            "stacks": self.stacks,
            "growing": self.growing,
            "priorities": self.priorities.values,
            "priority_sums": self.priorities.sums,
            "max_priority": self.max_priority,
        }

    def load_state_dict(self, state):
        self.rows[: len(state["rows"])] = state["rows"]
        self.num_added = state["num_added"]
        self.frames[: len(state["frames"])] = state["frames"]
        self.num_frames = state["num_frames"]
        self.stacks = state["stacks"]
        self.growing = state["growing"]
        self.priorities.values[:] = state["priorities"]
        self.priorities.sums[:] = state["priority_sums"]
        self.max_priority = state["max_priority"]


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


def rainbow_loss(logits, next_logits, target_logits, actions, rewards, discounts, weights, atoms):
    """The loss of a minibatch (Hessel et al. 2018), those of its transitions, and a dictionary of what to log."""
    batch = torch.arange(len(actions), device=actions.device)
    next_q_values = next_logits.softmax(-1) @ atoms
    next_actions = next_q_values.argmax(-1)  # double Q-learning: chosen by the Q-network,
    next_pmfs = target_logits[batch, next_actions].softmax(-1)  # evaluated by the target network
    returns = rewards + discounts * atoms
    target_pmfs = project_distribution(next_pmfs, returns, atoms)
    old_actions = actions.squeeze(-1).long()
    old_logits = logits[batch, old_actions]
    old_pmfs = old_logits.softmax(-1)
    log_pmfs = old_pmfs.clamp(1e-5, 1 - 1e-5).log()  # clamped: there is no gradient beyond these bounds
    losses = -(target_pmfs * log_pmfs).sum(-1)  # the cross-entropy of each transition
    loss = (weights * losses).mean()
    taken_q_values = old_pmfs.detach() @ atoms
    stats = {"td_loss": loss.detach(), "q_values": taken_q_values.mean()}
    return loss, losses.detach(), stats


@torch.no_grad()
def update_target(target_network, q_network, tau):  # with tau = 1, the target network becomes a copy
    for target_param, param in zip(target_network.parameters(), q_network.parameters()):
        target_param.lerp_(param, tau)


def load_policy(model_path, envs, device="cpu", deterministic=True):
    """Load the trained policy: a function from observations to actions, both NumPy arrays."""
    weights = load_file(model_path, device=str(device))
    q_network = QNetwork(envs, weights["atoms"]).to(device)  # differs from dqn.py: the atoms are part of the model
    q_network.load_state_dict(weights)
    q_network.train(not deterministic)  # differs from c51_atari.py: noise on the weights, or none

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
    if args.buffer_size < args.n_step * args.num_envs:
        sys.exit(f"--buffer-size {args.buffer_size}: must be at least --n-step x --num-envs, as so many rows grow")

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
    adam_epsilon = 1.5e-4  # as in the paper
    optimizer = torch.optim.Adam(q_network.parameters(), learning_rate, eps=adam_epsilon, fused=True)

    def update(mb_obs, mb_next_obs, mb_actions, mb_rewards, mb_discounts, mb_weights):
        optimizer.zero_grad()
        with torch.no_grad():
            next_logits = q_network(mb_next_obs)
            target_logits = target_network(mb_next_obs)
        logits = q_network(mb_obs)
        loss, losses, stats = rainbow_loss(
            logits, next_logits, target_logits, mb_actions, mb_rewards, mb_discounts, mb_weights, atoms
        )
        loss.backward()
        optimizer.step()
        new_priorities = (losses + args.prioritized_replay_eps) ** args.prioritized_replay_alpha
        return new_priorities, stats

    # Storage
    next_obs, _ = envs.reset(seed=args.seed)
    if run:  # checks that it fits into memory, and chooses the device
        buffer = run.place_buffer(
            ReplayBuffer, args.buffer_size, next_obs.shape[1], 1, args.n_step, args.gamma, device=device
        )
    else:
        buffer = ReplayBuffer(args.buffer_size, next_obs.shape[1], 1, args.n_step, args.gamma, device)

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
    stats = {}
    logged_step = global_step  # of the last log; a resumed run goes on from here
    start_time = time.perf_counter()
    for global_step in range(logged_step + args.num_envs, args.total_timesteps + 1, args.num_envs):
        # Act: the noise of the network explores
        obs = next_obs.copy()  # a copy: the environments reuse their array
        x = torch.from_numpy(obs).to(device, torch.float32)
        actions = act(x).cpu().numpy()

        # Learn: before the environments step, so that a GPU works at the same time. A round is `num_envs` steps.
        beta = linear_schedule(args.prioritized_replay_beta, 1.0, args.total_timesteps, global_step)
        learned = []  # rows, and their new priorities
        if global_step > args.learning_starts and buffer.num_added > 0:  # empty in the first round
            for step in range(global_step - args.num_envs + 1, global_step + 1):
                if step % args.train_frequency == 0:
                    mb_inds = buffer.draw(args.batch_size)
                    minibatch = [x.to(device) for x in buffer.get(mb_inds, beta)]
                    mb_obs, mb_next_obs, mb_actions, mb_rewards, mb_discounts, mb_weights = minibatch
                    new_priorities, stats = update(
                        mb_obs, mb_next_obs, mb_actions, mb_rewards, mb_discounts, mb_weights
                    )
                    learned.append((mb_inds, new_priorities))
                if step % args.target_network_frequency == 0:
                    update_target(target_network, q_network, args.tau)

        # Step
        next_obs, rewards, terminations, truncations, infos = envs.step(actions)
        real_next_obs = next_obs.copy()
        if "final_obs" in infos:  # at the end of an episode, next_obs already begins the next one
            for idx in np.flatnonzero(infos["_final_obs"]):
                real_next_obs[idx] = infos["final_obs"][idx]
        for mb_inds, new_priorities in learned:  # only now, as this waits for the GPU
            buffer.set_priorities(mb_inds, new_priorities.cpu().numpy())
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
            writer.add_scalar("charts/beta", beta, global_step)
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
