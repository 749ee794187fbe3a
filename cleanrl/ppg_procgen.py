"""Phasic Policy Gradient (PPG) for the games of Procgen: PPO, and auxiliary phases that train its features.

Paper:   https://arxiv.org/abs/2009.04416 (Cobbe et al. 2020)
Details: https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details/ (Huang et al. 2022, of PPO)
Docs:    docs/rl-algorithms/ppg_procgen.md
Parent:  ppo_procgen.py
Run:     python cleanrl/ppg_procgen.py --env-id starpilot
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
    env_id: str = "starpilot"
    """the game, with easy levels, or an id of EnvPool such as StarpilotHard-v0"""
    total_timesteps: int = 25_000_000
    """environment steps of the whole run, all environments together"""
    learning_rate: float = 5e-4
    """the learning rate of the optimizer"""
    num_envs: int = 64
    """the number of parallel environments"""
    num_steps: int = 256
    """steps of each environment in a rollout"""
    anneal_lr: bool = False
    """anneal the learning rate linearly to zero"""
    gamma: float = 0.999
    """the discount factor"""
    gae_lambda: float = 0.95
    """the lambda of generalized advantage estimation"""
    num_minibatches: int = 8
    """minibatches per epoch"""
    adv_norm_fullbatch: bool = True
    """normalize the advantages of each rollout, over all its minibatches"""
    clip_coef: float = 0.2
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
    n_iteration: int = 32
    """N_pi: iterations of the policy phase, each with one rollout of all environments"""
    e_policy: int = 1
    """E_pi: passes over each rollout in the policy phase"""
    v_value: int = 1
    """E_V: passes for the value function in the policy phase (only 1 is supported)"""
    e_auxiliary: int = 6
    """E_aux: passes over all rollouts of the phase in the auxiliary phase"""
    beta_clone: float = 1.0
    """coefficient of the KL divergence that keeps the policy as it is in the auxiliary phase"""
    num_aux_rollouts: int = 4
    """rollouts, of one environment each, in a minibatch of the auxiliary phase"""
    n_aux_grad_accum: int = 1
    """minibatches of the auxiliary phase whose gradients add up to one step of the optimizer"""
    bf16: bool = False
    """compute the convolutions in bfloat16: faster, at a lower precision"""

    # Computed at run time
    batch_size: int = 0
    """num_envs * num_steps"""
    minibatch_size: int = 0
    """batch_size // num_minibatches"""
    num_iterations: int = 0
    """total_timesteps // batch_size"""
    num_phases: int = 0
    """num_iterations / n_iteration, rounded up: the last phase may be shorter"""
    aux_batch_rollouts: int = 0
    """num_envs * n_iteration, the rollouts of one environment each in a phase"""


def make_envs(env_id, num_envs, capture_video, run_dir):
    import envpool  # differs from ppo_atari_envpool.py: it plays the games of Procgen

    if "-" not in env_id:  # the name of a game: play its easy levels
        env_id = f"{env_id.capitalize()}Easy-v0"
    render_mode = "rgb_array" if capture_video else None  # for films of the evaluation
    seed = random.getrandbits(30)  # another one for each pool
    # num_levels=0: each episode is a new level, out of two billion
    return envpool.make_gymnasium(
        env_id, num_envs=num_envs, num_levels=0, start_level=0, seed=seed, render_mode=render_mode
    )


def layer_init(layer, norm):  # differs from ppo_procgen.py: the weights of each output have a given norm, no bias
    inputs = tuple(range(1, layer.weight.dim()))
    with torch.no_grad():
        layer.weight.mul_(norm / torch.linalg.vector_norm(layer.weight, dim=inputs, keepdim=True))
        layer.bias.zero_()
    return layer


class ResidualBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        # differs from ppo_procgen.py: the two layers of a block scale by 1 / sqrt(6) together, as there are 6 blocks
        self.conv1 = layer_init(nn.Conv2d(channels, channels, 3, padding=1), norm=6**-0.25)
        self.conv2 = layer_init(nn.Conv2d(channels, channels, 3, padding=1), norm=6**-0.25)

    def forward(self, x):
        y = self.conv1(x.relu())
        return x + self.conv2(y.relu())


class ConvSequence(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        # differs from ppo_procgen.py: normalized weights
        self.conv = layer_init(nn.Conv2d(in_channels, out_channels, 3, padding=1), norm=1.0)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)  # half of the height and width
        self.block1 = ResidualBlock(out_channels)
        self.block2 = ResidualBlock(out_channels)

    def forward(self, x):
        x = self.pool(self.conv(x))
        return self.block2(self.block1(x))


class Agent(nn.Module):
    def __init__(self, envs):
        super().__init__()
        num_actions = int(envs.single_action_space.n)
        self.network = nn.Sequential(  # differs from ppo_atari_envpool.py: the network of Espeholt et al. 2018 (IMPALA)
            ConvSequence(3, 16),
            ConvSequence(16, 32),
            ConvSequence(32, 32),
            nn.ReLU(),
            nn.Flatten(),
            layer_init(nn.Linear(2048, 256), norm=1.4),
            nn.ReLU(),
        )
        self.critic = layer_init(nn.Linear(256, 1), norm=0.1)
        self.actor = layer_init(nn.Linear(256, num_actions), norm=0.1)
        self.aux_critic = layer_init(nn.Linear(256, 1), norm=0.1)  # differs from ppo_procgen.py: another value head
        self.bf16 = False
        self.return_mean = nn.Buffer(torch.tensor(0.0))  # statistics of the discounted returns, saved with the model
        self.return_var = nn.Buffer(torch.tensor(1.0))
        self.return_count = nn.Buffer(torch.tensor(0.0))

    def get_features(self, x):
        x = x.contiguous(memory_format=torch.channels_last)  # a layout in memory that suits convolutions
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.bf16):
            return self.network(x / 255).float()  # Atari detail 9: pixels are scaled to [0, 1]

    def get_value(self, x):
        x = self.get_features(x)
        return self.critic(x).squeeze(-1)

    @torch.inference_mode()
    def get_action(self, x, deterministic=False):
        x = self.get_features(x)
        logits = self.actor(x)
        if not deterministic:
            # Gumbel-max trick: argmax(logits - log(E)) with E ~ Exponential(1) is a sample of softmax(logits)
            logits = logits - torch.empty_like(logits).exponential_().log()
        return logits.argmax(-1)

    def evaluate_actions(self, x, action):
        """The log-probability of each action, the entropy of the policy there, and the value of the observation."""
        x = self.get_features(x)
        all_logprobs = self.actor(x).log_softmax(-1)
        logprob = all_logprobs.gather(-1, action.unsqueeze(-1)).squeeze(-1)
        entropy = -(all_logprobs.exp() * all_logprobs).sum(-1)
        return logprob, entropy, self.critic(x.detach()).squeeze(-1)  # the value does not train the features

    def evaluate_auxiliary(self, x):
        """The log-probabilities of all actions, the value of the observation, and its value by the auxiliary head."""
        x = self.get_features(x)
        all_logprobs = self.actor(x).log_softmax(-1)
        return all_logprobs, self.critic(x.detach()).squeeze(-1), self.aux_critic(x).squeeze(-1)


class AuxiliaryBuffer:
    """The rollouts of a phase. A row holds what one environment played in one iteration, observations as bytes."""

    def __init__(self, size, num_steps, obs_shape, device):
        self.obs = torch.zeros((size, num_steps, *obs_shape), dtype=torch.uint8, device=device)
        self.returns = torch.zeros((size, num_steps), device=device)
        self.valid = torch.zeros((size, num_steps), dtype=torch.bool, device=device)
        self.num_rows = 0

    def add(self, obs, returns, valid):  # (num_steps, num_envs, ...)
        rows = slice(self.num_rows, self.num_rows + obs.shape[1])
        self.obs[rows] = obs.transpose(0, 1)
        self.returns[rows] = returns.transpose(0, 1)
        self.valid[rows] = valid.transpose(0, 1)
        self.num_rows = rows.stop

    def get(self, rows, device):  # all steps of some rows, one after the other
        obs = self.obs[rows].flatten(0, 1).to(device)
        returns = self.returns[rows].flatten().to(device)
        valid = self.valid[rows].flatten().to(device)
        return obs, returns, valid

    def state_dict(self):
        return {
            "obs": self.obs[: self.num_rows].cpu(),
            "returns": self.returns[: self.num_rows].cpu(),
            "valid": self.valid[: self.num_rows].cpu(),
        }

    def load_state_dict(self, state):
        self.num_rows = len(state["obs"])
        self.obs[: self.num_rows] = state["obs"]
        self.returns[: self.num_rows] = state["returns"]
        self.valid[: self.num_rows] = state["valid"]


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


def ppo_loss(newlogprobs, entropy, newvalues, logprobs, advantages, returns, values, valid, args):
    """The loss, given `logprobs` and `values` of the rollout, and a dictionary of what to log (detail 12)."""
    weights = valid / valid.sum().clamp(min=1)  # differs from ppo_atari.py: `weights @ x` is the mean of valid steps
    logratio = newlogprobs - logprobs
    ratio = logratio.exp()
    # differs from ppo_procgen.py: the advantages of the whole rollout are normalized already
    # detail 8: clipped surrogate objective (Schulman et al. 2017, eq. 7)
    clipped_ratio = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
    policy_loss = -weights @ torch.min(advantages * ratio, advantages * clipped_ratio)
    # detail 9: the value loss is clipped, too: moving a value by more than clip_coef gains nothing
    value_loss = (newvalues - returns) ** 2
    if args.clip_vloss:
        clipped_values = values + (newvalues - values).clamp(-args.clip_coef, args.clip_coef)
        value_loss = torch.max(value_loss, (clipped_values - returns) ** 2)
    value_loss = 0.5 * (weights @ value_loss)
    # detail 10: the overall loss has an entropy bonus (Schulman et al. 2017, eq. 9)
    entropy = weights @ entropy
    loss = policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss
    with torch.no_grad():
        stats = {
            "value_loss": value_loss.detach(),
            "policy_loss": policy_loss.detach(),
            "entropy": entropy.detach(),
            "old_approx_kl": weights @ -logratio,
            "approx_kl": weights @ (ratio - 1 - logratio),  # less noisy: joschu.net/blog/kl-approx.html
            "clipfrac": weights @ (ratio != clipped_ratio).float(),
        }
    return loss, stats


def auxiliary_loss(newlogprobs, newvalues, newauxvalues, logprobs, returns, valid, args):
    """The loss of a minibatch of the auxiliary phase (Cobbe et al. 2020, section 2), and what to log."""
    weights = valid / valid.sum().clamp(min=1)
    kl_loss = weights @ (logprobs.exp() * (logprobs - newlogprobs)).sum(-1)  # from the policy before this phase
    aux_value_loss = weights @ (0.5 * (newauxvalues - returns) ** 2)
    real_value_loss = weights @ (0.5 * (newvalues - returns) ** 2)
    loss = aux_value_loss + args.beta_clone * kl_loss + real_value_loss
    stats = {
        "kl_loss": kl_loss.detach(),
        "aux_value_loss": aux_value_loss.detach(),
        "real_value_loss": real_value_loss.detach(),
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
    args.num_phases = math.ceil(args.num_iterations / args.n_iteration)
    args.aux_batch_rollouts = args.num_envs * args.n_iteration
    if args.v_value != 1:
        sys.exit(f"--v-value {args.v_value}: must be 1, as policy and value are updated together; see --e-policy")
    if args.capture_video:
        sys.exit("--capture-video: only an evaluation can be filmed: cleanrl_utils.evaluate RUN_DIR --capture-video")

    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # for determinism on a GPU
    torch.use_deterministic_algorithms(args.torch_deterministic)
    torch.set_num_threads(1)  # on matrices this small, threads cost more time than they save
    device = torch.device("cuda" if torch.cuda.is_available() and args.cuda else "cpu")

    run_name = f"{args.env_id.replace('/', '_')}__{args.exp_name}__{args.seed}__{int(time.time())}"
    run_dir = args.resume or f"runs/{run_name}"
    scores = np.zeros(args.num_envs)  # of the games so far; a resumed run starts new games
    try:
        pool_size = min(32, (args.num_envs + 1) // 2)  # two pools or more: one gets its actions while others play
        columns = [slice(i, i + pool_size) for i in range(0, args.num_envs, pool_size)]
        envs = [make_envs(args.env_id, len(scores[c]), args.capture_video, run_dir) for c in columns]
    except Exception as error:  # an unknown id, a package that is missing, actions of another kind
        sys.exit(run.explain_env_error(args.env_id, error) if run else f"{args.env_id}: {error}")
    agent = Agent(envs[0]).to(device)
    agent.bf16 = args.bf16
    learning_rate = torch.tensor(args.learning_rate, device=device)  # a tensor: a recorded update sees it change
    optimizer = torch.optim.Adam(agent.parameters(), learning_rate, eps=1e-8, fused=True)  # its usual epsilon

    def update(mb_obs, mb_actions, mb_logprobs, mb_advantages, mb_returns, mb_values, mb_valid):
        optimizer.zero_grad()
        newlogprobs, entropy, newvalues = agent.evaluate_actions(mb_obs, mb_actions)
        loss, stats = ppo_loss(
            newlogprobs, entropy, newvalues, mb_logprobs, mb_advantages, mb_returns, mb_values, mb_valid, args
        )
        loss.backward()
        # detail 11: the norm of the whole gradient is clipped
        stats["grad_norm"] = nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
        optimizer.step()
        return stats

    def update_auxiliary(mb_obs, mb_logprobs, mb_returns, mb_valid):
        optimizer.zero_grad()
        parts = torch.arange(len(mb_obs), device=device).split(args.num_aux_rollouts * args.num_steps)
        for part in parts:  # their gradients add up, which takes less memory than to compute them at once
            newlogprobs, newvalues, newauxvalues = agent.evaluate_auxiliary(mb_obs[part])
            loss, stats = auxiliary_loss(
                newlogprobs,
                newvalues,
                newauxvalues,
                mb_logprobs[part],
                mb_returns[part],
                mb_valid[part],
                args,
            )
            (loss / len(parts)).backward()
        nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
        optimizer.step()
        agent.aux_critic.zero_grad()  # as a recorded `update` cannot remove this gradient
        return stats  # of the last part

    # Storage: observations are on the device, where the policy needs them; the rest goes there after a rollout
    next_obs = np.concatenate([pool.reset()[0] for pool in envs])
    rollout_shape = (args.num_steps, args.num_envs)
    obs = torch.zeros(args.num_steps, *next_obs.shape, dtype=torch.uint8, device=device)
    actions = np.zeros(rollout_shape, dtype=np.int64)
    rewards = np.zeros(rollout_shape, dtype=np.float32)
    terminations = np.zeros(rollout_shape, dtype=bool)
    truncations = np.zeros(rollout_shape, dtype=bool)
    valid = np.zeros_like(terminations)  # steps that were played: not the resets of EnvPool
    discounted_returns = np.zeros_like(rewards)
    obs_shape = next_obs.shape[1:]
    if run:  # on the device if there is room, else in the memory of the machine
        aux_buffer = run.place_buffer(
            AuxiliaryBuffer,
            args.aux_batch_rollouts,
            args.num_steps,
            obs_shape,
            device=device,
            flag="--num-envs x --n-iteration =",
            trial=10,
        )
    else:
        aux_buffer = AuxiliaryBuffer(args.aux_batch_rollouts, args.num_steps, obs_shape, "cpu")
    print(f"the auxiliary buffer takes {aux_buffer.obs.nbytes / 1e9:.1f} GB of memory ({aux_buffer.obs.device})")

    # State: what a checkpoint saves and a resumed run restores, in addition to flags and random generators
    state = {
        "global_step": 0,
        "next_obs": next_obs,
        "running_return": np.zeros(args.num_envs),
        "recent_returns": deque(maxlen=100),
        "envs": envs,
        "agent": agent,
        "optimizer": optimizer,
        "aux_buffer": aux_buffer,
    }
    if args.resume:
        run.restore(checkpoint, state)  # fills `state`, which is read below
    global_step = state["global_step"]
    next_obs = state["next_obs"]
    running_return = state["running_return"]  # the discounted rewards of each episode so far
    recent_returns = state["recent_returns"]

    turns = [(step, pool, column) for step in range(args.num_steps + 1) for pool, column in zip(envs, columns)]
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
        for step, pool, column in turns:
            last = (step - 1, column)  # at step 0, this is the last step of the rollout before
            if step > 0:  # what came of the last actions, which were played in the meantime
                next_obs[column], rewards[last], terminations[last], truncations[last], infos = pool.recv()
                dones = terminations[last] | truncations[last]
                scores[column] += rewards[last]
                running_return[column] = args.gamma * running_return[column] + rewards[last]
                discounted_returns[last] = running_return[column]
                running_return[column] *= ~dones
                for idx in np.flatnonzero(dones):
                    recent_returns.append(scores[column][idx])
                    episode_step = global_step + idx + 1  # one step per environment
                    writer.add_scalar("charts/episodic_return", scores[column][idx], episode_step)
                    writer.add_scalar("charts/episodic_length", infos["elapsed_step"][idx], episode_step)
                    scores[column][idx] = 0
                global_step += len(dones)
            if step < args.num_steps:  # the pool plays its next actions in the background
                obs[step, column] = torch.as_tensor(next_obs[column])
                valid[step, column] = ~(terminations[last] | truncations[last])  # else a mere reset
                actions[step, column] = act(obs[step, column]).cpu().numpy()
                pool.send(actions[step, column])

        # Targets
        b_obs = obs.flatten(0, 1)  # b_: all steps of the batch in one dimension
        b_actions = torch.as_tensor(actions, device=device).flatten(0, 1)
        torch_rewards = torch.as_tensor(rewards, device=device)  # (num_steps, num_envs)
        torch_terminations = torch.as_tensor(terminations, device=device)
        torch_truncations = torch.as_tensor(truncations, device=device)
        b_valid = torch.as_tensor(valid, device=device).flatten()
        b_discounted_returns = torch.as_tensor(discounted_returns, device=device).flatten()[b_valid]
        with torch.no_grad():
            if valid.any():  # not so in a short rollout that holds nothing but resets
                agent.return_count += len(b_discounted_returns)
                share = len(b_discounted_returns) / agent.return_count  # of this rollout among all steps so far
                merge_stats(agent.return_mean, agent.return_var, b_discounted_returns, share)
            torch_rewards = (torch_rewards / (agent.return_var + 1e-8).sqrt()).clamp(-10, 10)
            b_logprobs, _, b_values = agent.evaluate_actions(b_obs, b_actions)
            values = b_values.view_as(torch_rewards)  # (num_steps, num_envs)
            next_values = values.roll(-1, dims=0)  # V(s[t+1]); exceptions are set below
            next_values[-1] = agent.get_value(torch.as_tensor(next_obs).to(obs))  # to the dtype and device of obs
            advantages, returns = compute_gae(
                torch_rewards, torch_terminations, torch_truncations, values, next_values, args.gamma, args.gae_lambda
            )

        # Update
        b_advantages = advantages.flatten(0, 1)
        if args.adv_norm_fullbatch and valid.sum() > 1:  # one step has no standard deviation
            played = b_advantages[b_valid]
            b_advantages = (b_advantages - played.mean()) / (played.std() + 1e-8)
        b_returns = returns.flatten(0, 1)
        all_stats = []
        for _epoch in range(args.e_policy):  # detail 6: several epochs of minibatch updates
            b_inds = torch.randperm(args.batch_size, device=device)
            for mb in b_inds.split(args.minibatch_size):
                stats = update(
                    b_obs[mb], b_actions[mb], b_logprobs[mb], b_advantages[mb], b_returns[mb], b_values[mb], b_valid[mb]
                )
                all_stats.append(stats)
            if args.target_kl is not None and stats["approx_kl"] > args.target_kl:
                break

        # Auxiliary phase: after n_iteration iterations, and at the end of the training
        aux_buffer.add(obs, returns, b_valid.view_as(returns))
        all_aux_stats = []
        if aux_buffer.num_rows == args.aux_batch_rollouts or iteration == args.num_iterations:
            phase = math.ceil(iteration / args.n_iteration)
            progress.set_description(f"auxiliary phase {phase} of {args.num_phases}")
            aux_logprobs = []  # of the policy as it is now, and shall stay
            for mb in torch.arange(aux_buffer.num_rows).split(args.num_aux_rollouts):
                mb_obs, _, _ = aux_buffer.get(mb, device)
                with torch.no_grad():
                    mb_logprobs, _, _ = agent.evaluate_auxiliary(mb_obs)
                aux_logprobs.append(mb_logprobs.unflatten(0, (len(mb), args.num_steps)))
            aux_logprobs = torch.cat(aux_logprobs)  # (rows, num_steps, num_actions)
            for _epoch in range(args.e_auxiliary):
                b_inds = torch.randperm(aux_buffer.num_rows)
                for mb in b_inds.split(args.num_aux_rollouts * args.n_aux_grad_accum):
                    mb_obs, mb_returns, mb_valid = aux_buffer.get(mb, device)
                    mb_logprobs = aux_logprobs[mb].flatten(0, 1)
                    aux_stats = update_auxiliary(mb_obs, mb_logprobs, mb_returns, mb_valid)
                    all_aux_stats.append(aux_stats)
            aux_buffer.num_rows = 0
            progress.set_description()

        # Log: the means over all minibatches of this iteration. A number that is not finite ends the run.
        means = {name: torch.stack([x[name] for x in all_stats]).mean() for name in stats}
        if all_aux_stats:
            for name in aux_stats:
                means[f"aux/{name}"] = torch.stack([stats[name] for stats in all_aux_stats]).mean()
        checked = {"obs": obs, "rewards": torch_rewards} | means
        for name, x in checked.items():
            if not x.isfinite().all():
                raise FloatingPointError(f"{name} is not finite at global_step={global_step}")
        means["explained_variance"] = 1 - (b_returns - b_values)[b_valid].var() / b_returns[b_valid].var()
        for name, x in means.items():
            writer.add_scalar(f"losses/{name}", x, global_step)
        writer.add_scalar("charts/learning_rate", learning_rate, global_step)
        sps = args.batch_size / (time.perf_counter() - start_time)
        writer.add_scalar("charts/SPS", sps, global_step)
        recent_return = np.mean(recent_returns or [np.nan])
        writer.add_scalar("charts/avg_episodic_return", recent_return, global_step)
        progress.set_postfix(episodic_return=recent_return, refresh=False)
        progress.update(args.batch_size)
        if progress.disable and iteration % (args.num_iterations // 20 + 1) == 0:  # no terminal: 20 lines at most
            print(f"global_step={global_step}, episodic_return={recent_return:.1f}, SPS={sps:.0f}")

        # Checkpoint: regularly, and on Ctrl+C or SIGTERM; then `save_checkpoint` also ends the program. Within a
        # phase it holds gigabytes of observations, so there it is saved only on a signal, or after ten minutes
        steps = 0 if aux_buffer.num_rows else args.n_iteration * args.batch_size
        if run and run.checkpoint_due(args, global_step, steps):
            state.update(global_step=global_step, next_obs=next_obs)
            run.save_checkpoint(run_dir, args, __file__, writer, state)

    progress.close()
    if args.save_model:
        metadata = {"args": json.dumps(vars(args)), "global_step": str(global_step)}
        save_file(agent.state_dict(), f"{run_dir}/{args.exp_name}.safetensors", metadata)
    if run:  # evaluates, uploads, and says where everything is
        run.finish(run_dir, args, writer, make_envs, load_policy, recent_returns)
    writer.close()
