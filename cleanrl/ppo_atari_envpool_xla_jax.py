"""Proximal Policy Optimization (PPO) in JAX for Atari games that EnvPool plays, reached by its XLA interface.

Paper:   https://arxiv.org/abs/1707.06347 (Schulman et al. 2017)
Details: https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details/ (Huang et al. 2022)
Docs:    docs/rl-algorithms/ppo_atari_envpool_xla_jax.md
Parent:  ppo_atari_envpool.py
Run:     python cleanrl/ppo_atari_envpool_xla_jax.py --env-id Breakout-v5
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
    env_id: str = "Breakout-v5"
    """the id of the environment"""
    total_timesteps: int = 10_000_000
    """environment steps of the whole run, all environments together"""
    learning_rate: float = 2.5e-4
    """the learning rate of the optimizer"""
    num_envs: int = 8
    """the number of parallel environments"""
    num_steps: int = 128
    """steps of each environment in a rollout"""
    anneal_lr: bool = True
    """anneal the learning rate linearly to zero"""
    gamma: float = 0.99
    """the discount factor"""
    gae_lambda: float = 0.95
    """the lambda of generalized advantage estimation"""
    num_minibatches: int = 4
    """minibatches per epoch"""
    update_epochs: int = 4
    """passes over each rollout"""
    norm_adv: bool = True
    """normalize the advantages of each minibatch"""
    clip_coef: float = 0.1
    """the clipping range of the surrogate objective"""
    clip_vloss: bool = True
    """clip the value loss as well"""
    ent_coef: float = 0.01
    """coefficient of the entropy bonus"""
    vf_coef: float = 0.5
    """coefficient of the value loss"""
    max_grad_norm: float = 0.5
    """the maximum norm of the gradient"""
    target_kl: float | None = None
    """skip the remaining epochs if the KL divergence exceeds this after one of them"""
    bf16: bool = False
    """compute the convolutions in bfloat16: faster, at a lower precision"""

    # Computed at run time
    batch_size: int = 0
    """num_envs * num_steps"""
    minibatch_size: int = 0
    """batch_size // num_minibatches"""
    num_iterations: int = 0
    """total_timesteps // batch_size"""


def make_envs(env_id, num_envs, capture_video, run_dir):
    import envpool  # differs from ppo_atari.py: it plays the games, and applies the Atari details 1 to 7, in C++

    if capture_video:
        raise ValueError("EnvPool cannot be filmed; --capture-video is for ppo_atari.py")
    seed = random.getrandbits(30)  # another one for each pool
    return envpool.make_gymnasium(env_id, num_envs=num_envs, episodic_life=True, reward_clip=True, seed=seed)


def layer_init(std=2**0.5):  # detail 2: orthogonal weights, scaled by std
    # differs from ppo_atari_envpool.py: a layer of Flax calls the function by itself, and its biases are zero
    return nn.initializers.orthogonal(std)


# differs from ppo_atari_envpool.py: it holds no parameters, they are handed to it in each call
class Agent(nn.Module):
    num_actions: int
    bf16: bool = False

    def setup(self):
        dtype = jnp.bfloat16 if self.bf16 else jnp.float32
        self.network = nn.Sequential(  # Atari detail 8, a shared network (Mnih et al. 2015)
            [
                nn.Conv(32, (8, 8), strides=4, padding="VALID", kernel_init=layer_init(), dtype=dtype),
                nn.relu,
                nn.Conv(64, (4, 4), strides=2, padding="VALID", kernel_init=layer_init(), dtype=dtype),
                nn.relu,
                nn.Conv(64, (3, 3), padding="VALID", kernel_init=layer_init(), dtype=dtype),
                nn.relu,
                lambda x: x.reshape(len(x), 3136),
                nn.Dense(512, kernel_init=layer_init(), dtype=dtype),
                nn.relu,
            ]
        )
        self.critic = nn.Dense(1, kernel_init=layer_init(1.0))
        self.actor = nn.Dense(self.num_actions, kernel_init=layer_init(0.01))

    def get_features(self, x):
        x = x.transpose(0, 2, 3, 1)  # channels last, as Flax expects them
        return self.network(x / 255).astype(jnp.float32)  # Atari detail 9: pixels are scaled to [0, 1]

    def get_value(self, x):
        x = self.get_features(x)
        return self.critic(x).squeeze(-1)

    def get_action(self, x, noise):
        x = self.get_features(x)
        # Gumbel-max trick: with noise of the Gumbel distribution, the argmax is a sample of softmax(logits)
        return (self.actor(x) + noise).argmax(-1)

    def evaluate_actions(self, x, action):
        """The log-probability of each action, the entropy of the policy there, and the value of the observation."""
        x = self.get_features(x)
        all_logprobs = nn.log_softmax(self.actor(x))
        logprob = jnp.take_along_axis(all_logprobs, action[:, None], axis=-1).squeeze(-1)
        entropy = -(jnp.exp(all_logprobs) * all_logprobs).sum(-1)
        return logprob, entropy, self.critic(x).squeeze(-1)


class TrainState(NamedTuple):
    """What an update changes. It is never changed in place: an update returns a new one."""

    params: Any
    optimizer_state: Any


class Games(NamedTuple):
    """The pools of environments, and what they have played in this rollout."""

    handles: Any  # one for each pool: `recv` and `send` take it and return the next one
    next_obs: Any  # (num_envs, 4, 84, 84)
    obs: Any  # this and all below: (num_steps, num_envs, ...)
    actions: Any
    rewards: Any
    terminations: Any
    truncations: Any
    valid: Any  # steps that were played: not the resets of EnvPool
    points: Any  # the rewards before they were clipped
    games_over: Any  # whole games, not lives
    lengths: Any  # of the games so far


@partial(jax.jit, donate_argnums=0)
def add_next_advantage(advantages, decays, step):
    next_advantage = advantages[step + 1]
    return advantages.at[step].add(decays[step] * next_advantage)


def compute_gae(rewards, terminations, truncations, values, next_values, gamma, gae_lambda):
    """Detail 5: advantages and returns by GAE (Schulman et al. 2016). All arrays are (num_steps, num_envs)."""
    # delta[t] = r[t] + gamma * V(s[t+1]) - V(s[t]) and A[t] = delta[t] + gamma * lambda * A[t+1], within an episode.
    # After a termination, V(s[t+1]) is 0; after a truncation, s[t+1] is the last observation of the old episode.
    deltas = rewards + gamma * next_values * ~terminations - values
    dones = terminations | truncations
    decays = gamma * gae_lambda * ~dones
    advantages = deltas  # differs from ppo_atari_envpool.py: they stay on the device
    for step in reversed(range(len(advantages) - 1)):
        advantages = add_next_advantage(advantages, decays, step)
    return advantages, advantages + values  # return = value + advantage


def ppo_loss(newlogprobs, entropy, newvalues, logprobs, advantages, returns, values, valid, args):
    """The loss, given `logprobs` and `values` of the rollout, and a dictionary of what to log (detail 12)."""
    weights = valid / jnp.maximum(valid.sum(), 1)  # differs from ppo_atari_envpool.py: in JAX

    def mean(x):  # of the valid steps
        return (weights * x).sum()

    logratio = newlogprobs - logprobs
    ratio = jnp.exp(logratio)
    if args.norm_adv:  # detail 7: advantages are normalized in each minibatch
        advantages = valid * (advantages - mean(advantages))
        variance = (advantages**2).sum() / jnp.maximum(valid.sum() - 1, 1)
        advantages = advantages / (jnp.sqrt(variance) + 1e-8)
    # detail 8: clipped surrogate objective (Schulman et al. 2017, eq. 7)
    clipped_ratio = jnp.clip(ratio, 1 - args.clip_coef, 1 + args.clip_coef)
    policy_loss = -mean(jnp.minimum(advantages * ratio, advantages * clipped_ratio))
    # detail 9: the value loss is clipped, too: moving a value by more than clip_coef gains nothing
    value_loss = (newvalues - returns) ** 2
    if args.clip_vloss:
        clipped_values = values + jnp.clip(newvalues - values, -args.clip_coef, args.clip_coef)
        value_loss = jnp.maximum(value_loss, (clipped_values - returns) ** 2)
    value_loss = 0.5 * mean(value_loss)
    # detail 10: the overall loss has an entropy bonus (Schulman et al. 2017, eq. 9)
    entropy = mean(entropy)
    loss = policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss
    stats = {
        "loss": loss,
        "value_loss": value_loss,
        "policy_loss": policy_loss,
        "entropy": entropy,
        "old_approx_kl": mean(-logratio),
        "approx_kl": mean(ratio - 1 - logratio),  # less noisy: joschu.net/blog/kl-approx.html
        "clipfrac": mean(ratio != clipped_ratio),
    }
    return loss, stats


def load_policy(model_path, envs, device="cpu", deterministic=True):  # differs from ppo_atari_envpool.py: in JAX
    """Load the trained policy: a function from observations to actions, both NumPy arrays."""
    num_actions = int(envs.single_action_space.n)
    agent = Agent(num_actions)
    params = unflatten_dict(load_file(model_path), sep=".")

    @jax.jit  # JAX chooses the device: `device` is only used by the files in PyTorch
    def act(x, noise):
        return agent.apply(params, x, noise, method="get_action")

    def policy(obs):
        noise = np.zeros((len(obs), num_actions), np.float32)
        if not deterministic:
            noise = np.random.gumbel(size=noise.shape).astype(np.float32)
        return np.asarray(act(obs, noise))

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
    args.batch_size = args.num_envs * args.num_steps
    args.minibatch_size = args.batch_size // args.num_minibatches
    args.num_iterations = args.total_timesteps // args.batch_size

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
    scores = np.zeros(args.num_envs)  # of the games so far; a resumed run starts new games
    try:
        pool_size = min(32, (args.num_envs + 1) // 2)  # two pools or more: one gets its actions while others play
        columns = [slice(i, i + pool_size) for i in range(0, args.num_envs, pool_size)]
        envs = [make_envs(args.env_id, len(scores[c]), args.capture_video, run_dir) for c in columns]
    except Exception as error:  # an unknown id, a package that is missing, actions of another kind
        sys.exit(run.explain_env_error(args.env_id, error) if run else f"{args.env_id}: {error}")
    next_obs = np.concatenate([pool.reset()[0] for pool in envs])
    num_actions = int(envs[0].single_action_space.n)
    agent = Agent(num_actions, args.bf16)
    init = jax.jit(partial(agent.init, method="evaluate_actions"))
    params = init(key, next_obs, np.zeros(args.num_envs, int))
    # detail 11: the norm of the whole gradient is clipped; detail 3: Adam's epsilon
    optimizer = optax.chain(optax.clip_by_global_norm(args.max_grad_norm), optax.scale_by_adam(eps=1e-5))
    optimizer = optax.flatten(optimizer)  # all parameters as one vector: faster
    train_state = TrainState(params, optimizer.init(params))

    # donate: the new arrays take the memory of the old ones. static: compiled once for each pool `idx`
    @partial(jax.jit, donate_argnums=0, static_argnums=2)
    def receive(games, step, idx):
        """Wait for what came of the actions of this step in pool `idx`."""
        # The barrier: else XLA may read small arrays on a GPU after it has given their memory to others (JAX 0.11.2)
        handle, outcome = jax.lax.optimization_barrier(recv_functions[idx](games.handles[idx]))
        next_obs, rewards, terminations, truncations, infos = outcome
        place = (step, columns[idx])
        return games._replace(
            handles=games.handles | {idx: handle},
            next_obs=games.next_obs.at[columns[idx]].set(next_obs),
            rewards=games.rewards.at[place].set(rewards),
            terminations=games.terminations.at[place].set(terminations),
            truncations=games.truncations.at[place].set(truncations),
            points=games.points.at[place].set(infos["reward"]),
            games_over=games.games_over.at[place].set((infos["terminated"] == 1) | truncations),
            lengths=games.lengths.at[place].set(infos["elapsed_step"]),
        )

    @partial(jax.jit, donate_argnums=0, static_argnums=4)
    def act(games, params, noise, step, idx):
        """Choose the next actions of pool `idx`, and send them: it plays them in the background."""
        place = (step, columns[idx])
        last = (step - 1, columns[idx])  # at step 0, this is the last step of the rollout before
        obs = games.next_obs[columns[idx]]
        actions = agent.apply(params, obs, noise[place], method="get_action")
        handle = send_functions[idx](games.handles[idx], actions)
        is_reset = games.terminations[last] | games.truncations[last]  # EnvPool then ignores the action
        return games._replace(
            handles=games.handles | {idx: handle},
            obs=games.obs.at[place].set(obs),
            actions=games.actions.at[place].set(actions),
            valid=games.valid.at[place].set(~is_reset),
        )

    @jax.jit
    def evaluate_rollout(params, b_obs, b_actions, next_obs):
        b_logprobs, _, b_values = agent.apply(params, b_obs, b_actions, method="evaluate_actions")
        values = b_values.reshape(args.num_steps, args.num_envs)
        last_values = agent.apply(params, next_obs, method="get_value")
        # V(s[t+1]) is one row below, after a truncation as well: EnvPool shows the final observation before it resets
        next_values = jnp.roll(values, -1, axis=0).at[-1].set(last_values)
        return b_logprobs, values, next_values

    @partial(jax.jit, donate_argnums=0)
    def update(train_state, batch, mb_inds, learning_rate):
        minibatch = [x[mb_inds] for x in batch]
        mb_obs, mb_actions, mb_logprobs, mb_advantages, mb_returns, mb_values, mb_valid = minibatch

        def loss_of(params):
            newlogprobs, entropy, newvalues = agent.apply(params, mb_obs, mb_actions, method="evaluate_actions")
            return ppo_loss(
                newlogprobs, entropy, newvalues, mb_logprobs, mb_advantages, mb_returns, mb_values, mb_valid, args
            )

        gradients, stats = jax.grad(loss_of, has_aux=True)(train_state.params)
        stats["grad_norm"] = optax.tree.norm(gradients)
        changes, optimizer_state = optimizer.update(gradients, train_state.optimizer_state, train_state.params)
        params = jax.tree.map(lambda x, change: x - learning_rate * change, train_state.params, changes)
        return TrainState(params, optimizer_state), stats

    # State: what a checkpoint saves and a resumed run restores, in addition to flags and random generators
    state = {
        "global_step": 0,
        "next_obs": next_obs,
        "recent_returns": deque(maxlen=100),
        "recent_lengths": deque(maxlen=100),
        "envs": envs,
        "train_state": train_state,
    }
    if args.resume:
        run.restore(checkpoint, state)  # fills `state`, which is read below
    global_step = state["global_step"]
    recent_returns = state["recent_returns"]
    recent_lengths = state["recent_lengths"]
    train_state = state["train_state"]

    # Storage: by their XLA interface, compiled functions reach the pools without a detour through Python
    handles = {}
    recv_functions = []
    send_functions = []
    for idx, pool in enumerate(envs):
        handle, recv, send, _ = pool.xla()
        handles[idx] = handle
        recv_functions.append(recv)
        send_functions.append(send)
    rollout_shape = (args.num_steps, args.num_envs)
    games = Games(
        handles=handles,
        next_obs=jnp.asarray(state["next_obs"]),
        obs=jnp.zeros((args.num_steps, *next_obs.shape), jnp.uint8),
        actions=jnp.zeros(rollout_shape, jnp.int32),
        rewards=jnp.zeros(rollout_shape),
        terminations=jnp.zeros(rollout_shape, bool),
        truncations=jnp.zeros(rollout_shape, bool),
        valid=jnp.zeros(rollout_shape, bool),
        points=jnp.zeros(rollout_shape),
        games_over=jnp.zeros(rollout_shape, bool),
        lengths=jnp.zeros(rollout_shape, jnp.int32),
    )

    turns = [(step, idx) for step in range(args.num_steps + 1) for idx in range(len(envs))]
    if run:
        writer = run.start(run_dir, args, __file__, global_step)  # Ctrl+C now saves a checkpoint
    else:
        from tensorboardX import SummaryWriter  # only here: it imports PyTorch, too, if installed

        writer = SummaryWriter(run_dir)
    progress = tqdm(total=args.num_iterations * args.batch_size, initial=global_step, unit="step", disable=None)
    for iteration in range(global_step // args.batch_size + 1, args.num_iterations + 1):
        start_time = time.perf_counter()
        learning_rate = args.learning_rate
        if args.anneal_lr:  # detail 4: the learning rate falls linearly to zero
            remaining = 1 - (iteration - 1) / args.num_iterations
            learning_rate = remaining * args.learning_rate
        iteration_key = jax.random.fold_in(key, iteration)  # the same keys in a resumed run
        noise_key, shuffle_key = jax.random.split(iteration_key)

        # Rollout: the policy only chooses actions. Log-probabilities and values are computed after it, all at once.
        noise = jax.random.gumbel(noise_key, (args.num_steps, args.num_envs, num_actions))
        for step, idx in turns:
            if step > 0:  # what came of the last actions, which were played in the meantime
                games = receive(games, step - 1, idx)
            if step < args.num_steps:  # the pool plays its next actions in the background
                games = act(games, train_state.params, noise, step, idx)

        # Targets
        b_obs = jax.lax.collapse(games.obs, 0, 2)  # (num_steps * num_envs, ...)
        b_actions = games.actions.flatten()
        b_valid = games.valid.flatten()
        b_logprobs, values, next_values = evaluate_rollout(train_state.params, b_obs, b_actions, games.next_obs)
        advantages, returns = compute_gae(
            games.rewards, games.terminations, games.truncations, values, next_values, args.gamma, args.gae_lambda
        )

        # Update
        b_advantages = advantages.flatten()
        b_returns = returns.flatten()
        b_values = values.flatten()
        batch = (b_obs, b_actions, b_logprobs, b_advantages, b_returns, b_values, b_valid)
        all_stats = []
        epoch_keys = jax.random.split(shuffle_key, args.update_epochs)
        for epoch_key in epoch_keys:  # detail 6: several epochs of minibatch updates
            b_inds = jax.random.permutation(epoch_key, args.batch_size)
            for mb_inds in b_inds.reshape(args.num_minibatches, args.minibatch_size):
                train_state, stats = update(train_state, batch, mb_inds, learning_rate)
                all_stats.append(stats)
            if args.target_kl is not None and stats["approx_kl"] > args.target_kl:
                break
        error_variance = (returns - values).var(where=games.valid)
        explained_variance = 1 - error_variance / returns.var(where=games.valid)

        # Log: every game, and the means over all minibatches of this iteration
        played = jax.device_get(games._replace(handles=None, next_obs=None, obs=None))
        for step in range(args.num_steps):
            scores += played.points[step]  # not clipped; scores are of whole games
            for idx in np.flatnonzero(played.games_over[step]):
                recent_returns.append(scores[idx])
                recent_lengths.append(played.lengths[step, idx])
                episode_step = global_step + idx + 1  # one step per environment
                writer.add_scalar("charts/episodic_return", scores[idx], episode_step)
                writer.add_scalar("charts/episodic_length", played.lengths[step, idx], episode_step)
                scores[idx] = 0
            global_step += args.num_envs
        all_stats = jax.device_get(all_stats)
        means = {name: np.mean([stats[name] for stats in all_stats]) for name in stats}
        checked = {"rewards": played.rewards} | means
        for name, x in checked.items():
            if not np.isfinite(x).all():
                raise FloatingPointError(f"{name} is not finite at global_step={global_step}")
        means["explained_variance"] = explained_variance
        for name, x in means.items():
            writer.add_scalar(f"losses/{name}", float(x), global_step)
        writer.add_scalar("charts/learning_rate", learning_rate, global_step)
        sps = args.batch_size / (time.perf_counter() - start_time)
        writer.add_scalar("charts/SPS", sps, global_step)
        writer.add_scalar("charts/SPS_update", sps, global_step)  # its second name in the published file
        recent_return = np.mean(recent_returns or [np.nan])
        writer.add_scalar("charts/avg_episodic_return", recent_return, global_step)
        writer.add_scalar("charts/avg_episodic_length", np.mean(recent_lengths or [np.nan]), global_step)
        progress.set_postfix(episodic_return=recent_return, refresh=False)
        progress.update(args.batch_size)
        if progress.disable and iteration % (args.num_iterations // 20 + 1) == 0:  # no terminal: 20 lines at most
            print(f"global_step={global_step}, episodic_return={recent_return:.1f}, SPS={sps:.0f}")

        # Checkpoint: regularly, and on Ctrl+C or SIGTERM; then `save_checkpoint` also ends the program
        if run and run.checkpoint_due(args, global_step, args.batch_size):
            state.update(global_step=global_step, next_obs=np.asarray(games.next_obs), train_state=train_state)
            run.save_checkpoint(run_dir, args, __file__, writer, state)

    progress.close()
    if args.save_model:
        metadata = {"args": json.dumps(vars(args)), "global_step": str(global_step)}
        tensors = {name: np.asarray(x) for name, x in flatten_dict(train_state.params, sep=".").items()}
        save_file(tensors, f"{run_dir}/{args.exp_name}.safetensors", metadata)
    if run:  # evaluates, uploads, and says where everything is
        run.finish(run_dir, args, writer, make_envs, load_policy, recent_returns)
    writer.close()
