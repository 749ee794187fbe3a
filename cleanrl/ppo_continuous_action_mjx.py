"""PPO in JAX for thousands of robots that MuJoCo XLA (MJX) simulates on the GPU: what Isaac Gym was for.

Simulation, policy and updates of an iteration are one compiled call, and nothing leaves the GPU in between, as in
Isaac Gym (Makoviychuk et al. 2021, https://arxiv.org/abs/2108.10470).

Paper:   https://arxiv.org/abs/1707.06347 (Schulman et al. 2017)
Details: https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details/ (Huang et al. 2022)
Docs:    docs/rl-algorithms/ppo_continuous_action_mjx.md
Parent:  ppo_jax.py
Run:     python cleanrl/ppo_continuous_action_mjx.py --env-id ant
"""

import signal

if __name__ == "__main__":  # Ctrl+C during the imports below ends the program without a traceback
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import dataclasses
import json
import math
import os
import sys
import time
from collections import deque
from dataclasses import dataclass
from functools import cache, partial
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
    from brax import envs as brax_envs
    from flax.traverse_util import flatten_dict, unflatten_dict
except ImportError as error:
    sys.exit(f'{error}: pip install "cleanrl[jax]"')

LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


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
    env_id: str = "ant"
    """the name of the robot in Brax, simulated by MJX; ant/spring, say, names another of Brax's simulators"""
    num_seeds: int = 1
    """train this many seeds in one program, from `seed` upwards, each with its own run folder"""
    total_timesteps: int = 30_000_000
    """environment steps of the whole run, all environments together"""
    learning_rate: float = 0.0026
    """the learning rate of the optimizer"""
    num_envs: int = 4096
    """the number of parallel environments"""
    num_steps: int = 16
    """steps of each environment in a rollout"""
    anneal_lr: bool = False
    """anneal the learning rate linearly to zero"""
    gamma: float = 0.99
    """the discount factor"""
    gae_lambda: float = 0.95
    """the lambda of generalized advantage estimation"""
    num_minibatches: int = 2
    """minibatches per epoch"""
    update_epochs: int = 4
    """passes over each rollout"""
    norm_adv: bool = True
    """normalize the advantages of each minibatch"""
    clip_coef: float = 0.2
    """the clipping range of the surrogate objective"""
    clip_vloss: bool = False
    """clip the value loss as well"""
    ent_coef: float = 0.0
    """coefficient of the entropy bonus"""
    vf_coef: float = 2.0
    """coefficient of the value loss"""
    max_grad_norm: float = 1.0
    """the maximum norm of the gradient"""
    target_kl: float | None = None
    """skip the remaining epochs if the KL divergence exceeds this after one of them"""
    reward_scaler: float = 1.0
    """rewards are multiplied by this before they are learned from"""
    log_frequency: int = 10
    """iterations between two logs of losses and speed; of the episodes, the means of each iteration are logged"""

    # Computed at run time
    batch_size: int = 0
    """num_envs * num_steps"""
    minibatch_size: int = 0
    """batch_size // num_minibatches"""
    num_iterations: int = 0
    """total_timesteps // batch_size"""


def make_env(env_id, idx, capture_video, run_dir):
    def thunk():
        is_filmed = capture_video and idx == 0
        # differs from ppo_jax.py: a robot of Brax, which clips actions by itself
        env = Robot(env_id, "rgb_array" if is_filmed else None)
        env = gym.wrappers.TimeLimit(env, env.env.max_steps)
        if is_filmed:
            env = gym.wrappers.RecordVideo(env, f"{run_dir}/videos")
        env = gym.wrappers.RecordEpisodeStatistics(env)
        return env

    return thunk


def make_envs(env_id, num_envs, capture_video, run_dir):
    # These environments of gymnasium are only for the evaluation; training uses those in JAX below. SAME_STEP: the step
    # that ends an episode returns the first observation of the next episode. copy=False: `step` reuses its arrays.
    thunks = [make_env(env_id, idx, capture_video, run_dir) for idx in range(num_envs)]
    return gym.vector.SyncVectorEnv(thunks, copy=False, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)


class BraxEnv:
    """A robot of Brax with the methods that the environments of ppo_jax.py have."""

    max_steps = 1000
    # In each step, MJX computes a robot's other hundred arrays anew; to carry them along would take a sixth of the time
    mjx_names = ["qpos", "qvel", "q", "qd", "x", "xd", "qacc_warmstart", "act", "time"]
    mjx_names += ["qfrc_applied", "xfrc_applied", "eq_active"]

    def __init__(self, name, simulator):
        self.brax_env = brax_envs.get_environment(name, backend=simulator)
        shapes = jax.eval_shape(self.brax_env.reset, jax.random.key(0))
        self.obs_dim = shapes.obs.shape[0]
        self.num_actions = self.brax_env.action_size
        self.is_mjx = hasattr(shapes.pipeline_state, "qpos")  # the states of the other simulators are small
        # What `pack` leaves out is NaN (0 in integers), so that the run would stop if a step used such a number
        self.empty_state = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), shapes)
        # Compiled for `Robot`, which calls them one by one; an iteration is compiled as a whole
        self.reset = jax.jit(self.reset)
        self.step = jax.jit(self.step)

    def pack(self, state):
        """What the next step of a robot goes on from."""
        physics = state.pipeline_state
        if self.is_mjx:
            physics = {name: getattr(physics, name) for name in self.mjx_names}
        return physics, state.done, state.info

    def unpack(self, packed):
        physics, done, info = packed
        if self.is_mjx:
            physics = self.empty_state.pipeline_state.replace(**physics)
        return self.empty_state.replace(pipeline_state=physics, done=done, info=info)

    def reset(self, key):
        state = self.brax_env.reset(key)
        return self.pack(state), state.obs

    def step(self, packed, action):
        action = action.clip(-1, 1)  # continuous detail 5: actions are executed clipped
        state = self.brax_env.step(self.unpack(packed), action)
        termination = jnp.asarray(state.done, bool)
        return self.pack(state), state.obs, state.reward, termination


@cache  # one for all, so that it is compiled once
def make_jax_env(env_id):
    # differs from ppo_jax.py: a robot, and after a slash one of Brax's simulators
    name, _, simulator = env_id.partition("/")
    try:
        return BraxEnv(name, simulator or "mjx")
    except (KeyError, ValueError):
        robots = "ant, halfcheetah, hopper, humanoid or walker2d"
        raise ValueError(f"no robot of Brax such as {robots}, or no simulator such as ant/spring") from None


class Robot(gym.Env):
    """A single robot as an environment of gymnasium, for evaluation and videos."""

    def __init__(self, env_id, render_mode):
        self.env = make_jax_env(env_id)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (self.env.obs_dim,))
        self.action_space = gym.spaces.Box(-1, 1, (self.env.num_actions,))
        self.render_mode = render_mode
        if render_mode:
            fps = round(1 / float(self.env.brax_env.dt))
            self.metadata = {"render_modes": ["rgb_array"], "render_fps": fps}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        key = jax.random.key(self.np_random.integers(2**31))
        self.state, obs = self.env.reset(key)
        return np.asarray(obs), {}

    def step(self, action):
        self.state, obs, reward, termination = self.env.step(self.state, action)
        return np.asarray(obs), float(reward), bool(termination), False, {}

    def render(self):
        has_camera = self.env.brax_env.sys.mj_model.ncam > 0
        camera = "track" if has_camera else None  # it follows a robot that runs away
        state = self.env.unpack(self.state)
        frames = self.env.brax_env.render([state.pipeline_state], height=480, width=480, camera=camera)
        return frames[0]


class EnvState(NamedTuple):
    """An environment in the middle of an episode, and what the episode has brought so far."""

    state: Any
    obs: Any
    episodic_return: Any
    episodic_length: Any


class Rollout(NamedTuple):
    """A step of one environment. In a whole rollout, each array begins with the dimensions (num_steps, num_envs)."""

    obs: Any
    actions: Any
    rewards: Any
    terminations: Any
    truncations: Any
    next_obs: Any  # what really came next: at the end of an episode, its final observation
    episodic_returns: Any  # of the episode up to this step
    episodic_lengths: Any


def reset_env(env, key):
    state, obs = env.reset(key)
    return EnvState(state, obs, jnp.float32(0), jnp.int32(0))


def step_env(env, env_state, action, new_episode):
    """A step of one environment. If it ends the episode, the next state is `new_episode`, a freshly reset one."""
    state, next_obs, reward, termination = env.step(env_state.state, action)
    episodic_return = env_state.episodic_return + reward
    episodic_length = env_state.episodic_length + 1
    truncation = episodic_length >= env.max_steps
    step = Rollout(env_state.obs, action, reward, termination, truncation, next_obs, episodic_return, episodic_length)
    same_episode = EnvState(state, next_obs, episodic_return, episodic_length)
    done = termination | truncation
    next_state = jax.tree.map(lambda new, old: jnp.where(done, new, old), new_episode, same_episode)
    return next_state, step


def layer_init(size, std=2**0.5):  # detail 2: orthogonal weights, biases of 0 (the default)
    return nn.Dense(size, kernel_init=nn.initializers.orthogonal(std))


def mlp(output_dim, output_std):  # differs from ppo_jax.py: larger networks
    return nn.Sequential(
        [
            layer_init(256),
            nn.tanh,
            layer_init(256),
            nn.tanh,
            layer_init(output_dim, output_std),
        ]
    )


class Agent(nn.Module):
    num_actions: int

    def setup(self):
        # detail 13: policy and value function are separate networks
        self.critic = mlp(1, output_std=1.0)
        self.actor = mlp(self.num_actions, output_std=0.01)
        # differs from ppo_jax.py: normal actions; continuous detail 2: one standard deviation for all observations
        self.actor_logstd = self.param("actor_logstd", nn.initializers.zeros, (self.num_actions,))

    def get_value(self, x):
        return self.critic(x).squeeze(-1)

    def get_action(self, x, noise):
        return self.actor(x) + jnp.exp(self.actor_logstd) * noise

    def evaluate_actions(self, x, action):
        """The log-probability of each action, the entropy of the policy there, and the value of the observation."""
        z = (action - self.actor(x)) / jnp.exp(self.actor_logstd)  # continuous details 1 and 3: independent normals
        logprob = (-0.5 * z**2 - self.actor_logstd - LOG_SQRT_2PI).sum(-1)
        entropy = (self.actor_logstd + 0.5 + LOG_SQRT_2PI).sum()
        return logprob, entropy, self.critic(x).squeeze(-1)


class ObsStats(NamedTuple):
    """Mean and variance of all observations so far."""

    mean: Any
    var: Any
    count: Any


def normalize(x, stats):  # continuous details 6 and 7: observations are normalized and clipped
    return ((x - stats.mean) / jnp.sqrt(stats.var + 1e-8)).clip(-10, 10)


def merge_stats(stats, x):  # Chan et al. 1979
    count = stats.count + len(x)
    share = len(x) / count
    delta = x.mean(0) - stats.mean
    mean = stats.mean + share * delta
    var = (1 - share) * stats.var + share * (x.var(0) + (1 - share) * delta**2)
    return ObsStats(mean, var, count)


class TrainState(NamedTuple):
    """Everything that an iteration changes: it takes one TrainState and returns the next one."""

    # differs from ppo_jax.py: statistics of the observations
    params: Any
    obs_stats: Any
    optimizer_state: Any
    env_states: Any
    key: Any


def compute_gae(rewards, terminations, truncations, values, next_values, gamma, gae_lambda):
    """Detail 5: advantages and returns by GAE (Schulman et al. 2016). All arrays are (num_steps, num_envs)."""
    # delta[t] = r[t] + gamma * V(s[t+1]) - V(s[t]) and A[t] = delta[t] + gamma * lambda * A[t+1], within an episode.
    # After a termination, V(s[t+1]) is 0; after a truncation, s[t+1] is the last observation of the old episode.
    deltas = rewards + gamma * next_values * ~terminations - values
    dones = terminations | truncations
    decays = gamma * gae_lambda * ~dones

    def step_back(next_advantage, inputs):
        delta, decay = inputs
        advantage = delta + decay * next_advantage
        return advantage, advantage

    no_advantage = jnp.zeros_like(deltas[0])  # after the rollout: deltas[-1] includes the value there
    _, advantages = jax.lax.scan(step_back, no_advantage, (deltas, decays), reverse=True)
    return advantages, advantages + values  # return = value + advantage


def ppo_loss(newlogprobs, entropy, newvalues, logprobs, advantages, returns, values, args):
    """The loss, given `logprobs` and `values` of the rollout, and a dictionary of what to log (detail 12)."""
    logratio = newlogprobs - logprobs
    ratio = jnp.exp(logratio)
    if args.norm_adv:  # detail 7: advantages are normalized in each minibatch
        advantages = (advantages - advantages.mean()) / (advantages.std(ddof=1) + 1e-8)
    # detail 8: clipped surrogate objective (Schulman et al. 2017, eq. 7)
    clipped_ratio = jnp.clip(ratio, 1 - args.clip_coef, 1 + args.clip_coef)
    policy_loss = -jnp.minimum(advantages * ratio, advantages * clipped_ratio).mean()
    # detail 9: the value loss is clipped, too: moving a value by more than clip_coef gains nothing
    value_loss = (newvalues - returns) ** 2
    if args.clip_vloss:
        clipped_values = values + jnp.clip(newvalues - values, -args.clip_coef, args.clip_coef)
        value_loss = jnp.maximum(value_loss, (clipped_values - returns) ** 2)
    value_loss = 0.5 * value_loss.mean()
    # detail 10: the overall loss has an entropy bonus (Schulman et al. 2017, eq. 9)
    entropy = entropy.mean()
    loss = policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss
    stats = {
        "value_loss": value_loss,
        "policy_loss": policy_loss,
        "entropy": entropy,
        "old_approx_kl": (-logratio).mean(),
        "approx_kl": (ratio - 1 - logratio).mean(),  # less noisy: joschu.net/blog/kl-approx.html
        "clipfrac": (ratio != clipped_ratio).mean(),
    }
    return loss, stats


def load_policy(model_path, envs, device="cpu", deterministic=True):
    """Load the trained policy: a function from observations to actions, both NumPy arrays."""
    # differs from ppo_jax.py: normal actions, and the statistics of the observations are part of the model
    num_actions = envs.single_action_space.shape[0]
    agent = Agent(num_actions)
    tensors = load_file(model_path)
    obs_stats = ObsStats(tensors.pop("obs_mean"), tensors.pop("obs_var"), count=None)
    params = unflatten_dict(tensors, sep=".")

    @jax.jit  # JAX chooses the device: `device` is only used by the files in PyTorch
    def act(x, noise):
        return agent.apply(params, normalize(x, obs_stats), noise, method="get_action")

    def policy(obs):
        noise = np.zeros((len(obs), num_actions), np.float32)
        if not deterministic:
            noise = np.random.standard_normal(noise.shape).astype(np.float32)
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
    if args.capture_video and not args.save_model:
        sys.exit("--capture-video: only the evaluation can be filmed; add --save-model")
    if args.track and args.num_seeds > 1:
        sys.exit("--track: only without --num-seeds; `wandb sync RUN_DIR` uploads a run later")
    args.batch_size = args.num_envs * args.num_steps
    args.minibatch_size = args.batch_size // args.num_minibatches
    args.num_iterations = args.total_timesteps // args.batch_size

    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")  # threads cost more time than they save
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # compute in this thread: waking up another costs more
    jax.config.update("jax_compilation_cache_dir", os.path.expanduser("~/.cache/cleanrl_jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)  # fast compilations as well
    if not args.cuda:
        jax.config.update("jax_platforms", "cpu")
    try:
        jax.devices()
    except (AssertionError, RuntimeError) as error:  # JAX_PLATFORMS names what is not here
        sys.exit(f"JAX: {str(error) or 'JAX_PLATFORMS=cuda asks for a GPU, and there is none'}")

    # Runs: each seed has a folder and arguments of its own, as if it were trained alone
    run_name = f"{args.env_id.replace('/', '_')}__{args.exp_name}__{args.seed}__{int(time.time())}"
    run_dirs = [args.resume or f"runs/{run_name}"]
    run_args = [dataclasses.replace(args, num_seeds=1)]
    before_seed, _, after_seed = run_dirs[0].rpartition(f"__{args.seed}__")  # folders differ in the seed
    if args.num_seeds > 1 and not before_seed:
        sys.exit(f"--num-seeds: {args.resume} was renamed, which hides the other folders; resume each by itself")
    for seed in range(args.seed + 1, args.seed + args.num_seeds):
        run_dirs.append(f"{before_seed}__{seed}__{after_seed}")
        run_args.append(dataclasses.replace(args, seed=seed, num_seeds=1))
    try:
        env = make_jax_env(args.env_id)
    except Exception as error:  # an unknown id, a package that is missing, actions of another kind
        sys.exit(run.explain_env_error(args.env_id, error) if run else f"{args.env_id}: {error}")
    agent = Agent(env.num_actions)
    get_value = partial(agent.apply, method="get_value")
    get_action = partial(agent.apply, method="get_action")
    evaluate_actions = partial(agent.apply, method="evaluate_actions")
    optimizer = optax.scale_by_adam(eps=1e-5)  # detail 3: default 1e-8. `update` applies the learning rate
    optimizer = optax.flatten(optimizer)  # all parameters as one vector: faster
    compile_quickly = {"xla_backend_optimization_level": 0}

    @partial(jax.jit, compiler_options=compile_quickly)  # it runs only once for each seed
    def start(seed):
        """The state of one seed before the first iteration."""
        key, agent_key, env_key = jax.random.split(jax.random.key(seed), 3)
        env_keys = jax.random.split(env_key, args.num_envs)
        env_states = jax.vmap(partial(reset_env, env))(env_keys)  # detail 1: vectorized architecture
        actions = jnp.zeros((args.num_envs, env.num_actions))
        params = agent.init(agent_key, env_states.obs, actions, method="evaluate_actions")
        obs_stats = ObsStats(jnp.zeros(env.obs_dim), jnp.ones(env.obs_dim), jnp.float32(0))
        obs_stats = merge_stats(obs_stats, env_states.obs)  # the first rollout is normalized as well
        return TrainState(params, obs_stats, optimizer.init(params), env_states, key)

    def update(learning_rate, agent_state, minibatch):
        """A step of Adam on one minibatch. `agent_state` is the parameters and the state of the optimizer."""
        params, optimizer_state = agent_state
        mb_obs, mb_actions, mb_logprobs, mb_advantages, mb_returns, mb_values = minibatch

        def loss_of(params):
            newlogprobs, entropy, newvalues = evaluate_actions(params, mb_obs, mb_actions)
            return ppo_loss(newlogprobs, entropy, newvalues, mb_logprobs, mb_advantages, mb_returns, mb_values, args)

        gradients, stats = jax.grad(loss_of, has_aux=True)(params)
        # detail 11: the norm of the whole gradient is clipped
        stats["grad_norm"] = optax.tree.norm(gradients)
        scale = jnp.minimum(1, args.max_grad_norm / (stats["grad_norm"] + 1e-6))
        gradients = jax.tree.map(lambda x: x * scale, gradients)
        changes, optimizer_state = optimizer.update(gradients, optimizer_state, params)
        params = jax.tree.map(lambda x, change: x - learning_rate * change, params, changes)
        return (params, optimizer_state), stats

    def iterate(train_state, learning_rate):
        """An iteration of one seed. Returns its new state, its episodes, the means to log, and what is finite."""
        params, obs_stats = train_state.params, train_state.obs_stats
        key, noise_key, reset_key, shuffle_key = jax.random.split(train_state.key, 4)

        # Rollout: the policy only chooses actions. Log-probabilities and values are computed after it, all at once.
        def play(env_states, noise):
            actions = get_action(params, normalize(env_states.obs, obs_stats), noise)
            return jax.vmap(partial(step_env, env))(env_states, actions, new_episodes)

        noise = jax.random.normal(noise_key, (args.num_steps, args.num_envs, env.num_actions))
        reset_keys = jax.random.split(reset_key, args.num_envs)
        # One for each robot instead of one for each step: a reset takes as long as a step
        new_episodes = jax.vmap(partial(reset_env, env))(reset_keys)
        env_states, rollout = jax.lax.scan(play, train_state.env_states, noise)

        # Targets
        rewards, terminations, truncations = rollout.rewards, rollout.terminations, rollout.truncations
        obs = normalize(rollout.obs, obs_stats)
        next_obs = normalize(rollout.next_obs, obs_stats)
        logprobs, _, values = evaluate_actions(params, obs, rollout.actions)
        next_values = get_value(params, next_obs)  # a truncated episode would have gone on from there
        advantages, returns = compute_gae(
            rewards * args.reward_scaler, terminations, truncations, values, next_values, args.gamma, args.gae_lambda
        )

        # Update
        batch = obs, rollout.actions, logprobs, advantages, returns, values
        batch = jax.tree.map(lambda x: jax.lax.collapse(x, 0, 2), batch)  # (batch_size, ...)

        def run_epoch(carry, mb_inds):
            agent_state, is_active = carry
            minibatches = jax.tree.map(lambda x: x[mb_inds], batch)
            new_agent_state, stats = jax.lax.scan(partial(update, learning_rate), agent_state, minibatches)
            stats["is_active"] = jnp.full(args.num_minibatches, is_active)  # only active epochs are logged
            if args.target_kl is not None:  # a compiled loop has no `break`: later epochs change nothing
                new_if_active = partial(jnp.where, is_active)
                new_agent_state = jax.tree.map(new_if_active, new_agent_state, agent_state)
                is_active = is_active & (stats["approx_kl"][-1] <= args.target_kl)
            return (new_agent_state, is_active), stats

        # detail 6: several epochs of minibatch updates
        epoch_keys = jax.random.split(shuffle_key, args.update_epochs)
        b_inds = jax.vmap(lambda key: jax.random.permutation(key, args.batch_size))(epoch_keys)
        mb_inds = b_inds.reshape(args.update_epochs, args.num_minibatches, args.minibatch_size)
        agent_state = params, train_state.optimizer_state
        (agent_state, _), stats = jax.lax.scan(run_epoch, (agent_state, True), mb_inds)
        params, optimizer_state = agent_state
        b_obs = jax.lax.collapse(rollout.obs, 0, 2)
        obs_stats = merge_stats(obs_stats, b_obs)  # for the next iteration: rollout and update use the same

        # What to log: the finished episodes, and the means over the minibatches of all active epochs
        episodes = {
            "done": terminations | truncations,
            "return": rollout.episodic_returns,
            "length": rollout.episodic_lengths,
        }
        is_active = stats.pop("is_active")
        means = {name: x.mean(where=is_active) for name, x in stats.items()}
        checked = {"obs": rollout.obs, "rewards": rewards} | means  # not explained_variance: it may be 0 / 0
        is_finite = {name: jnp.isfinite(x).all() for name, x in checked.items()}
        is_finite["everything"] = jnp.stack(list(is_finite.values())).all()  # if so, the rest is never read
        means["explained_variance"] = 1 - (returns - values).var() / returns.var()
        return TrainState(params, obs_stats, optimizer_state, env_states, key), episodes, means, is_finite

    @partial(jax.jit, donate_argnums=0)  # the new state takes the memory of the old one
    def iterate_seeds(train_state, learning_rate):
        """An iteration of all seeds. Each array of the state has one entry for each seed."""
        if jax.default_backend() == "cpu":  # one by one: the same bits as if each were trained alone
            return jax.lax.map(lambda one_seed: iterate(one_seed, learning_rate), train_state)
        return jax.vmap(iterate, in_axes=(0, None))(train_state, learning_rate)  # side by side

    @jax.jit
    def stack_seeds(train_states):
        return jax.tree.map(lambda *arrays: jnp.stack(arrays), *train_states)

    @jax.jit
    def take_seed(train_state, i):
        return jax.tree.map(lambda x: x[i], train_state)

    # States: for each seed, what its checkpoint saves and a resumed run restores, besides the flags
    states = []
    for seed in range(args.seed, args.seed + args.num_seeds):
        state = {"global_step": 0, "recent_returns": deque(maxlen=100), "train_state": start(np.uint32(seed))}
        states.append(state)
    if args.resume:
        for run_dir, state in zip(run_dirs, states, strict=True):
            if run_dir != args.resume:  # `prepare` has loaded that one
                checkpoint = run.load(run_dir, __file__)
            run.restore(checkpoint, state)  # fills `state`, which is read below
            if state["global_step"] != states[0]["global_step"]:
                sys.exit(f"--num-seeds: {run_dir} is at another step; resume each by itself")
    global_step = states[0]["global_step"]
    recent_returns = [state["recent_returns"] for state in states]
    train_state = stack_seeds([state["train_state"] for state in states])

    writers = [None] * args.num_seeds
    for i in reversed(range(args.num_seeds)):  # the first seed last: a crash names the last folder
        if run:
            writers[i] = run.start(run_dirs[i], run_args[i], __file__, global_step)
        else:
            from tensorboardX import SummaryWriter  # only here: it imports PyTorch, too, if installed

            writers[i] = SummaryWriter(run_dirs[i])
    progress = tqdm(total=args.num_iterations * args.batch_size, initial=global_step, unit="step", disable=None)
    print_frequency = args.num_iterations // 20 + 1  # without a terminal, about 20 lines
    learning_rate = args.learning_rate
    logged_step = global_step  # of the last log; a resumed run goes on from here
    start_time = time.perf_counter()  # of the steps since then
    unread = []  # results that are still on the device
    for iteration in range(global_step // args.batch_size + 1, args.num_iterations + 1):
        if args.anneal_lr:  # detail 4: the learning rate falls linearly to zero
            remaining = 1 - (iteration - 1) / args.num_iterations
            learning_rate = remaining * args.learning_rate
        train_state, episodes, means, is_finite = iterate_seeds(train_state, learning_rate)
        unread.append((global_step, episodes, is_finite))
        global_step += args.batch_size
        is_log_due = iteration % args.log_frequency == 0 or iteration == args.num_iterations
        is_checkpoint_due = run and run.checkpoint_due(args, global_step, args.batch_size)
        if not is_log_due and not is_checkpoint_due:
            continue  # without waiting for the results: a GPU starts the next iteration at once

        # Episodes: their arrays are (num_seeds, num_steps, num_envs). Thousands may end at once: their means are logged
        for start_step, episodes, is_finite in unread:
            episodes = {name: np.asarray(x) for name, x in episodes.items()}
            for i, writer in enumerate(writers):
                done = episodes["done"][i]
                if done.any():
                    episodic_returns = episodes["return"][i][done]
                    episodic_lengths = episodes["length"][i][done]
                    recent_returns[i].extend(episodic_returns[-100:])
                    episode_step = start_step + args.batch_size
                    writer.add_scalar("charts/episodic_return", episodic_returns.mean(), episode_step)
                    writer.add_scalar("charts/episodic_length", episodic_lengths.mean(), episode_step)
            if not np.asarray(is_finite["everything"]).all():
                names = ["obs", "rewards", "value_loss", "grad_norm", *is_finite]  # causes first
                name = next(name for name in names if not is_finite[name].all())
                seed = args.seed + int(is_finite[name].argmin())  # the first False
                end_step = start_step + args.batch_size
                message = f"{name} of seed {seed} is not finite at global_step={end_step}"
                raise FloatingPointError(message)
        unread.clear()

        # Log
        if is_log_due:
            sps = (global_step - logged_step) / (time.perf_counter() - start_time)  # of one seed
            means = jax.device_get(means)
            for i, writer in enumerate(writers):
                for name, x in means.items():
                    writer.add_scalar(f"losses/{name}", float(x[i]), global_step)
                writer.add_scalar("charts/learning_rate", learning_rate, global_step)
                writer.add_scalar("charts/SPS", sps, global_step)
            recent_return = np.mean([np.mean(returns or [np.nan]) for returns in recent_returns])
            progress.set_postfix(episodic_return=recent_return, refresh=False)
            progress.update(global_step - logged_step)
            logged_step = global_step
            start_time = time.perf_counter()
            is_print_due = iteration % print_frequency < args.log_frequency  # once in print_frequency
            if progress.disable and is_print_due:  # no terminal
                print(f"global_step={global_step}, episodic_return={recent_return:.1f}, SPS={sps:.0f}")

        # Checkpoint: regularly, and on Ctrl+C or SIGTERM; then `save_checkpoints` also ends the program
        if is_checkpoint_due:
            for i, state in enumerate(states):
                state.update(global_step=global_step, train_state=take_seed(train_state, i))
            run.save_checkpoints(run_dirs, run_args, __file__, writers, states)

    progress.close()
    for i, writer in enumerate(writers):
        if args.save_model:
            metadata = {"args": json.dumps(vars(run_args[i])), "global_step": str(global_step)}
            params = flatten_dict(train_state.params, sep=".")
            tensors = {name: np.asarray(x)[i] for name, x in params.items()}
            tensors["obs_mean"] = np.asarray(train_state.obs_stats.mean)[i]
            tensors["obs_var"] = np.asarray(train_state.obs_stats.var)[i]
            save_file(tensors, f"{run_dirs[i]}/{args.exp_name}.safetensors", metadata)
        if run:  # evaluates, uploads, and says where everything is
            run.finish(run_dirs[i], run_args[i], writer, make_envs, load_policy, recent_returns[i])
        writer.close()
