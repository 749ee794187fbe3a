"""Soft Actor-Critic (SAC) in JAX: a stochastic policy that is rewarded for its entropy, with the two critics of TD3.

Paper:   https://arxiv.org/abs/1812.05905 (Haarnoja et al. 2018)
Docs:    docs/rl-algorithms/sac_continuous_action_jax.md
Parent:  td3_continuous_action_jax.py
Run:     python cleanrl/sac_continuous_action_jax.py --env-id Hopper-v4
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
    import flax.linen as nn
    import jax
    import jax.numpy as jnp
    import optax
    from flax.traverse_util import flatten_dict, unflatten_dict
    from jax.flatten_util import ravel_pytree
except ImportError as error:
    sys.exit(f'{error}: pip install "cleanrl[jax]"')

LOG_STD_MIN = -5  # the logarithm of the standard deviation is squashed between these two
LOG_STD_MAX = 2
LOG_SQRT_2PI = math.log(math.sqrt(2 * math.pi))


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
        self.network = mlp(2 * len(self.low))

    @property
    def action_scale(self):
        return (self.high - self.low) / 2

    @property
    def action_bias(self):
        return (self.high + self.low) / 2

    def __call__(self, x):
        # differs from td3_continuous_action_jax.py: mean and log(std) of a normal u; the action is tanh(u), scaled
        mean, log_std = jnp.split(self.network(x), 2, axis=-1)
        log_std = LOG_STD_MIN + (LOG_STD_MAX - LOG_STD_MIN) * (jnp.tanh(log_std) + 1) / 2
        return mean, log_std

    def get_action_and_logprob(self, x, noise):
        """Sample actions so that gradients flow through them into the policy (the reparameterization trick)."""
        mean, log_std = self(x)
        u = mean + jnp.exp(log_std) * noise
        action = jnp.tanh(u) * self.action_scale + self.action_bias
        return action, log_prob(u, log_std, noise, self.action_scale)


class TrainState(NamedTuple):
    """What an update changes. It is never changed in place: an update returns a new one."""

    # differs from td3_continuous_action_jax.py: the temperature is learned, too

    key: Any  # an update draws random numbers from it
    params: Any  # a dictionary: for each network, one vector with all of its parameters
    target_params: Any
    log_alpha: Any
    q_optimizer_state: Any
    actor_optimizer_state: Any
    alpha_optimizer_state: Any


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


def log_prob(u, log_std, noise, action_scale):
    """The log-density of tanh(u) * action_scale + action_bias for u = mean + std * noise, by change of variables."""
    log_normal = -0.5 * noise**2 - log_std - LOG_SQRT_2PI
    # The slope of tanh is (2 / (e^u + e^-u))^2. This form of its logarithm is accurate even where tanh(u) rounds to 1.
    log_slope = 2 * (math.log(2) - u - nn.softplus(-2 * u))
    return (log_normal - log_slope - jnp.log(action_scale)).sum(-1, keepdims=True)


def load_policy(model_path, envs, device="cpu", deterministic=True):
    """Load the trained policy: a function from observations to actions, both NumPy arrays."""
    # differs from td3_continuous_action_jax.py: actions can also be sampled
    actor = Actor(envs.single_action_space.low, envs.single_action_space.high)
    params = unflatten_dict(load_file(model_path), sep=".")

    @jax.jit  # JAX chooses the device: `device` is only used by the files in PyTorch
    def act(x, noise):
        if deterministic:
            mean, _ = actor.apply(params["actor"], x)
            actions = jnp.tanh(mean) * actor.action_scale + actor.action_bias
        else:
            actions, _ = actor.apply(params["actor"], x, noise, method="get_action_and_logprob")
        return actions.clip(actor.low, actor.high)

    def policy(obs):
        noise = np.random.normal(size=(len(obs), len(actor.low))).astype(np.float32)
        return np.asarray(act(obs.astype(np.float32), noise))

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
    # The temperature is what entropy is worth. Learning its logarithm keeps it positive.
    initial_alpha = 1.0 if args.autotune else max(args.alpha, 1e-30)  # 0 has no finite logarithm
    log_alpha = jnp.log(jnp.float32(initial_alpha))
    target_entropy = -envs.single_action_space.shape[0]  # a density can have a negative entropy
    q_optimizer = optax.adam(args.q_lr)
    actor_optimizer = optax.adam(args.policy_lr)
    alpha_optimizer = optax.adam(args.q_lr)
    train_state = TrainState(
        key=key,
        params=params,
        target_params=jax.tree.map(jnp.copy, q_params),  # copies: two networks cannot share memory
        log_alpha=log_alpha,
        q_optimizer_state=q_optimizer.init(q_params),
        actor_optimizer_state=actor_optimizer.init(params["actor"]),
        alpha_optimizer_state=alpha_optimizer.init(log_alpha),
    )

    @jax.jit
    def act(actor_params, x, noise):
        actions, _ = actor.apply(to_actor(actor_params), x, noise, method="get_action_and_logprob")
        return actions.clip(actor.low, actor.high)

    def update_actor(train_state, mb_obs):
        # Actor: towards actions of higher value and higher entropy
        params = train_state.params
        key, noise_key = jax.random.split(train_state.key)
        noise = jax.random.normal(noise_key, (len(mb_obs), len(actor.low)))
        alpha = jnp.exp(train_state.log_alpha)

        def actor_loss_of(actor_params):  # the gradient is with respect to these alone
            actions, logprobs = actor.apply(to_actor(actor_params), mb_obs, noise, method="get_action_and_logprob")
            qf1_values = qf.apply(to_qf(params["qf1"]), mb_obs, actions)
            qf2_values = qf.apply(to_qf(params["qf2"]), mb_obs, actions)
            q_values = jnp.minimum(qf1_values, qf2_values)
            return (alpha * logprobs - q_values).mean(), logprobs

        (actor_loss, logprobs), gradients = jax.value_and_grad(actor_loss_of, has_aux=True)(params["actor"])
        changes, optimizer_state = actor_optimizer.update(gradients, train_state.actor_optimizer_state, params["actor"])
        params = params | {"actor": optax.apply_updates(params["actor"], changes)}
        train_state = train_state._replace(key=key, params=params, actor_optimizer_state=optimizer_state)
        stats = {"actor_loss": actor_loss, "alpha": alpha}
        if args.autotune:  # Temperature: up while the entropy is below its target, and down above it

            def alpha_loss_of(log_alpha):
                return -(jnp.exp(log_alpha) * (logprobs + target_entropy)).mean()

            alpha_loss, gradient = jax.value_and_grad(alpha_loss_of)(train_state.log_alpha)
            log_alpha = train_state.log_alpha
            change, optimizer_state = alpha_optimizer.update(gradient, train_state.alpha_optimizer_state, log_alpha)
            log_alpha = optax.apply_updates(log_alpha, change)
            train_state = train_state._replace(log_alpha=log_alpha, alpha_optimizer_state=optimizer_state)
            stats["alpha_loss"] = alpha_loss
        return train_state, stats

    def update_target(train_state):
        # Polyak averaging: every weight of a target network moves by a share tau towards that of the network
        q_params = {"qf1": train_state.params["qf1"], "qf2": train_state.params["qf2"]}
        target_params = optax.incremental_update(q_params, train_state.target_params, args.tau)
        return train_state._replace(target_params=target_params)

    # donate: the new state takes the memory of the old one. static: compiled for each combination of the two flags
    @partial(jax.jit, donate_argnums=0, static_argnames=("policy_is_due", "targets_are_due"))
    def update(train_state, mb_rows, policy_is_due, targets_are_due):
        mb_obs, mb_next_obs, mb_actions, mb_rewards, mb_terminations = jnp.split(mb_rows, buffer.column_ends, axis=-1)
        # Critics: their target is the reward plus the discounted value and entropy of what the policy does next
        params = train_state.params
        target_params = train_state.target_params
        key, noise_key = jax.random.split(train_state.key)
        noise = jax.random.normal(noise_key, mb_actions.shape)
        next_actions, next_logprobs = actor.apply(
            to_actor(params["actor"]), mb_next_obs, noise, method="get_action_and_logprob"
        )
        qf1_next_values = qf.apply(to_qf(target_params["qf1"]), mb_next_obs, next_actions)
        qf2_next_values = qf.apply(to_qf(target_params["qf2"]), mb_next_obs, next_actions)
        # clipped double Q-learning (Fujimoto et al. 2018, eq. 10): the larger of two estimates is often too high
        next_q_values = jnp.minimum(qf1_next_values, qf2_next_values)
        next_q_values = next_q_values - jnp.exp(train_state.log_alpha) * next_logprobs  # -logprob estimates the entropy
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

        if policy_is_due:
            for _ in range(args.policy_frequency):  # catch up on the delayed updates, with this minibatch
                train_state, actor_stats = update_actor(train_state, mb_obs)
                stats |= actor_stats
        if targets_are_due:
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
        # Act: at random until learning starts, then by the policy
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
                targets_are_due = step % args.target_network_frequency == 0
                train_state, new_stats = update(train_state, mb_rows, policy_is_due, targets_are_due)
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
