"""Proximal Policy Optimization (PPO) for continuous actions, with the nine details that they add to the 13 core ones.

Paper:   https://arxiv.org/abs/1707.06347 (Schulman et al. 2017)
Details: https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details/ (Huang et al. 2022)
Docs:    docs/rl-algorithms/ppo_continuous_action.md
Parent:  ppo.py
Run:     python cleanrl/ppo_continuous_action.py --env-id HalfCheetah-v4
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

LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


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
    env_id: str = "HalfCheetah-v4"
    """the id of the environment"""
    total_timesteps: int = 1_000_000
    """environment steps of the whole run, all environments together"""
    learning_rate: float = 3e-4
    """the learning rate of the optimizer"""
    num_envs: int = 1
    """the number of parallel environments"""
    num_steps: int = 2048
    """steps of each environment in a rollout"""
    anneal_lr: bool = True
    """anneal the learning rate linearly to zero"""
    gamma: float = 0.99
    """the discount factor"""
    gae_lambda: float = 0.95
    """the lambda of generalized advantage estimation"""
    num_minibatches: int = 32
    """minibatches per epoch"""
    update_epochs: int = 10
    """passes over each rollout"""
    norm_adv: bool = True
    """normalize the advantages of each minibatch"""
    clip_coef: float = 0.2
    """the clipping range of the surrogate objective"""
    clip_vloss: bool = True
    """clip the value loss as well"""
    ent_coef: float = 0.0
    """coefficient of the entropy bonus"""
    vf_coef: float = 0.5
    """coefficient of the value loss"""
    max_grad_norm: float = 0.5
    """the maximum norm of the gradient"""
    target_kl: float | None = None
    """skip the remaining epochs if the KL divergence exceeds this after one of them"""

    # Computed at run time
    batch_size: int = 0
    """num_envs * num_steps"""
    minibatch_size: int = 0
    """batch_size // num_minibatches"""
    num_iterations: int = 0
    """total_timesteps // batch_size"""


def make_env(env_id, idx, capture_video, run_dir):
    def thunk():
        if env_id.startswith("dm_control/"):
            import shimmy  # noqa: F401 (importing it registers these environments)
        is_filmed = capture_video and idx == 0
        env = gym.make(env_id, render_mode="rgb_array") if is_filmed else gym.make(env_id)
        action_space = env.action_space
        if len(action_space.shape or ()) != 1:
            raise ValueError(f"its actions are {action_space}, not a vector; for Discrete ones try ppo.py")
        env = gym.wrappers.ClipAction(env)  # differs from ppo.py: continuous detail 5, actions are executed clipped
        if len(env.observation_space.shape or ()) != 1:  # numbers and matrices become vectors
            env = gym.wrappers.FlattenObservation(env)
        env = gym.wrappers.TransformObservation(env, np.copy, None)  # resets may reuse the array
        if is_filmed:
            env = gym.wrappers.RecordVideo(env, f"{run_dir}/videos")
        env = gym.wrappers.RecordEpisodeStatistics(env)
        return env

    return thunk


def make_envs(env_id, num_envs, capture_video, run_dir):
    # detail 1: vectorized architecture. SAME_STEP: the step that ends an episode returns the first observation of the
    # next episode, and the last observation of the old one in infos["final_obs"]. copy=False: `step` reuses its arrays.
    thunks = [make_env(env_id, idx, capture_video, run_dir) for idx in range(num_envs)]
    return gym.vector.SyncVectorEnv(thunks, copy=False, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)


def layer_init(layer, std=2**0.5, bias_const=0.0):  # detail 2: orthogonal weights, scaled by std
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, bias_const)
    return layer


def mlp(input_dim, output_dim, output_std):
    return nn.Sequential(
        layer_init(nn.Linear(input_dim, 64)),
        nn.Tanh(),
        layer_init(nn.Linear(64, 64)),
        nn.Tanh(),
        layer_init(nn.Linear(64, output_dim), output_std),
    )


class Agent(nn.Module):
    def __init__(self, envs):
        super().__init__()
        obs_dim = envs.single_observation_space.shape[0]
        num_actions = envs.single_action_space.shape[0]  # continuous detail 4 is detail 13
        self.critic = mlp(obs_dim, 1, output_std=1.0)  # detail 13: two networks, which share nothing
        self.actor = mlp(obs_dim, num_actions, output_std=0.01)  # nearly uniform at first
        self.actor_logstd = nn.Parameter(torch.zeros(num_actions))  # continuous detail 2: not from a network
        self.obs_mean = nn.Buffer(torch.zeros(obs_dim))  # differs from ppo.py: statistics, saved with the model
        self.obs_var = nn.Buffer(torch.ones(obs_dim))
        self.return_mean = nn.Buffer(torch.tensor(0.0))
        self.return_var = nn.Buffer(torch.tensor(1.0))

    def normalize(self, x):  # continuous details 6 and 7: observations are normalized and clipped
        return ((x - self.obs_mean) / (self.obs_var + 1e-8).sqrt()).clamp(-10, 10)

    def get_value(self, x):
        x = self.normalize(x)
        return self.critic(x).squeeze(-1)

    @torch.inference_mode()
    def get_action(self, x, deterministic=False):
        x = self.normalize(x)
        action = self.actor(x)
        if not deterministic:
            action += self.actor_logstd.exp() * torch.randn_like(action)
        return action

    def evaluate_actions(self, x, action):
        """The log-probability of each action, the entropy of the policy there, and the value of the observation."""
        x = self.normalize(x)
        z = (action - self.actor(x)) / self.actor_logstd.exp()  # continuous details 1 and 3: independent normals
        logprob = (-0.5 * z**2 - self.actor_logstd - LOG_SQRT_2PI).sum(-1)
        entropy = (self.actor_logstd + 0.5 + LOG_SQRT_2PI).sum()
        return logprob, entropy, self.critic(x).squeeze(-1)


def merge_stats(mean, var, x, share):  # `x` are a share of all samples so far (Chan et al. 1979)
    delta = x.mean(0) - mean
    mean += share * delta
    var.lerp_(x.var(0, correction=0) + (1 - share) * delta**2, share)


def compute_gae(rewards, terminations, truncations, values, next_values, gamma, gae_lambda):
    """Detail 5: advantages and returns by GAE (Schulman et al. 2016). All tensors are (num_steps, num_envs)."""
    # delta[t] = r[t] + gamma * V(s[t+1]) - V(s[t]) and A[t] = delta[t] + gamma * lambda * A[t+1], within an episode.
    # After a termination, V(s[t+1]) is 0; after a truncation, s[t+1] is the last observation of the old episode.
    deltas = rewards + gamma * next_values * ~terminations - values
    dones = terminations | truncations
    decays = gamma * gae_lambda * ~dones
    decays = decays.cpu().numpy()  # in a loop over small arrays, NumPy is faster than PyTorch
    advantages = deltas.cpu().numpy()  # the loop turns deltas into advantages
    for step in reversed(range(len(advantages) - 1)):
        next_advantage = advantages[step + 1]
        advantages[step] += decays[step] * next_advantage
    advantages = torch.as_tensor(advantages).to(values.device)
    return advantages, advantages + values  # return = value + advantage


def ppo_loss(newlogprobs, entropy, newvalues, logprobs, advantages, returns, values, args):
    """The loss, given `logprobs` and `values` of the rollout, and a dictionary of what to log (detail 12)."""
    logratio = newlogprobs - logprobs
    ratio = logratio.exp()
    if args.norm_adv:  # detail 7: advantages are normalized in each minibatch
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    # detail 8: clipped surrogate objective (Schulman et al. 2017, eq. 7)
    clipped_ratio = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
    policy_loss = -torch.min(advantages * ratio, advantages * clipped_ratio).mean()
    # detail 9: the value loss is clipped, too: moving a value by more than clip_coef gains nothing
    value_loss = (newvalues - returns) ** 2
    if args.clip_vloss:
        clipped_values = values + (newvalues - values).clamp(-args.clip_coef, args.clip_coef)
        value_loss = torch.max(value_loss, (clipped_values - returns) ** 2)
    value_loss = 0.5 * value_loss.mean()
    # detail 10: the overall loss has an entropy bonus (Schulman et al. 2017, eq. 9)
    entropy = entropy.mean()
    loss = policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss
    with torch.no_grad():
        stats = {
            "value_loss": value_loss.detach(),
            "policy_loss": policy_loss.detach(),
            "entropy": entropy.detach(),
            "old_approx_kl": (-logratio).mean(),  # the plain estimate of KL(old policy, new policy)
            "approx_kl": (ratio - 1 - logratio).mean(),  # less noisy: joschu.net/blog/kl-approx.html
            "clipfrac": (ratio != clipped_ratio).float().mean(),
        }
    return loss, stats


def load_policy(model_path, envs, device="cpu", deterministic=True):
    """Load the trained policy: a function from observations to actions, both NumPy arrays."""
    agent = Agent(envs).to(device)
    agent.load_state_dict(load_file(model_path, device=str(device)))

    def policy(obs):
        x = torch.as_tensor(obs, dtype=torch.float32, device=device)
        return agent.get_action(x, deterministic).cpu().numpy()

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
    args.batch_size = args.num_envs * args.num_steps
    args.minibatch_size = args.batch_size // args.num_minibatches
    args.num_iterations = args.total_timesteps // args.batch_size

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
    agent = Agent(envs).to(device)
    learning_rate = torch.tensor(args.learning_rate, device=device)  # a tensor: a recorded update sees it change
    optimizer = torch.optim.Adam(agent.parameters(), learning_rate, eps=1e-5, fused=True)  # detail 3: default 1e-8

    def update(mb_obs, mb_actions, mb_logprobs, mb_advantages, mb_returns, mb_values):
        optimizer.zero_grad()
        newlogprobs, entropy, newvalues = agent.evaluate_actions(mb_obs, mb_actions)
        loss, stats = ppo_loss(newlogprobs, entropy, newvalues, mb_logprobs, mb_advantages, mb_returns, mb_values, args)
        loss.backward()
        # detail 11: the norm of the whole gradient is clipped
        stats["grad_norm"] = nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
        optimizer.step()
        return stats

    # Storage: observations are on the device, where the policy needs them; the rest goes there after a rollout
    next_obs, _ = envs.reset(seed=args.seed)
    rollout_shape = (args.num_steps, args.num_envs)
    obs = torch.zeros(args.num_steps, *next_obs.shape, device=device)
    actions = np.zeros(rollout_shape + envs.single_action_space.shape, dtype=np.float32)
    rewards = np.zeros(rollout_shape, dtype=np.float32)
    terminations = np.zeros(rollout_shape, dtype=bool)
    truncations = np.zeros(rollout_shape, dtype=bool)
    discounted_returns = np.zeros_like(rewards)

    # State: what a checkpoint saves and a resumed run restores, in addition to flags and random generators
    state = {
        "global_step": 0,
        "next_obs": next_obs,
        "running_return": np.zeros(args.num_envs),
        "recent_returns": deque(maxlen=100),
        "envs": envs,
        "agent": agent,
        "optimizer": optimizer,
    }
    if args.resume:
        run.restore(checkpoint, state)  # fills `state`, which is read below
    global_step = state["global_step"]
    next_obs = state["next_obs"]
    running_return = state["running_return"]  # the discounted rewards of each episode so far
    recent_returns = state["recent_returns"]

    act = agent.get_action
    if run:  # may speed up `act` and `update`; only --compile changes the rounding of results
        act, update = run.accelerate(args, __file__, act, update, state)
        writer = run.start(run_dir, args, __file__, global_step)  # Ctrl+C now saves a checkpoint
    else:
        writer = SummaryWriter(run_dir)
    progress = tqdm(total=args.num_iterations * args.batch_size, initial=global_step, unit="step", disable=None)
    for iteration in range(global_step // args.batch_size + 1, args.num_iterations + 1):
        start_time = time.perf_counter()
        if args.anneal_lr:  # detail 4: the learning rate falls linearly to zero
            remaining = 1 - (iteration - 1) / args.num_iterations
            learning_rate.fill_(remaining * args.learning_rate)

        # Rollout: the policy only chooses actions. Log-probabilities and values are computed after it, all at once.
        final_obs = {}  # the last observation of each truncated episode, by (step, idx)
        for step in range(args.num_steps):
            obs[step] = torch.as_tensor(next_obs)
            action = act(obs[step]).cpu().numpy()
            actions[step] = action
            next_obs, rewards[step], terminations[step], truncations[step], infos = envs.step(action)
            running_return[:] = args.gamma * running_return + rewards[step]
            discounted_returns[step] = running_return
            running_return[terminations[step] | truncations[step]] = 0
            global_step += args.num_envs
            for idx in np.flatnonzero(truncations[step]):
                final_obs[step, idx] = np.array([infos["final_obs"][idx]])  # a copy, as a batch of one
            if "episode" in infos.get("final_info", {}):  # `_episode` tells where one has ended
                episodes = infos["final_info"]["episode"]
                for idx in np.flatnonzero(infos["final_info"]["_episode"]):
                    recent_returns.append(episodes["r"][idx])
                    episode_step = global_step - args.num_envs + idx + 1  # one step per environment
                    writer.add_scalar("charts/episodic_return", episodes["r"][idx], episode_step)
                    writer.add_scalar("charts/episodic_length", episodes["l"][idx], episode_step)

        # Targets
        b_obs = obs.flatten(0, 1)  # b_: all steps of the batch in one dimension
        b_actions = torch.as_tensor(actions, device=device).flatten(0, 1)
        torch_rewards = torch.as_tensor(rewards, device=device)  # (num_steps, num_envs)
        torch_terminations = torch.as_tensor(terminations, device=device)
        torch_truncations = torch.as_tensor(truncations, device=device)
        b_discounted_returns = torch.as_tensor(discounted_returns, device=device).flatten()
        share = args.batch_size / global_step  # of this rollout among all steps so far
        with torch.no_grad():
            merge_stats(agent.return_mean, agent.return_var, b_discounted_returns, share)
            torch_rewards = (torch_rewards / (agent.return_var + 1e-8).sqrt()).clamp(-10, 10)  # continuous details 8, 9
            b_logprobs, _, b_values = agent.evaluate_actions(b_obs, b_actions)
            values = b_values.view_as(torch_rewards)  # (num_steps, num_envs)
            next_values = values.roll(-1, dims=0)  # V(s[t+1]); exceptions are set below
            next_values[-1] = agent.get_value(torch.as_tensor(next_obs).to(obs))  # to the dtype and device of obs
            for index, x in final_obs.items():  # a truncated episode would have gone on from here
                next_values[index] = agent.get_value(torch.as_tensor(x).to(obs))
            advantages, returns = compute_gae(
                torch_rewards, torch_terminations, torch_truncations, values, next_values, args.gamma, args.gae_lambda
            )

        # Update
        b_advantages = advantages.flatten(0, 1)
        b_returns = returns.flatten(0, 1)
        all_stats = []
        for _epoch in range(args.update_epochs):  # detail 6: several epochs of minibatch updates
            b_inds = torch.randperm(args.batch_size, device=device)
            for mb in b_inds.split(args.minibatch_size):
                stats = update(b_obs[mb], b_actions[mb], b_logprobs[mb], b_advantages[mb], b_returns[mb], b_values[mb])
                all_stats.append(stats)
            if args.target_kl is not None and stats["approx_kl"] > args.target_kl:
                break

        merge_stats(agent.obs_mean, agent.obs_var, b_obs, share)  # after the update, so that its ratios start at 1

        # Log: the means over all minibatches of this iteration. A number that is not finite ends the run.
        means = {name: torch.stack([x[name] for x in all_stats]).mean() for name in stats}
        checked = {"obs": obs, "rewards": torch_rewards} | means
        for name, x in checked.items():
            if not x.isfinite().all():
                raise FloatingPointError(f"{name} is not finite at global_step={global_step}")
        means["explained_variance"] = 1 - (returns - values).var() / returns.var()
        for name, x in means.items():
            writer.add_scalar(f"losses/{name}", x, global_step)
        writer.add_scalar("charts/learning_rate", learning_rate, global_step)
        sps = args.batch_size / (time.perf_counter() - start_time)
        writer.add_scalar("charts/SPS", sps, global_step)
        recent_return = np.mean(recent_returns or [np.nan])
        progress.set_postfix(episodic_return=recent_return, refresh=False)
        progress.update(args.batch_size)
        if progress.disable and iteration % (args.num_iterations // 20 + 1) == 0:  # no terminal: 20 lines at most
            print(f"global_step={global_step}, episodic_return={recent_return:.1f}, SPS={sps:.0f}")

        # Checkpoint: regularly, and on Ctrl+C or SIGTERM; then `save_checkpoint` also ends the program
        if run and run.checkpoint_due(args, global_step, args.batch_size):
            state.update(global_step=global_step, next_obs=next_obs)
            run.save_checkpoint(run_dir, args, __file__, writer, state)

    envs.close()
    progress.close()
    if args.save_model:
        metadata = {"args": json.dumps(vars(args)), "global_step": str(global_step)}
        save_file(agent.state_dict(), f"{run_dir}/{args.exp_name}.safetensors", metadata)
    if run:  # evaluates, uploads, and says where everything is
        run.finish(run_dir, args, writer, make_envs, load_policy, recent_returns)
    writer.close()
