"""Categorical DQN (C51) in JAX: DQN that learns the distribution of the return, for discrete actions.

Paper:   https://arxiv.org/abs/1707.06887 (Bellemare, Dabney and Munos 2017)
Docs:    docs/rl-algorithms/c51_jax.md
Parent:  dqn_jax.py
Run:     python cleanrl/c51_jax.py --env-id CartPole-v1
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
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import tyro
from safetensors.numpy import load_file, save_file
from tqdm import tqdm

try:
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


def init_layer(key, num_inputs, num_outputs):
    """The parameters of a linear layer start as in PyTorch: uniform within 1 / sqrt(number of inputs)."""
    bound = num_inputs**-0.5
    kernel_key, bias_key = jax.random.split(key)
    kernel = jax.random.uniform(kernel_key, (num_inputs, num_outputs), minval=-bound, maxval=bound)
    bias = jax.random.uniform(bias_key, (num_outputs,), minval=-bound, maxval=bound)
    return {"kernel": kernel, "bias": bias}


def apply_layer(layer, x):
    return x.dot(layer["kernel"]) + layer["bias"]  # NumPy is faster at `dot` than at `@`


class QNetwork:  # differs from dqn_jax.py: an action has a probability for each atom, as logits
    """The logits of all actions. `apply` uses only what arrays of NumPy and JAX have in common: it takes either."""

    def __init__(self, num_actions, num_atoms):
        self.num_actions = num_actions
        self.num_atoms = num_atoms

    def init(self, key, x):
        key1, key2, key3 = jax.random.split(key, 3)
        layers = {
            "layer1": init_layer(key1, x.shape[-1], 120),
            "layer2": init_layer(key2, 120, 84),
            "head": init_layer(key3, 84, self.num_actions * self.num_atoms),
        }
        return {"params": layers}  # named as by Flax, which the files with larger networks use

    def apply(self, params, x):
        layers = params["params"]
        x = apply_layer(layers["layer1"], x).clip(0)  # ReLU
        x = apply_layer(layers["layer2"], x).clip(0)
        logits = apply_layer(layers["head"], x)
        return logits.reshape(-1, self.num_actions, self.num_atoms)  # (batch, actions, atoms)


class TrainState(NamedTuple):
    """What an update changes. It is never changed in place: an update returns a new one."""

    params: Any
    target_params: Any
    optimizer_state: Any


class ReplayBuffer:
    """The latest transitions, each a row of obs, next_obs, action, reward, termination. New ones replace the oldest."""

    # differs from dqn.py: a minibatch is one NumPy array, which `update` splits
    def __init__(self, size, obs_dim, action_dim):
        widths = [obs_dim, obs_dim, action_dim, 1, 1]
        self.rows = np.zeros((size, sum(widths)), dtype=np.float32)  # as `update` computes anyway
        self.column_ends = np.cumsum(widths)[:-1]
        self.num_added = 0

    def add(self, obs, next_obs, actions, rewards, terminations):
        columns = [obs, next_obs, actions.reshape(len(obs), -1), rewards[:, None], terminations[:, None]]
        for row in np.concatenate(columns, axis=1):
            self.rows[self.num_added % len(self.rows)] = row
            self.num_added += 1

    def sample(self, batch_size):
        num_rows = min(self.num_added, len(self.rows))
        inds = np.random.randint(num_rows, size=batch_size)
        return self.rows[inds]

    def state_dict(self):
        return {
            "rows": self.rows[: self.num_added],
            "num_added": self.num_added,
        }

    def load_state_dict(self, state):
        self.rows[: len(state["rows"])] = state["rows"]
        self.num_added = state["num_added"]


def linear_schedule(start_e, end_e, duration, step):
    return start_e + (end_e - start_e) * min(step / duration, 1)


def get_action(logits, atoms):
    """The greedy actions of a batch. Like the network, it takes arrays of NumPy or of JAX."""
    exps = math.e ** (logits - logits.max(-1, keepdims=True))  # unlike `np.exp` and `jnp.exp`, `**` takes both
    pmfs = exps / exps.sum(-1, keepdims=True)  # the softmax
    q_values = pmfs @ atoms  # the value of an action is the mean of its distribution
    return q_values.argmax(-1)


def project_distribution(pmfs, returns, atoms):
    """Split the probability of each return between the two atoms around it so that its mean stays the same."""
    batch = jnp.arange(len(pmfs))[:, None]
    num_intervals = len(atoms) - 1
    spacing = (atoms[-1] - atoms[0]) / num_intervals
    position = (returns - atoms[0]) / spacing
    position = position.clip(0, num_intervals)  # returns beyond the atoms count as the first or the last one
    lower = position.astype(int).clip(0, num_intervals - 1)  # the highest atom is the upper end of the last interval
    upper_share = position - lower
    upper_pmfs = pmfs * upper_share
    lower_pmfs = pmfs - upper_pmfs
    projected = jnp.zeros_like(pmfs)
    projected = projected.at[batch, lower].add(lower_pmfs)
    return projected.at[batch, lower + 1].add(upper_pmfs)


def c51_loss(logits, next_logits, actions, rewards, terminations, gamma, atoms):
    """The loss of a minibatch (Bellemare et al. 2017, algorithm 1), and a dictionary of what to log."""
    batch = jnp.arange(len(actions))
    next_pmfs = jax.nn.softmax(next_logits)  # (batch, actions, atoms)
    next_q_values = next_pmfs @ atoms
    next_pmfs = next_pmfs[batch, next_q_values.argmax(-1)]  # those of the best actions
    returns = rewards + gamma * atoms * (1 - terminations)
    target_pmfs = project_distribution(next_pmfs, returns, atoms)
    old_actions = actions.squeeze(-1).astype(int)
    old_logits = logits[batch, old_actions]
    old_pmfs = jax.nn.softmax(old_logits)
    log_pmfs = jnp.log(old_pmfs.clip(1e-5, 1 - 1e-5))  # clipped: there is no gradient beyond these bounds
    loss = -(target_pmfs * log_pmfs).sum(-1).mean()  # the cross-entropy
    taken_q_values = old_pmfs @ atoms
    stats = {"loss": loss, "q_values": taken_q_values.mean()}
    return loss, stats


def load_policy(model_path, envs, device="cpu", deterministic=True):
    """Load the trained policy: a function from observations to actions, both NumPy arrays. It is always greedy."""
    tensors = load_file(model_path)
    atoms = tensors.pop("atoms")  # differs from dqn_jax.py: the atoms are part of the model
    q_network = QNetwork(int(envs.single_action_space.n), len(atoms))
    params = unflatten_dict(tensors, sep=".")

    @jax.jit  # JAX chooses the device: `device` is only used by the files in PyTorch
    def act(x):
        return get_action(q_network.apply(params, x), atoms)

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
    atoms = np.linspace(args.v_min, args.v_max, args.n_atoms, dtype=np.float32)
    q_network = QNetwork(int(envs.single_action_space.n), args.n_atoms)
    params = q_network.init(key, next_obs)
    adam_epsilon = 0.01 / args.batch_size  # as in the paper
    adam = optax.adam(args.learning_rate, eps=adam_epsilon)
    optimizer = optax.flatten(adam)  # all parameters as one vector: twice as fast
    target_params = jax.tree.map(jnp.copy, params)  # copies: two networks cannot share memory
    train_state = TrainState(params, target_params, optimizer.init(params))

    def act(params, x):  # in NumPy: for so little work, the call of a compiled function takes longer than the work
        return get_action(q_network.apply(params, x), atoms)

    @partial(jax.jit, donate_argnums=0)  # the new state takes the memory of the old one
    def update(train_state, minibatch):
        columns = jnp.split(minibatch, buffer.column_ends, axis=-1)  # `buffer` is made further down
        mb_obs, mb_next_obs, mb_actions, mb_rewards, mb_terminations = columns
        next_logits = q_network.apply(train_state.target_params, mb_next_obs)

        def loss_of(params):
            logits = q_network.apply(params, mb_obs)
            return c51_loss(logits, next_logits, mb_actions, mb_rewards, mb_terminations, args.gamma, atoms)

        gradients, stats = jax.grad(loss_of, has_aux=True)(train_state.params)
        changes, optimizer_state = optimizer.update(gradients, train_state.optimizer_state, train_state.params)
        params = optax.apply_updates(train_state.params, changes)
        return train_state._replace(params=params, optimizer_state=optimizer_state), stats

    @partial(jax.jit, donate_argnums=0)
    def update_target(train_state):  # the target network becomes a copy
        target_params = jax.tree.map(jnp.copy, train_state.params)
        return train_state._replace(target_params=target_params)

    # Storage
    if run:  # checks first that it fits into memory
        buffer = run.place_buffer(ReplayBuffer, args.buffer_size, next_obs.shape[1], 1)
    else:
        buffer = ReplayBuffer(args.buffer_size, next_obs.shape[1], 1)

    # State: what a checkpoint saves and a resumed run restores, in addition to flags and random generators
    state = {
        "global_step": 0,
        "next_obs": next_obs,
        "recent_returns": deque(maxlen=100),
        "envs": envs,
        "train_state": train_state,
        "buffer": buffer,
    }
    if args.resume:
        run.restore(checkpoint, state)  # fills `state`, which is read below
    global_step = state["global_step"]
    next_obs = state["next_obs"]
    recent_returns = state["recent_returns"]
    train_state = state["train_state"]

    if run:
        writer = run.start(run_dir, args, __file__, global_step)  # Ctrl+C now saves a checkpoint
    else:
        from tensorboardX import SummaryWriter  # only here: it imports PyTorch, too, if installed

        writer = SummaryWriter(run_dir)
    progress = tqdm(total=args.total_timesteps, initial=global_step, unit="step", disable=None)
    print_frequency = 100 * (args.total_timesteps // 2000 + 1)  # without a terminal, about 20 lines
    num_actions = int(envs.single_action_space.n)
    acting_params = jax.tree.map(np.array, train_state.params)  # copies of them, as arrays of NumPy
    exploration_steps = max(args.exploration_fraction * args.total_timesteps, 1)
    stats = {}
    logged_step = global_step  # of the last log; a resumed run goes on from here
    start_time = time.perf_counter()
    for global_step in range(logged_step + args.num_envs, args.total_timesteps + 1, args.num_envs):
        # Act: epsilon-greedily, each environment on its own
        obs = next_obs.copy()  # a copy: the environments reuse their array
        epsilon = linear_schedule(args.start_e, args.end_e, exploration_steps, global_step)
        explore = [random.random() < epsilon for _ in range(args.num_envs)]  # faster than in NumPy
        actions = np.zeros(args.num_envs, int)
        if not all(explore):
            actions = np.array(act(acting_params, obs.astype(np.float32)))  # a writable array
        for idx in range(args.num_envs):
            if explore[idx]:
                actions[idx] = random.randrange(num_actions)

        # Learn: before the environments step, so that a GPU works at the same time. A round is `num_envs` steps.
        if global_step > args.learning_starts and buffer.num_added > 0:  # empty in the first round
            for step in range(global_step - args.num_envs + 1, global_step + 1):
                if step % args.train_frequency == 0:
                    minibatch = buffer.sample(args.batch_size)
                    train_state, stats = update(train_state, minibatch)
                    acting_params = jax.tree.map(np.array, train_state.params)  # waits for a GPU
                if step % args.target_network_frequency == 0:
                    train_state = update_target(train_state)

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
                if not np.isfinite(x):
                    raise FloatingPointError(f"{name} is not finite at global_step={global_step}")
                writer.add_scalar(f"losses/{name}", float(x), global_step)
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
            state.update(global_step=global_step, next_obs=next_obs, train_state=train_state)
            run.save_checkpoint(run_dir, args, __file__, writer, state)

    envs.close()
    progress.close()
    if args.save_model:
        metadata = {"args": json.dumps(vars(args)), "global_step": str(global_step)}
        tensors = {name: np.asarray(x) for name, x in flatten_dict(train_state.params, sep=".").items()}
        tensors["atoms"] = np.asarray(atoms)
        save_file(tensors, f"{run_dir}/{args.exp_name}.safetensors", metadata)
    if run:  # evaluates, uploads, and says where everything is
        run.finish(run_dir, args, writer, make_envs, load_policy, recent_returns)
    writer.close()
