"""QDagger for Atari games: DQN with a larger network that first learns from a teacher, a model of dqn_atari.py.

First the teacher plays and fills a replay buffer. From it the student learns offline, by the loss of DQN and by a
distillation loss that draws its policy towards the teacher's. Then the student plays and learns online, as in DQN, and
the distillation fades while its score approaches that of the teacher.

An observation is a stack of 4 frames, and 3 of them are in the observation before it as well. So the replay buffer
numbers the frames in the order in which they come, keeps them in a ring (number n in place n % len(frames)), and has
the numbers in its rows: a million transitions take 7.4 GB, and whole stacks would take 56 GB. A step brings one frame,
the start of an episode another one: there is room for a start every 25 steps. If there are more, the oldest transitions
lose frames and are no longer drawn. The 500,000 transitions of the teacher take 3.7 GB more, until the student plays.

Paper:   https://arxiv.org/abs/2206.01626 (Agarwal et al. 2022)
Docs:    docs/rl-algorithms/qdagger_dqn_atari_impalacnn.md
Parent:  dqn_atari.py
Run:     python cleanrl/qdagger_dqn_atari_impalacnn.py --teacher-model-path RUN_DIR_OF_DQN_ATARI
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
    """environment steps of the student, all environments together"""
    learning_rate: float = 1e-4
    """the learning rate of the optimizer"""
    num_envs: int = 1
    """the number of parallel environments"""
    buffer_size: int = 1_000_000
    """transitions that the replay buffer holds"""
    gamma: float = 0.99
    """the discount factor"""
    tau: float = 1.0
    """how far an update moves the target network towards the Q-network: 1 copies it"""
    target_network_frequency: int = 1000
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
    """environment steps of the student before its first update online"""
    train_frequency: int = 4
    """environment steps between updates"""
    teacher_model_path: str | None = None
    """the teacher: a model file of dqn_atari.py, or the folder of its run; without it, one from the hub"""
    teacher_policy_hf_repo: str | None = None
    """its repository on the Hugging Face Hub; without it, cleanrl/{env_id}-{teacher_model_exp_name}-seed1"""
    teacher_model_exp_name: str = "dqn_atari"
    """the name of the teacher's experiment on the hub"""
    teacher_eval_episodes: int = 10
    """the games that the teacher, and later the student offline, play to know their scores"""
    teacher_steps: int = 500_000
    """environment steps of the teacher, which fill its replay buffer"""
    offline_steps: int = 500_000
    """updates from that replay buffer, before the student plays"""
    temperature: float = 1.0
    """divides the action values in the distillation loss: the higher it is, the more random are both policies"""


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
        env = gym.wrappers.FrameStackObservation(ClipRewardEnv(env), 4)  # differs from dqn.py: as in ppo_atari.py
        return env

    return thunk


def make_envs(env_id, num_envs, capture_video, run_dir):
    # SAME_STEP: when an episode ends, next_obs begins the next one, and infos["final_obs"] is the end of the old one
    thunks = [make_env(env_id, idx, capture_video, run_dir) for idx in range(num_envs)]
    return gym.vector.SyncVectorEnv(thunks, copy=False, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)


class TeacherNetwork(nn.Module):  # the QNetwork of dqn_atari.py
    def __init__(self, envs):
        super().__init__()
        num_actions = int(envs.single_action_space.n)
        self.layer1 = nn.Conv2d(4, 32, 8, stride=4)  # differs from dqn.py: the network of Mnih et al. 2015
        self.layer2 = nn.Conv2d(32, 64, 4, stride=2)
        self.layer3 = nn.Conv2d(64, 64, 3)
        self.layer4 = nn.Linear(3136, 512)
        self.head = nn.Linear(512, num_actions)

    def forward(self, x):
        x = self.layer1(x / 255).relu()  # pixels are scaled to [0, 1]
        x = self.layer2(x).relu()
        x = self.layer3(x).relu()
        x = self.layer4(x.flatten(1)).relu()
        return self.head(x)

    @torch.inference_mode()
    def get_action(self, x):
        return self(x).argmax(-1)


class ResidualBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        y = self.conv1(x.relu())
        return x + self.conv2(y.relu())


class ConvSequence(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)  # half of the height and width
        self.block1 = ResidualBlock(out_channels)
        self.block2 = ResidualBlock(out_channels)

    def forward(self, x):
        x = self.pool(self.conv(x))
        return self.block2(self.block1(x))


class QNetwork(nn.Module):
    def __init__(self, envs):
        super().__init__()
        num_actions = int(envs.single_action_space.n)
        self.layer1 = ConvSequence(4, 16)  # differs from dqn_atari.py: the network of Espeholt et al. 2018 (IMPALA)
        self.layer2 = ConvSequence(16, 32)
        self.layer3 = ConvSequence(32, 32)
        self.layer4 = nn.Linear(3872, 256)
        self.head = nn.Linear(256, num_actions)

    def forward(self, x):
        x = self.layer1(x / 255)  # pixels are scaled to [0, 1]
        x = self.layer2(x)
        x = self.layer3(x).relu()
        x = self.layer4(x.flatten(1)).relu()
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
        self.frames = torch.from_numpy(np.zeros((size + size // 25 + 1000, 84, 84), np.uint8)).to(device)
        self.num_frames = 0  # differs from dqn.py: obs and next_obs are numbers of frames
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


def dqn_loss(q_values, next_q_values, actions, rewards, terminations, gamma):
    """The loss of a minibatch (Mnih et al. 2015, algorithm 1), and what to log. Truncated episodes bootstrap."""
    td_target = rewards + gamma * next_q_values.amax(-1, keepdim=True) * (1 - terminations)
    taken_q_values = q_values.gather(-1, actions.long())
    td_loss = ((taken_q_values - td_target) ** 2).mean()
    return td_loss, {"td_loss": td_loss.detach(), "q_values": taken_q_values.detach().mean()}


def distillation_loss(q_values, teacher_q_values, temperature):
    """The mean KL divergence of the student's policy from the teacher's; both are softmaxes of action values."""
    logprobs = (q_values / temperature).log_softmax(-1)
    teacher_logprobs = (teacher_q_values / temperature).log_softmax(-1)
    divergences = (teacher_logprobs.exp() * (teacher_logprobs - logprobs)).sum(-1)
    return divergences.mean()


def distillation_coefficient(returns, teacher_returns):
    """The weight of the distillation loss: it falls from 1 to 0 while the student gets as good as its teacher."""
    if len(returns) < 10:  # too few games to know
        return 1.0
    student_score = np.mean(list(returns)[-10:])
    teacher_score = np.mean(teacher_returns)
    if teacher_score <= 0:  # a share of it would make no sense
        return float(student_score < teacher_score)
    return max(1 - student_score / teacher_score, 0.0)


@torch.no_grad()
def update_target(target_network, q_network, tau):  # with tau = 1, the target network becomes a copy
    for target_param, param in zip(target_network.parameters(), q_network.parameters()):
        target_param.lerp_(param, tau)


def epsilon_greedy(act, obs, epsilon, num_actions, device):
    """Greedy actions, each of them replaced by a random one with a probability of epsilon."""
    explore = np.random.rand(len(obs)) < epsilon
    actions = (np.random.rand(len(obs)) * num_actions).astype(int)  # faster than randint
    if not explore.all():
        x = torch.from_numpy(obs).to(device, torch.float32)
        greedy_actions = act(x).cpu().numpy()
        actions = np.where(explore, actions, greedy_actions)
    return actions


def get_real_next_obs(next_obs, infos):
    real_next_obs = next_obs.copy()
    if "final_obs" in infos:  # at the end of an episode, next_obs already begins the next one
        for idx in np.flatnonzero(infos["_final_obs"]):
            real_next_obs[idx] = infos["final_obs"][idx]
    return real_next_obs


def play_games(act, args, device):
    """The scores of games that are played one after the other, with few random actions."""
    envs = make_envs(args.env_id, 1, False, "")
    obs, _ = envs.reset(seed=args.seed + args.num_envs)  # a seed that no game of the training has
    returns = []
    while len(returns) < args.teacher_eval_episodes:
        actions = epsilon_greedy(act, obs, args.end_e, envs.single_action_space.n, device)
        obs, _, _, _, infos = envs.step(actions)
        if "episode" in infos.get("final_info", {}):  # `_episode` tells where one has ended
            returns.append(infos["final_info"]["episode"]["r"][0])
    envs.close()
    return returns


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
    teacher_path = args.teacher_model_path
    if run and not args.resume:  # looks into a run folder, or on the hub; a checkpoint has its teacher already
        teacher_path = run.find_teacher(args)

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
    teacher_network = TeacherNetwork(envs).to(device)
    if not args.resume:
        try:
            teacher_network.load_state_dict(load_file(teacher_path, device=str(device)))
        except Exception as error:  # no such file, or the tensors of another network
            reason = " ".join(str(error).split())
            sys.exit(f"the teacher {teacher_path} is no model of dqn_atari.py for {args.env_id}: {reason}")
    learning_rate = torch.tensor(args.learning_rate, device=device)  # a tensor: a recorded update sees it change
    optimizer = torch.optim.Adam(q_network.parameters(), learning_rate, fused=True)

    def update(mb_obs, mb_next_obs, mb_actions, mb_rewards, mb_terminations, distill_coeff):
        optimizer.zero_grad()
        with torch.no_grad():
            next_q_values = target_network(mb_next_obs)
            teacher_q_values = teacher_network(mb_obs)
        q_values = q_network(mb_obs)
        td_loss, stats = dqn_loss(q_values, next_q_values, mb_actions, mb_rewards, mb_terminations, args.gamma)
        distill_loss = distillation_loss(q_values, teacher_q_values, args.temperature)
        loss = td_loss + distill_coeff * distill_loss
        loss.backward()
        optimizer.step()
        stats["distill_loss"] = distill_loss.detach()
        stats["loss"] = loss.detach()
        return stats

    # Storage: a replay buffer of the student and one of the teacher
    next_obs, _ = envs.reset(seed=args.seed)
    teacher_size = min(args.buffer_size, args.teacher_steps)
    if run:  # checks that it fits into memory, and chooses the device
        buffer = run.place_buffer(ReplayBuffer, args.buffer_size, next_obs.shape[1], 1, device=device)
        teacher_buffer = run.place_buffer(
            ReplayBuffer, teacher_size, next_obs.shape[1], 1, device=device, flag="--teacher-steps", beside=buffer
        )
    else:
        buffer = ReplayBuffer(args.buffer_size, next_obs.shape[1], 1, device)
        teacher_buffer = ReplayBuffer(teacher_size, next_obs.shape[1], 1, device)

    # State: what a checkpoint saves and a resumed run restores, in addition to flags and random generators
    state = {
        "phase": "teacher",  # which plays first; then "student"
        "global_step": 0,  # the student's updates offline, plus its environment steps online
        "next_obs": next_obs,
        "recent_returns": deque(maxlen=100),
        "teacher_returns": [],
        "distill_coeff": torch.tensor(1.0, device=device),
        "envs": envs,
        "q_network": q_network,
        "target_network": target_network,
        "teacher_network": teacher_network,
        "optimizer": optimizer,
        "buffer": buffer,
        "teacher_buffer": teacher_buffer,
    }
    if args.resume:
        run.restore(checkpoint, state)  # fills `state`, which is read below
        if state["next_obs"] is not checkpoint["next_obs"]:
            buffer.stacks.clear()  # environments that cannot be restored start new episodes
            teacher_buffer.stacks.clear()
    global_step = state["global_step"]
    next_obs = state["next_obs"]
    recent_returns = state["recent_returns"]
    teacher_returns = state["teacher_returns"]
    distill_coeff = state["distill_coeff"]

    act = q_network.get_action
    if run:  # may speed up `act` and `update`; only --compile changes the rounding of results
        act, update = run.accelerate(args, __file__, act, update, state)
        writer = run.start(run_dir, args, __file__, global_step)  # Ctrl+C now saves a checkpoint
    else:
        writer = SummaryWriter(run_dir)
    num_actions = envs.single_action_space.n
    last_step = args.offline_steps + args.total_timesteps
    num_done = teacher_buffer.num_added + global_step
    progress = tqdm(total=args.teacher_steps + last_step, initial=num_done, unit="step", disable=None)

    # Phase 1: the teacher plays, with fewer and fewer random actions, and fills its replay buffer
    if not teacher_returns:
        teacher_returns = play_games(teacher_network.get_action, args, device)
        writer.add_scalar("charts/teacher/avg_episodic_return", np.mean(teacher_returns), 0)
        print(f"the teacher scores {np.mean(teacher_returns):.1f}; now it plays {args.teacher_steps} steps")
    while teacher_buffer.num_added < args.teacher_steps:
        obs = next_obs.copy()
        epsilon = linear_schedule(args.start_e, args.end_e, args.teacher_steps, teacher_buffer.num_added)
        actions = epsilon_greedy(teacher_network.get_action, obs, epsilon, num_actions, device)
        next_obs, rewards, terminations, truncations, infos = envs.step(actions)
        real_next_obs = get_real_next_obs(next_obs, infos)
        teacher_buffer.add(obs, real_next_obs, actions, rewards, terminations, truncations)
        progress.update(args.num_envs)
        online_step = teacher_buffer.num_added - args.teacher_steps  # below zero: the student has not started yet
        if run and run.checkpoint_due(args, online_step, args.num_envs):
            state.update(next_obs=next_obs, teacher_returns=teacher_returns)
            run.save_checkpoint(run_dir, args, __file__, writer, state)
    if state["phase"] == "teacher":
        envs.close()
        envs = make_envs(args.env_id, args.num_envs, args.capture_video, run_dir)  # new games, for the student
        next_obs, _ = envs.reset(seed=args.seed)
        state.update(phase="student", next_obs=next_obs, teacher_returns=teacher_returns, envs=envs)

    # Phase 2: the student learns from the teacher's replay buffer
    while global_step < args.offline_steps:
        global_step += 1
        minibatch = [x.to(device) for x in teacher_buffer.sample(args.batch_size)]
        mb_obs, mb_next_obs, mb_actions, mb_rewards, mb_terminations = minibatch
        stats = update(mb_obs, mb_next_obs, mb_actions, mb_rewards, mb_terminations, distill_coeff)
        if global_step % args.target_network_frequency == 0:
            update_target(target_network, q_network, args.tau)
        if global_step % 100 == 0:
            if not np.isfinite(stats["loss"].item()):
                raise FloatingPointError(f"loss is not finite at global_step={global_step}")
            writer.add_scalar("charts/offline/loss", stats["loss"], global_step)
            writer.add_scalar("charts/offline/q_loss", stats["td_loss"], global_step)
            writer.add_scalar("charts/offline/distill_loss", stats["distill_loss"], global_step)
        if global_step % 100_000 == 0 or global_step == args.offline_steps:
            returns = play_games(act, args, device)
            writer.add_scalar("charts/offline/avg_episodic_return", np.mean(returns), global_step)
            print(f"the student scores {np.mean(returns):.1f} after {global_step} updates offline")
        progress.update(1)
        online_step = global_step - args.offline_steps  # below zero
        if run and run.checkpoint_due(args, online_step, 1):
            state.update(global_step=global_step)
            run.save_checkpoint(run_dir, args, __file__, writer, state)
    teacher_buffer.rows = teacher_buffer.rows[:0].copy()  # not needed any more: frees memory, shrinks checkpoints
    teacher_buffer.frames = teacher_buffer.frames[:0].clone()

    # Phase 3: the student plays and learns from its own replay buffer
    print_frequency = 100 * (args.total_timesteps // 2000 + 1)  # without a terminal, about 20 lines
    exploration_steps = max(args.exploration_fraction * args.total_timesteps, 1)
    stats = {}
    logged_step = global_step  # of the last log; a resumed run goes on from here
    start_time = time.perf_counter()
    for global_step in range(logged_step + args.num_envs, last_step + 1, args.num_envs):
        # Act: epsilon-greedily, each environment on its own
        obs = next_obs.copy()  # a copy: the environments reuse their array
        epsilon = linear_schedule(args.start_e, args.end_e, exploration_steps, global_step)
        actions = epsilon_greedy(act, obs, epsilon, num_actions, device)

        # Learn: before the environments step, so that a GPU works at the same time. A round is `num_envs` steps.
        online_step = global_step - args.offline_steps
        if online_step > args.learning_starts and buffer.num_added > 0:  # empty in the first round
            for step in range(global_step - args.num_envs + 1, global_step + 1):
                if step % args.train_frequency == 0:
                    minibatch = [x.to(device) for x in buffer.sample(args.batch_size)]
                    mb_obs, mb_next_obs, mb_actions, mb_rewards, mb_terminations = minibatch
                    stats = update(mb_obs, mb_next_obs, mb_actions, mb_rewards, mb_terminations, distill_coeff)
                if step % args.target_network_frequency == 0:
                    update_target(target_network, q_network, args.tau)

        # Step
        next_obs, rewards, terminations, truncations, infos = envs.step(actions)
        real_next_obs = get_real_next_obs(next_obs, infos)
        buffer.add(obs, real_next_obs, actions, rewards, terminations, truncations)
        if "episode" in infos.get("final_info", {}):  # `_episode` tells where one has ended
            episodes = infos["final_info"]["episode"]
            for idx in np.flatnonzero(infos["final_info"]["_episode"]):
                recent_returns.append(episodes["r"][idx])
                episode_step = global_step - args.num_envs + idx + 1  # one step per environment
                writer.add_scalar("charts/episodic_return", episodes["r"][idx], episode_step)
                writer.add_scalar("charts/episodic_length", episodes["l"][idx], episode_step)
            distill_coeff.fill_(distillation_coefficient(recent_returns, teacher_returns))

        # Log: whenever a multiple of 100 steps is reached, the statistics of the latest minibatch
        if global_step % 100 < args.num_envs:
            for name, x in stats.items():
                if not np.isfinite(x.item()):
                    raise FloatingPointError(f"{name} is not finite at global_step={global_step}")
                writer.add_scalar(f"losses/{name}", x, global_step)
            stats = {}
            writer.add_scalar("charts/epsilon", epsilon, global_step)
            writer.add_scalar("charts/distill_coeff", distill_coeff, global_step)
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
        if run and run.checkpoint_due(args, online_step, args.num_envs):
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
