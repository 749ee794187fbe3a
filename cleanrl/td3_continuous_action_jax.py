"""Twin Delayed DDPG (TD3) in JAX: the smaller of two critics, delayed updates of the policy, smoothed target actions.

Paper:   https://arxiv.org/abs/1802.09477 (Fujimoto et al. 2018)
Docs:    docs/rl-algorithms/td3_continuous_action_jax.md
Parent:  ddpg_continuous_action_jax.py
Run:     python cleanrl/td3_continuous_action_jax.py --env-id Hopper-v4
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
    from jax.flatten_util import ravel_pytree
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
    env_id: str = "Hopper-v4"
    """the id of the environment"""
    total_timesteps: int = 1_000_000
    """environment steps of the whole run, all environments together"""
    learning_rate: float = 3e-4
    """the learning rate of the optimizers"""
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
    exploration_noise: float = 0.1
    """the standard deviation of the exploration noise, in units of half the range of an action"""
    policy_noise: float = 0.2
    """the standard deviation of the noise on target actions, in the same units"""
    noise_clip: float = 0.5
    """the largest noise on target actions, in the same units"""
    learning_starts: int = 25_000
    """environment steps before the first update, with random actions"""
    policy_frequency: int = 2
    """environment steps between updates of the policy and of the target networks"""


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


class Dense(nn.Module):  # differs from ddpg_continuous_action.py: Flax's own layer starts with biases of zero
    """A linear layer that starts as in PyTorch: weights and biases are uniform within 1 / sqrt(number of inputs)."""

    size: int

    @nn.compact
    def __call__(self, x):
        bound = x.shape[-1] ** -0.5
        uniform = partial(jax.random.uniform, minval=-bound, maxval=bound)
        kernel = self.param("kernel", uniform, (x.shape[-1], self.size))
        bias = self.param("bias", uniform, (self.size,))
        return x @ kernel + bias


def mlp(output_dim):
    # differs from ddpg_continuous_action.py: Flax infers the size of the input from the example given to `init`
    return nn.Sequential([Dense(256), nn.relu, Dense(256), nn.relu, Dense(output_dim)])


class QNetwork(nn.Module):
    # differs from ddpg_continuous_action.py: it holds no parameters; `apply` is given them, and then calls this

    def setup(self):
        self.network = mlp(1)

    def __call__(self, x, action):
        return self.network(jnp.concatenate([x, action], axis=-1))


class Actor(nn.Module):
    # differs from ddpg_continuous_action.py: it holds no parameters; `apply` is given them, and then calls this

    low: np.ndarray  # each component of an action has bounds of its own
    high: np.ndarray

    def setup(self):
        self.network = mlp(len(self.low))

    @property
    def action_scale(self):
        return (self.high - self.low) / 2

    @property
    def action_bias(self):
        return (self.high + self.low) / 2

    def __call__(self, x):
        return jnp.tanh(self.network(x)) * self.action_scale + self.action_bias


class TrainState(NamedTuple):
    """What an update changes. It is never changed in place: an update returns a new one."""

    key: Any  # differs from ddpg_continuous_action_jax.py: an update draws random numbers from it
    params: Any  # a dictionary: for each network, one vector with all of its parameters
    target_params: Any
    q_optimizer_state: Any
    actor_optimizer_state: Any


class ReplayBuffer:
    """The latest transitions, each a row of obs, next_obs, action, reward, termination. New ones replace the oldest."""

    # differs from ddpg_continuous_action.py: a minibatch is one NumPy array, which `update` splits
    def __init__(self, size, obs_dim, action_dim):
        widths = [obs_dim, obs_dim, action_dim, 1, 1]
        self.rows = np.zeros((size, sum(widths)), dtype=np.float32)
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


def smooth(actions, actor, key, policy_noise, noise_clip):
    """Target policy smoothing (Fujimoto et al. 2018, algorithm 1): similar actions should have similar values."""
    noise = (policy_noise * jax.random.normal(key, actions.shape)).clip(-noise_clip, noise_clip)
    return (actions + noise * actor.action_scale).clip(actor.low, actor.high)


def load_policy(model_path, envs, device="cpu", deterministic=True):
    """Load the trained policy: a function from observations to actions, both NumPy arrays. It is without noise."""
    # differs from ddpg_continuous_action.py: in JAX
    actor = Actor(envs.single_action_space.low, envs.single_action_space.high)
    params = unflatten_dict(load_file(model_path), sep=".")

    @jax.jit  # JAX chooses the device: `device` is only used by the files in PyTorch
    def act(x):
        return actor.apply(params["actor"], x).clip(actor.low, actor.high)

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
    try:
        acting_device = jax.devices("cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS=cuda leaves the CPU out
        acting_device = jax.devices()[0]

    run_name = f"{args.env_id.replace('/', '_')}__{args.exp_name}__{args.seed}__{int(time.time())}"
    run_dir = args.resume or f"runs/{run_name}"
    try:
        envs = make_envs(args.env_id, args.num_envs, args.capture_video, run_dir)
    except Exception as error:  # an unknown id, a package that is missing, actions of another kind
        sys.exit(run.explain_env_error(args.env_id, error) if run else f"{args.env_id}: {error}")
    next_obs, _ = envs.reset(seed=args.seed)
    actor = Actor(envs.single_action_space.low, envs.single_action_space.high)
    qf = QNetwork()
    key, actor_key, qf1_key, qf2_key = jax.random.split(key, 4)
    # The parameters of each network become one vector: handing many arrays to a compiled function takes time.
    # `to_actor` and `to_qf` turn such a vector back into what `apply` takes: arrays with names and shapes.
    actor_params, to_actor = ravel_pytree(actor.init(actor_key, next_obs))
    qf1_params, to_qf = ravel_pytree(qf.init(qf1_key, next_obs, envs.action_space.low))
    qf2_params, _ = ravel_pytree(qf.init(qf2_key, next_obs, envs.action_space.low))
    params = {"actor": actor_params, "qf1": qf1_params, "qf2": qf2_params}
    q_params = {"qf1": params["qf1"], "qf2": params["qf2"]}
    q_optimizer = optax.adam(args.learning_rate)
    actor_optimizer = optax.adam(args.learning_rate)
    train_state = TrainState(
        key=key,
        params=params,
        target_params=jax.tree.map(jnp.copy, params),  # copies: two networks cannot share memory
        q_optimizer_state=q_optimizer.init(q_params),
        actor_optimizer_state=actor_optimizer.init(params["actor"]),
    )

    @jax.jit
    def act(actor_params, x, noise):
        actions = actor.apply(to_actor(actor_params), x)
        actions = actions + args.exploration_noise * actor.action_scale * noise
        return actions.clip(actor.low, actor.high)

    def update_actor(train_state, mb_obs):
        # Actor: towards actions of higher value
        params = train_state.params

        def actor_loss_of(actor_params):  # the gradient is with respect to these alone
            actions = actor.apply(to_actor(actor_params), mb_obs)
            return -qf.apply(to_qf(params["qf1"]), mb_obs, actions).mean()

        actor_loss, gradients = jax.value_and_grad(actor_loss_of)(params["actor"])
        changes, optimizer_state = actor_optimizer.update(gradients, train_state.actor_optimizer_state, params["actor"])
        params = params | {"actor": optax.apply_updates(params["actor"], changes)}
        train_state = train_state._replace(params=params, actor_optimizer_state=optimizer_state)
        return train_state, {"actor_loss": actor_loss}

    def update_target(train_state):
        # Polyak averaging: every weight of a target network moves by a share tau towards that of the network
        target_params = optax.incremental_update(train_state.params, train_state.target_params, args.tau)
        return train_state._replace(target_params=target_params)

    # donate: the new state takes the memory of the old one. static: compiled with the policy's update and again without
    @partial(jax.jit, donate_argnums=0, static_argnames="policy_is_due")
    def update(train_state, mb_rows, policy_is_due):
        mb_obs, mb_next_obs, mb_actions, mb_rewards, mb_terminations = jnp.split(mb_rows, buffer.column_ends, axis=-1)
        # Critics: their target is the reward plus the discounted value of what the target actor does next, smoothed
        params = train_state.params
        target_params = train_state.target_params
        key, noise_key = jax.random.split(train_state.key)
        next_actions = actor.apply(to_actor(target_params["actor"]), mb_next_obs)
        next_actions = smooth(next_actions, actor, noise_key, args.policy_noise, args.noise_clip)
        qf1_next_values = qf.apply(to_qf(target_params["qf1"]), mb_next_obs, next_actions)
        qf2_next_values = qf.apply(to_qf(target_params["qf2"]), mb_next_obs, next_actions)
        # clipped double Q-learning (Fujimoto et al. 2018, eq. 10): the larger of two estimates is often too high
        next_q_values = jnp.minimum(qf1_next_values, qf2_next_values)
        td_target = mb_rewards + args.gamma * next_q_values * (1 - mb_terminations)

        def qf_loss_of(q_params):
            qf1_values = qf.apply(to_qf(q_params["qf1"]), mb_obs, mb_actions)
            qf2_values = qf.apply(to_qf(q_params["qf2"]), mb_obs, mb_actions)
            qf1_loss = ((qf1_values - td_target) ** 2).mean()
            qf2_loss = ((qf2_values - td_target) ** 2).mean()
            qf_loss = qf1_loss + qf2_loss
            stats = {
                "qf1_values": qf1_values.mean(),
                "qf2_values": qf2_values.mean(),
                "qf1_loss": qf1_loss,
                "qf2_loss": qf2_loss,
                "qf_loss": qf_loss / 2,  # trained as their sum, logged as their mean
            }
            return qf_loss, stats

        q_params = {"qf1": params["qf1"], "qf2": params["qf2"]}
        gradients, stats = jax.grad(qf_loss_of, has_aux=True)(q_params)
        changes, optimizer_state = q_optimizer.update(gradients, train_state.q_optimizer_state, q_params)
        params = params | optax.apply_updates(q_params, changes)
        train_state = train_state._replace(key=key, params=params, q_optimizer_state=optimizer_state)

        if policy_is_due:  # not in every update
            train_state, actor_stats = update_actor(train_state, mb_obs)
            stats |= actor_stats
            train_state = update_target(train_state)
        return train_state, stats

    # Storage
    if run:  # checks first that it fits into memory
        buffer = run.place_buffer(ReplayBuffer, args.buffer_size, next_obs.shape[1], envs.action_space.shape[1])
    else:
        buffer = ReplayBuffer(args.buffer_size, next_obs.shape[1], envs.action_space.shape[1])

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
    # The policy acts on the CPU: for so little work, waiting for a GPU takes longer. It acts with a copy of its
    # parameters, as the next update takes the memory of the original.
    acting_params = jax.device_put(train_state.params["actor"], acting_device, may_alias=False)
    stats = {}
    logged_step = global_step  # of the last log; a resumed run goes on from here
    start_time = time.perf_counter()
    for global_step in range(logged_step + args.num_envs, args.total_timesteps + 1, args.num_envs):
        # Act: at random until learning starts, then by the policy, with noise
        obs = next_obs.copy()  # a copy: the environments reuse their array
        if global_step > args.learning_starts:
            noise = np.random.normal(size=envs.action_space.shape).astype(np.float32)
            actions = np.asarray(act(acting_params, obs.astype(np.float32), noise))
        else:
            actions = np.random.uniform(envs.action_space.low, envs.action_space.high).astype(np.float32)

        # Learn: an update for each transition, before the next step: a GPU computes while the environments step
        if global_step > args.learning_starts and buffer.num_added > 0:  # empty in the first round
            for step in range(global_step - args.num_envs + 1, global_step + 1):
                mb_rows = buffer.sample(args.batch_size)
                policy_is_due = step % args.policy_frequency == 0
                train_state, new_stats = update(train_state, mb_rows, policy_is_due)
                stats |= new_stats
                if policy_is_due:
                    acting_params = jax.device_put(train_state.params["actor"], acting_device, may_alias=False)

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
                if not np.isfinite(x):
                    raise FloatingPointError(f"{name} is not finite at global_step={global_step}")
                writer.add_scalar(f"losses/{name}", float(x), global_step)
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
        params = {
            "actor": to_actor(train_state.params["actor"]),
            "qf1": to_qf(train_state.params["qf1"]),
            "qf2": to_qf(train_state.params["qf2"]),
        }
        tensors = {name: np.asarray(x) for name, x in flatten_dict(params, sep=".").items()}
        save_file(tensors, f"{run_dir}/{args.exp_name}.safetensors", metadata)
    if run:  # evaluates, uploads, and says where everything is
        run.finish(run_dir, args, writer, make_envs, load_policy, recent_returns)
    writer.close()
