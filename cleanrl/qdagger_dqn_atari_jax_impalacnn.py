"""QDagger for Atari games, in JAX: a DQN with a larger network that first learns from a trained dqn_atari_jax.py.

First the teacher plays and fills a replay buffer. From it the student learns offline, by the loss of DQN and by a
distillation loss that draws its policy towards the teacher's. Then the student plays and learns online, as in DQN, and
the distillation fades while its score approaches that of the teacher.

An observation is a stack of 4 frames, and 3 of them are in the observation before it as well. So the replay buffer
numbers the frames in the order in which they come, keeps them in a ring (number n in place n % len(frames)), and has
the numbers in its rows: a million transitions take 7.4 GB, and whole stacks would take 56 GB. A step brings one frame,
the start of an episode another one: there is room for a start every 25 steps. If there are more, the oldest transitions
lose frames and are no longer drawn. The 500,000 transitions of the teacher take 3.7 GB more, until the student plays.

Paper:   https://arxiv.org/abs/2206.01626 (Agarwal et al. 2022)
Docs:    docs/rl-algorithms/qdagger_dqn_atari_jax_impalacnn.md
Parent:  dqn_atari_jax.py
Run:     python cleanrl/qdagger_dqn_atari_jax_impalacnn.py --teacher-model-path RUN_DIR_OF_DQN_ATARI_JAX
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
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import tyro
from safetensors.numpy import load_file, save_file
from tqdm import tqdm

try:
    import flax.linen as nn
    import jax
    import jax.numpy as jnp
    import optax
    from flax.traverse_util import flatten_dict, unflatten_dict
except ImportError as error:
    sys.exit(f'{error}: pip install "cleanrl[jax]"')


@dataclass
class Args:
    exp_name: str = os.path.basename(__file__)[: -len(".py")]
    """the name of this experiment"""
    seed: int = 1
    """seed of the experiment"""
    cuda: bool = True
    """train on the GPU when there is one"""
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
    """the teacher: a model file of dqn_atari_jax.py, or the folder of its run; without it, one from the hub"""
    teacher_policy_hf_repo: str | None = None
    """its repository on the Hugging Face Hub; without it, cleanrl/{env_id}-{teacher_model_exp_name}-seed1"""
    teacher_model_exp_name: str = "dqn_atari_jax"
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
        env = gym.wrappers.FrameStackObservation(ClipRewardEnv(env), 4)  # differs from dqn_jax.py: as in ppo_atari.py
        return env

    return thunk


def make_envs(env_id, num_envs, capture_video, run_dir):
    # SAME_STEP: when an episode ends, next_obs begins the next one, and infos["final_obs"] is the end of the old one
    thunks = [make_env(env_id, idx, capture_video, run_dir) for idx in range(num_envs)]
    return gym.vector.SyncVectorEnv(thunks, copy=False, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)


class TeacherNetwork(nn.Module):  # the QNetwork of dqn_atari_jax.py
    num_actions: int

    @nn.compact
    def __call__(self, x):
        x = x.transpose(0, 2, 3, 1)  # channels last, as Flax expects them
        x = x / 255  # pixels are scaled to [0, 1]
        x = nn.relu(nn.Conv(32, (8, 8), strides=4, padding="VALID", name="layer1")(x))
        x = nn.relu(nn.Conv(64, (4, 4), strides=2, padding="VALID", name="layer2")(x))
        x = nn.relu(nn.Conv(64, (3, 3), strides=1, padding="VALID", name="layer3")(x))
        x = x.reshape(len(x), -1)
        x = nn.relu(nn.Dense(512, name="layer4")(x))
        return nn.Dense(self.num_actions, name="head")(x)


class ResidualBlock(nn.Module):
    channels: int

    @nn.compact
    def __call__(self, x):
        y = nn.Conv(self.channels, (3, 3), name="conv1")(nn.relu(x))
        return x + nn.Conv(self.channels, (3, 3), name="conv2")(nn.relu(y))


class ConvSequence(nn.Module):
    channels: int

    @nn.compact
    def __call__(self, x):
        x = nn.Conv(self.channels, (3, 3), name="conv")(x)
        x = nn.max_pool(x, (3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))  # half of the height and width
        x = ResidualBlock(self.channels, name="block1")(x)
        return ResidualBlock(self.channels, name="block2")(x)


class QNetwork(nn.Module):  # differs from dqn_atari_jax.py: the network of Espeholt et al. 2018 (IMPALA)
    num_actions: int

    @nn.compact
    def __call__(self, x):
        x = x.transpose(0, 2, 3, 1)  # channels last, as Flax expects them
        x = x / 255  # pixels are scaled to [0, 1]
        x = ConvSequence(16, name="layer1")(x)
        x = ConvSequence(32, name="layer2")(x)
        x = nn.relu(ConvSequence(32, name="layer3")(x))
        x = x.reshape(len(x), -1)
        x = nn.relu(nn.Dense(256, name="layer4")(x))
        return nn.Dense(self.num_actions, name="head")(x)


class TrainState(NamedTuple):
    """What an update changes. It is never changed in place: an update returns a new one."""

    params: Any
    target_params: Any
    optimizer_state: Any


class ReplayBuffer:
    """The latest transitions, each a row of obs, next_obs, action, reward, termination. New ones replace the oldest."""

    def __init__(self, size, obs_dim, action_dim):
        widths = [obs_dim, obs_dim, action_dim, 1, 1]
        self.rows = np.zeros((size, sum(widths)))  # float64 holds every frame number exactly
        self.column_ends = np.cumsum(widths)[:-1]
        self.num_added = 0
        self.frames = np.zeros((size + size // 25 + 1000, 84, 84), np.uint8)  # takes memory only as frames arrive
        self.num_frames = 0  # differs from dqn_jax.py: obs and next_obs are numbers of frames
        self.stacks = {}  # the numbers of the 4 frames that an environment shows, for those in the midst of an episode

    def add_frame(self, frame):
        self.frames[self.num_frames % len(self.frames)] = frame
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
        inds = np.random.randint(num_rows, size=batch_size)
        for i in range(batch_size):
            while self.rows[inds[i], 0] < self.num_frames - len(self.frames):  # its first frame has been overwritten
                inds[i] = np.random.randint(num_rows)
        # differs from dqn_jax.py: a minibatch is several arrays, as frames are bytes
        columns = np.split(self.rows[inds], self.column_ends, axis=-1)
        obs_numbers, next_obs_numbers, actions, rewards, terminations = columns
        obs = self.frames[obs_numbers.astype(int) % len(self.frames)]
        next_obs = self.frames[next_obs_numbers.astype(int) % len(self.frames)]
        return obs, next_obs, actions, rewards, terminations

    def state_dict(self):
        return {
            "rows": self.rows[: self.num_added],
            "num_added": self.num_added,
            "frames": self.frames[: self.num_frames],
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


def dqn_loss(q_values, next_q_values, actions, rewards, terminations, gamma):  # differs from dqn.py: in JAX
    """The loss of a minibatch (Mnih et al. 2015, algorithm 1), and what to log. Truncated episodes bootstrap."""
    td_target = rewards + gamma * next_q_values.max(-1, keepdims=True) * (1 - terminations)
    taken_q_values = jnp.take_along_axis(q_values, actions.astype(int), axis=-1)
    td_loss = ((taken_q_values - td_target) ** 2).mean()
    return td_loss, {"td_loss": td_loss, "q_values": taken_q_values.mean()}


def distillation_loss(q_values, teacher_q_values, temperature):
    """The mean KL divergence of the student's policy from the teacher's; both are softmaxes of action values."""
    logprobs = nn.log_softmax(q_values / temperature)
    teacher_logprobs = nn.log_softmax(teacher_q_values / temperature)
    divergences = (jnp.exp(teacher_logprobs) * (teacher_logprobs - logprobs)).sum(-1)
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


def epsilon_greedy(act, params, obs, epsilon, num_actions):
    """Greedy actions, each of them replaced by a random one with a probability of epsilon."""
    explore = np.random.rand(len(obs)) < epsilon
    actions = (np.random.rand(len(obs)) * num_actions).astype(int)  # faster than randint
    if not explore.all():
        greedy_actions = np.asarray(act(params, obs.astype(np.float32)))
        actions = np.where(explore, actions, greedy_actions)
    return actions


def get_real_next_obs(next_obs, infos):
    real_next_obs = next_obs.copy()
    if "final_obs" in infos:  # at the end of an episode, next_obs already begins the next one
        for idx in np.flatnonzero(infos["_final_obs"]):
            real_next_obs[idx] = infos["final_obs"][idx]
    return real_next_obs


def play_games(act, params, args):
    """The scores of games that are played one after the other, with few random actions."""
    envs = make_envs(args.env_id, 1, False, "")
    obs, _ = envs.reset(seed=args.seed + args.num_envs)  # a seed that no game of the training has
    returns = []
    while len(returns) < args.teacher_eval_episodes:
        actions = epsilon_greedy(act, params, obs, args.end_e, envs.single_action_space.n)
        obs, _, _, _, infos = envs.step(actions)
        if "episode" in infos.get("final_info", {}):  # `_episode` tells where one has ended
            returns.append(infos["final_info"]["episode"]["r"][0])
    envs.close()
    return returns


def load_policy(model_path, envs, device="cpu", deterministic=True):  # differs from dqn.py: in JAX
    """Load the trained policy: a function from observations to actions, both NumPy arrays. It is always greedy."""
    q_network = QNetwork(int(envs.single_action_space.n))
    params = unflatten_dict(load_file(model_path), sep=".")

    @jax.jit  # JAX chooses the device: `device` is only used by the files in PyTorch
    def act(x):
        return q_network.apply(params, x).argmax(-1)

    def policy(obs):
        return np.asarray(act(obs.astype(np.float32)))

    return policy


if __name__ == "__main__":
    try:  # `run` adds checkpoints, evaluation and tracking; training works without it
        from cleanrl_utils import run

        args = run.parse_args(Args)
    except ModuleNotFoundError:
        run = None
        args = tyro.cli(Args)
        if args.resume or args.track or args.upload_model:
            sys.exit("--resume, --track, --upload-model: install cleanrl_utils for them")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # Ctrl+C raises an exception again
    if run:  # checks the flags; with --resume, reads the flags and the checkpoint of that run
        args, checkpoint = run.prepare(args, __file__)
    teacher_path = args.teacher_model_path
    if run and not args.resume:  # looks into a run folder, or on the hub; a checkpoint has its teacher already
        teacher_path = run.find_teacher(args)

    random.seed(args.seed)
    np.random.seed(args.seed)
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")  # threads cost more time than they save
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # compute in this thread: waking up another costs more
    jax.config.update("jax_compilation_cache_dir", os.path.expanduser("~/.cache/cleanrl_jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)  # fast compilations as well
    if not args.cuda:
        jax.config.update("jax_platforms", "cpu")
    try:
        key = jax.random.key(args.seed)
    except (AssertionError, RuntimeError) as error:  # JAX_PLATFORMS names what is not here
        sys.exit(f"JAX: {str(error) or 'JAX_PLATFORMS=cuda asks for a GPU, and there is none'}")

    run_name = f"{args.env_id.replace('/', '_')}__{args.exp_name}__{args.seed}__{int(time.time())}"
    run_dir = args.resume or f"runs/{run_name}"
    try:
        envs = make_envs(args.env_id, args.num_envs, args.capture_video, run_dir)
    except Exception as error:  # an unknown id, a package that is missing, actions of another kind
        sys.exit(run.explain_env_error(args.env_id, error) if run else f"{args.env_id}: {error}")
    next_obs, _ = envs.reset(seed=args.seed)
    q_network = QNetwork(int(envs.single_action_space.n))
    teacher_network = TeacherNetwork(int(envs.single_action_space.n))
    params = q_network.init(key, next_obs)
    teacher_params = teacher_network.init(key, next_obs)  # replaced by a model file or a checkpoint
    if not args.resume:
        try:
            teacher_params = unflatten_dict(load_file(teacher_path), sep=".")
            teacher_params = jax.tree.map(jnp.asarray, teacher_params)
            teacher_network.apply(teacher_params, next_obs)  # fails if they do not fit it
        except Exception as error:  # no such file, or the arrays of another network
            reason = " ".join(str(error).split())
            sys.exit(f"the teacher {teacher_path} is no model of dqn_atari_jax.py for {args.env_id}: {reason}")
    optimizer = optax.flatten(optax.adam(args.learning_rate))  # all parameters as one vector: twice as fast
    target_params = jax.tree.map(jnp.copy, params)  # copies: two networks cannot share memory
    train_state = TrainState(params, target_params, optimizer.init(params))

    @jax.jit  # differs from dqn_jax.py: for a large network, compiled code is faster than NumPy
    def act(params, x):
        return q_network.apply(params, x).argmax(-1)

    @jax.jit
    def teacher_act(params, x):
        return teacher_network.apply(params, x).argmax(-1)

    @partial(jax.jit, donate_argnums=0)  # the new state takes the memory of the old one
    def update(train_state, minibatch, teacher_params, distill_coeff):
        mb_obs, mb_next_obs, mb_actions, mb_rewards, mb_terminations = minibatch
        next_q_values = q_network.apply(train_state.target_params, mb_next_obs)
        teacher_q_values = teacher_network.apply(teacher_params, mb_obs)

        def loss_of(params):
            q_values = q_network.apply(params, mb_obs)
            td_loss, stats = dqn_loss(q_values, next_q_values, mb_actions, mb_rewards, mb_terminations, args.gamma)
            distill_loss = distillation_loss(q_values, teacher_q_values, args.temperature)
            loss = td_loss + distill_coeff * distill_loss
            stats["distill_loss"] = distill_loss
            stats["loss"] = loss
            return loss, stats

        gradients, stats = jax.grad(loss_of, has_aux=True)(train_state.params)
        changes, optimizer_state = optimizer.update(gradients, train_state.optimizer_state, train_state.params)
        params = optax.apply_updates(train_state.params, changes)
        return train_state._replace(params=params, optimizer_state=optimizer_state), stats

    @partial(jax.jit, donate_argnums=0)
    def update_target(train_state):  # with tau = 1, the target network becomes a copy
        target_params = optax.incremental_update(train_state.params, train_state.target_params, args.tau)
        return train_state._replace(target_params=target_params)

    # Storage: a replay buffer of the student and one of the teacher
    teacher_size = min(args.buffer_size, args.teacher_steps)
    if run:  # checks first that it fits into memory
        buffer = run.place_buffer(ReplayBuffer, args.buffer_size, next_obs.shape[1], 1)
        teacher_buffer = run.place_buffer(
            ReplayBuffer, teacher_size, next_obs.shape[1], 1, flag="--teacher-steps", beside=buffer
        )
    else:
        buffer = ReplayBuffer(args.buffer_size, next_obs.shape[1], 1)
        teacher_buffer = ReplayBuffer(teacher_size, next_obs.shape[1], 1)

    # State: what a checkpoint saves and a resumed run restores, in addition to flags and random generators
    state = {
        "phase": "teacher",  # which plays first; then "student"
        "global_step": 0,  # the student's updates offline, plus its environment steps online
        "next_obs": next_obs,
        "recent_returns": deque(maxlen=100),
        "teacher_returns": [],
        "distill_coeff": 1.0,
        "envs": envs,
        "train_state": train_state,
        "teacher_params": teacher_params,
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
    train_state = state["train_state"]
    teacher_params = state["teacher_params"]

    if run:
        writer = run.start(run_dir, args, __file__, global_step)  # Ctrl+C now saves a checkpoint
    else:
        from tensorboardX import SummaryWriter  # only here: it imports PyTorch, too, if installed

        writer = SummaryWriter(run_dir)
    num_actions = envs.single_action_space.n
    last_step = args.offline_steps + args.total_timesteps
    num_done = teacher_buffer.num_added + global_step
    progress = tqdm(total=args.teacher_steps + last_step, initial=num_done, unit="step", disable=None)

    # Phase 1: the teacher plays, with fewer and fewer random actions, and fills its replay buffer
    if not teacher_returns:
        teacher_returns = play_games(teacher_act, teacher_params, args)
        writer.add_scalar("charts/teacher/avg_episodic_return", np.mean(teacher_returns), 0)
        print(f"the teacher scores {np.mean(teacher_returns):.1f}; now it plays {args.teacher_steps} steps")
    while teacher_buffer.num_added < args.teacher_steps:
        obs = next_obs.copy()
        epsilon = linear_schedule(args.start_e, args.end_e, args.teacher_steps, teacher_buffer.num_added)
        actions = epsilon_greedy(teacher_act, teacher_params, obs, epsilon, num_actions)
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
        minibatch = teacher_buffer.sample(args.batch_size)
        train_state, stats = update(train_state, minibatch, teacher_params, distill_coeff)
        if global_step % args.target_network_frequency == 0:
            train_state = update_target(train_state)
        if global_step % 100 == 0:
            if not np.isfinite(stats["loss"]):
                raise FloatingPointError(f"loss is not finite at global_step={global_step}")
            writer.add_scalar("charts/offline/loss", float(stats["loss"]), global_step)
            writer.add_scalar("charts/offline/q_loss", float(stats["td_loss"]), global_step)
            writer.add_scalar("charts/offline/distill_loss", float(stats["distill_loss"]), global_step)
        if global_step % 100_000 == 0 or global_step == args.offline_steps:
            returns = play_games(act, train_state.params, args)
            writer.add_scalar("charts/offline/avg_episodic_return", np.mean(returns), global_step)
            print(f"the student scores {np.mean(returns):.1f} after {global_step} updates offline")
        progress.update(1)
        online_step = global_step - args.offline_steps  # below zero
        if run and run.checkpoint_due(args, online_step, 1):
            state.update(global_step=global_step, train_state=train_state)
            run.save_checkpoint(run_dir, args, __file__, writer, state)
    teacher_buffer.rows = teacher_buffer.rows[:0].copy()  # not needed any more: frees memory, shrinks checkpoints
    teacher_buffer.frames = teacher_buffer.frames[:0].copy()

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
        actions = epsilon_greedy(act, train_state.params, obs, epsilon, num_actions)

        # Learn: before the environments step, so that a GPU works at the same time. A round is `num_envs` steps.
        online_step = global_step - args.offline_steps
        if online_step > args.learning_starts and buffer.num_added > 0:  # empty in the first round
            for step in range(global_step - args.num_envs + 1, global_step + 1):
                if step % args.train_frequency == 0:
                    minibatch = buffer.sample(args.batch_size)
                    train_state, stats = update(train_state, minibatch, teacher_params, distill_coeff)
                if step % args.target_network_frequency == 0:
                    train_state = update_target(train_state)

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
            distill_coeff = float(distillation_coefficient(recent_returns, teacher_returns))

        # Log: whenever a multiple of 100 steps is reached, the statistics of the latest minibatch
        if global_step % 100 < args.num_envs:
            for name, x in stats.items():
                if not np.isfinite(x):
                    raise FloatingPointError(f"{name} is not finite at global_step={global_step}")
                writer.add_scalar(f"losses/{name}", float(x), global_step)
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
            state.update(
                global_step=global_step, next_obs=next_obs, train_state=train_state, distill_coeff=distill_coeff
            )
            run.save_checkpoint(run_dir, args, __file__, writer, state)

    envs.close()
    progress.close()
    if args.save_model:
        metadata = {"args": json.dumps(vars(args)), "global_step": str(global_step)}
        tensors = {name: np.asarray(x) for name, x in flatten_dict(train_state.params, sep=".").items()}
        save_file(tensors, f"{run_dir}/{args.exp_name}.safetensors", metadata)
    if run:  # evaluates, uploads, and says where everything is
        run.finish(run_dir, args, writer, make_envs, load_policy, recent_returns)
    writer.close()
