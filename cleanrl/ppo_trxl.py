"""Proximal Policy Optimization (PPO) with a Transformer-XL: each step attends to a window of its episode's past steps.

Paper:   https://arxiv.org/abs/2309.17207 (Pleines et al. 2023), https://arxiv.org/abs/1901.02860 (Dai et al. 2019)
Details: https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details/ (Huang et al. 2022)
Docs:    docs/rl-algorithms/ppo_trxl.md
Parent:  ppo_atari_lstm.py
Run:     python cleanrl/ppo_trxl.py --env-id MiniGrid-MemoryS7-v0
"""

import signal

if __name__ == "__main__":  # Ctrl+C during the imports below ends the program without a traceback
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import json
import os
import random
import re
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
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

MAX_POSITIONS = 1024  # of positional encodings: an episode that lasts longer starts to count again


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
    env_id: str = "MiniGrid-MemoryS7-v0"
    """the id of the environment"""
    total_timesteps: int = 5_000_000
    """environment steps of the whole run, all environments together"""
    init_lr: float = 2.75e-4
    """the learning rate of the optimizer at the start"""
    final_lr: float = 1e-5
    """the learning rate from `anneal_steps` on"""
    num_envs: int = 32
    """the number of parallel environments"""
    num_steps: int = 512
    """steps of each environment in a rollout"""
    anneal_steps: int = 32 * 512 * 10_000
    """environment steps over which the learning rate and the entropy coefficient are annealed linearly"""
    gamma: float = 0.995
    """the discount factor"""
    gae_lambda: float = 0.95
    """the lambda of generalized advantage estimation"""
    num_minibatches: int = 8
    """minibatches per epoch"""
    update_epochs: int = 3
    """passes over each rollout"""
    norm_adv: bool = False
    """normalize the advantages of each minibatch"""
    clip_coef: float = 0.1
    """the clipping range of the surrogate objective"""
    clip_vloss: bool = True
    """clip the value loss as well"""
    init_ent_coef: float = 1e-4
    """coefficient of the entropy bonus at the start"""
    final_ent_coef: float = 1e-6
    """coefficient of the entropy bonus from `anneal_steps` on"""
    vf_coef: float = 0.5
    """coefficient of the value loss"""
    max_grad_norm: float = 0.25
    """the maximum norm of the gradient"""
    target_kl: float | None = None
    """skip the remaining epochs if the KL divergence exceeds this after one of them"""
    trxl_num_layers: int = 3
    """the number of layers of the transformer"""
    trxl_num_heads: int = 4
    """the number of attention heads in each layer"""
    trxl_dim: int = 384
    """the number of features in each layer"""
    trxl_memory_length: int = 119
    """how many past steps of its episode a step attends to"""
    trxl_positional_encoding: Literal["absolute", "learned", "none"] = "absolute"
    """what tells the age of a memory: sines and cosines of its step in the episode, a learned vector, or nothing"""
    reconstruction_coef: float = 0.0
    """coefficient of the loss of drawing the 84x84 picture again from the hidden state (0: no such loss)"""

    # Computed at run time
    batch_size: int = 0
    """num_envs * num_steps"""
    minibatch_size: int = 0
    """batch_size // num_minibatches"""
    num_iterations: int = 0
    """total_timesteps // batch_size"""


def make_env(env_id, idx, capture_video, run_dir):
    def thunk():  # differs from ppo_atari_lstm.py: tasks that need a memory, from several packages
        is_filmed = capture_video and idx == 0
        env_name = env_id
        if env_id.startswith("MiniGrid-"):
            env_name = f"minigrid:{env_id}"
        elif re.match("(Endless-)?(MortarMayhem|MysteryPath|SearingSpotlights)", env_id):
            env_name = f"memory_gym:{env_id}"
        env = gym.make(env_name, render_mode="rgb_array") if is_filmed else gym.make(env_name)
        if env_name.startswith("minigrid:"):
            from minigrid.wrappers import OneHotPartialObsWrapper

            env = OneHotPartialObsWrapper(env)  # the 7x7 fields ahead: object, color and state, one-hot
            env = gym.wrappers.FilterObservation(env, ["image"])
        action_space = env.action_space
        if isinstance(action_space, gym.spaces.MultiDiscrete):  # each combination becomes an action
            sizes = action_space.nvec
            combinations = gym.spaces.Discrete(int(sizes.prod()))
            env = gym.wrappers.TransformAction(
                env, lambda action: np.array(np.unravel_index(action, sizes)), combinations
            )
        elif not isinstance(action_space, gym.spaces.Discrete):
            raise ValueError(f"its actions are {action_space}, and this file is for discrete ones")
        elif action_space.start != 0:  # the policy counts actions from 0, this environment does not
            from_0 = gym.spaces.Discrete(action_space.n)
            env = gym.wrappers.TransformAction(env, lambda action: action + action_space.start, from_0)
        if env.observation_space.shape != (84, 84, 3):  # all but such pictures become one vector
            env = gym.wrappers.FlattenObservation(env)
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


def sinusoidal_encodings(num_positions, dim):
    """Sines and cosines of each position, at wavelengths from 2 pi to 10,000 * 2 pi (Vaswani et al. 2017, 3.5)."""
    frequencies = 10_000 ** (-torch.arange(0, dim, 2) / dim)
    angles = torch.arange(num_positions).unsqueeze(-1) * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=-1)  # (num_positions, dim)


def visible_memories(positions, memory_length):
    """Which memories each step may attend to: the last `memory_length` ones, and none from before its episode.

    `positions` (num_steps, num_envs) counts the steps that came before in the episode. The memories are those of
    the `memory_length` steps before the first of these steps, and then those of the steps themselves but the last.
    """
    rows = torch.arange(memory_length + len(positions), device=positions.device)
    ages = rows[memory_length:].unsqueeze(1) - rows[:-1]  # how many steps ago each memory was made
    is_recent = (ages >= 1) & (ages <= memory_length)
    is_of_episode = ages <= positions.T.unsqueeze(-1)
    return is_recent & is_of_episode  # (num_envs, num_steps, num_memories)


class TransformerLayer(nn.Module):
    """Attention to the memories, then a feed-forward layer; both are added to what they start from."""

    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        head_size = dim // num_heads
        self.norm_x = nn.LayerNorm(dim)
        self.norm_memory = nn.LayerNorm(dim)
        self.norm_attention = nn.LayerNorm(dim)
        # Each head has its own part of the features, and all heads share the weights of these three layers
        self.query = nn.Linear(head_size, head_size, bias=False)
        self.key = nn.Linear(head_size, head_size, bias=False)
        self.value = nn.Linear(head_size, head_size, bias=False)
        self.attention = layer_init(nn.Linear(dim, dim))
        self.feed_forward = layer_init(nn.Linear(dim, dim))

    def forward(self, x, memory, visible):
        # x: (num_steps, num_envs, dim), memory: (num_memories, num_envs, dim)
        heads = (self.num_heads, -1)  # from (..., dim) to (..., num_heads, head_size)
        query = self.query(self.norm_x(x).unflatten(-1, heads))
        memory = self.norm_memory(memory).unflatten(-1, heads)
        key = self.key(memory)
        value = self.value(memory)
        # Vaswani et al. 2017, eq. 1, for each environment e and head h: steps s attend to memories m
        energy = torch.einsum("sehd,mehd->ehsm", query, key)
        energy = energy / query.shape[-1] ** 0.5  # the square root of the head size
        visible = visible.unsqueeze(1)  # for all heads alike
        weights = energy.masked_fill(~visible, -1e9).softmax(-1)
        weights = weights * visible  # without memories, in the first step of an episode, all are zero
        attended = torch.einsum("ehsm,mehd->sehd", weights, value)
        x = x + self.attention(attended.flatten(-2))
        return x + self.feed_forward(self.norm_attention(x)).relu()


class Agent(nn.Module):
    def __init__(self, envs, args):
        super().__init__()
        num_actions = int(envs.single_action_space.n)
        obs_shape = envs.single_observation_space.shape
        dim = args.trxl_dim
        self.sees_pixels = len(obs_shape) == 3
        if self.sees_pixels:
            self.network = nn.Sequential(  # differs from ppo.py: Atari detail 8, a shared network (Mnih et al. 2015)
                layer_init(nn.Conv2d(3, 32, 8, stride=4)),
                nn.ReLU(),
                layer_init(nn.Conv2d(32, 64, 4, stride=2)),
                nn.ReLU(),
                layer_init(nn.Conv2d(64, 64, 3)),
                nn.ReLU(),
                nn.Flatten(),
                layer_init(nn.Linear(3136, dim)),
                nn.ReLU(),
            )
        else:
            self.network = nn.Sequential(
                layer_init(nn.Linear(obs_shape[0], dim)),
                nn.ReLU(),
            )
            self.obs_mean = nn.Buffer(torch.zeros(obs_shape[0]))  # statistics, saved with the model
            self.obs_var = nn.Buffer(torch.ones(obs_shape[0]))
        # differs from ppo_atari_lstm.py: a transformer in the place of the LSTM
        self.layers = nn.ModuleList()
        for _ in range(args.trxl_num_layers):
            self.layers.append(TransformerLayer(dim, args.trxl_num_heads))
        if args.trxl_positional_encoding == "absolute":
            self.encodings = nn.Buffer(sinusoidal_encodings(MAX_POSITIONS, dim), persistent=False)
        elif args.trxl_positional_encoding == "learned":
            self.encodings = nn.Parameter(torch.randn(MAX_POSITIONS, dim))
        else:
            self.encodings = None
        self.hidden = layer_init(nn.Linear(dim, dim))
        # Values start close to zero: if they start too high, to put off the end of an episode seems to pay
        self.critic = layer_init(nn.Linear(dim, 1), std=0.1)
        self.actor = layer_init(nn.Linear(dim, num_actions), std=0.1)
        if args.reconstruction_coef > 0:
            self.decoder = nn.Sequential(  # the convolutions backwards
                layer_init(nn.Linear(dim, 3136)),
                nn.ReLU(),
                nn.Unflatten(1, (64, 7, 7)),
                layer_init(nn.ConvTranspose2d(64, 64, 3)),
                nn.ReLU(),
                layer_init(nn.ConvTranspose2d(64, 32, 4, stride=2)),
                nn.ReLU(),
                layer_init(nn.ConvTranspose2d(32, 3, 8, stride=4)),
                nn.Sigmoid(),
            )

    def get_features(self, x):
        if self.sees_pixels:
            x = x.permute(0, 3, 1, 2) / 255  # Atari detail 9: pixels are scaled to [0, 1]
        else:  # so that what always looks the same does not drown what is worth remembering
            x = ((x - self.obs_mean) / (self.obs_var + 1e-8).sqrt()).clamp(-10, 10)
        return self.network(x)

    def transformer(self, x, memory, positions):
        """The hidden state of each step, and what later steps may attend to: the input of each layer.

        x: (num_steps, num_envs, dim), memory: (memory_length + num_steps - 1, num_envs, num_layers, dim),
        positions: (num_steps, num_envs).
        """
        memory_length = len(memory) - len(x) + 1
        visible = visible_memories(positions, memory_length)
        # The position in its episode at which each memory was made; it is only right for visible ones
        ages = torch.arange(memory_length, 0, -1, device=x.device)
        before = positions[0] - ages.unsqueeze(-1)
        memory_positions = torch.cat([before, positions[:-1]]) % MAX_POSITIONS
        new_memory = []
        for number, layer in enumerate(self.layers):
            new_memory.append(x)
            layer_memory = memory[:, :, number]
            if self.encodings is not None:
                layer_memory = layer_memory + self.encodings[memory_positions]
            x = layer(x, layer_memory, visible)
        return self.hidden(x).relu(), torch.stack(new_memory, dim=2)

    def get_value(self, x, memory, position):
        x = self.get_features(x).unsqueeze(0)  # a single step
        x, _ = self.transformer(x, memory, position.unsqueeze(0))
        return self.critic(x[0]).squeeze(-1)

    @torch.inference_mode()
    def get_action(self, x, memory, position, deterministic=False):
        x = self.get_features(x).unsqueeze(0)
        x, new_memory = self.transformer(x, memory, position.unsqueeze(0))
        memory = torch.cat([memory[1:], new_memory])  # the window moves on by one step
        logits = self.actor(x[0])
        if not deterministic:
            # Gumbel-max trick: argmax(logits - log(E)) with E ~ Exponential(1) is a sample of softmax(logits)
            logits = logits - torch.empty_like(logits).exponential_().log()
        return logits.argmax(-1), memory, position + 1

    def evaluate_actions(self, x, memory, positions, action):
        """The log-probability of each action, the entropy of the policy there, and the value of the observation."""
        # differs from ppo_atari_lstm.py: all steps at once, with the memories of the rollout; also the hidden states
        x = self.get_features(x.flatten(0, 1)).unflatten(0, action.shape)
        x, _ = self.transformer(x, memory, positions)
        all_logprobs = self.actor(x).log_softmax(-1)
        logprob = all_logprobs.gather(-1, action.unsqueeze(-1)).squeeze(-1)
        entropy = -(all_logprobs.exp() * all_logprobs).sum(-1)
        return logprob, entropy, self.critic(x).squeeze(-1), x

    def reconstruction_loss(self, hidden, x):
        """How well the pictures can be drawn again from the hidden states: the cross-entropy of their pixels."""
        drawn = self.decoder(hidden.flatten(0, 1))
        pixels = x.flatten(0, 1).permute(0, 3, 1, 2) / 255
        return nn.functional.binary_cross_entropy(drawn, pixels)


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


def ppo_loss(newlogprobs, entropy, newvalues, logprobs, advantages, returns, values, ent_coef, args):
    """The loss, given `logprobs` and `values` of the rollout, and a dictionary of what to log (detail 12)."""
    logratio = newlogprobs - logprobs
    ratio = logratio.exp()
    if args.norm_adv:  # detail 7: advantages are normalized in each minibatch
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    # detail 8: clipped surrogate objective (Schulman et al. 2017, eq. 7)
    clipped_ratio = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
    policy_loss = -torch.min(advantages * ratio, advantages * clipped_ratio).mean()
    # detail 9: the value loss is clipped, too: moving a value by more than clip_coef gains nothing
    # differs from ppo_atari_lstm.py: not halved, as in Pleines et al.; and the entropy coefficient is annealed
    value_loss = (newvalues - returns) ** 2
    if args.clip_vloss:
        clipped_values = values + (newvalues - values).clamp(-args.clip_coef, args.clip_coef)
        value_loss = torch.max(value_loss, (clipped_values - returns) ** 2)
    value_loss = value_loss.mean()
    # detail 10: the overall loss has an entropy bonus (Schulman et al. 2017, eq. 9)
    entropy = entropy.mean()
    loss = policy_loss - ent_coef * entropy + args.vf_coef * value_loss
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
    # differs from ppo_atari_lstm.py: the sizes of the network are among the saved arguments
    with safe_open(model_path, "pt") as file:
        metadata = file.metadata()
    args = Args(**json.loads(metadata["args"]))
    agent = Agent(envs, args).to(device)
    agent.load_state_dict(load_file(model_path, device=str(device)))

    def policy(obs):
        x = torch.as_tensor(obs, dtype=torch.float32, device=device)
        action, memory, position = agent.get_action(x, policy.memory, policy.position, deterministic)
        policy.memory = memory
        policy.position = position
        return action.cpu().numpy()

    def reset(dones):  # differs from ppo_atari.py: after each step, forgets the episodes that ended
        is_over = torch.as_tensor(dones, device=device)
        policy.position = policy.position * ~is_over

    memory_shape = (args.trxl_memory_length, envs.num_envs, args.trxl_num_layers, args.trxl_dim)
    policy.memory = torch.zeros(memory_shape, device=device)
    policy.position = torch.zeros(envs.num_envs, dtype=torch.int64, device=device)
    policy.reset = reset
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
    if args.num_envs % args.num_minibatches != 0:
        sys.exit(f"{args.num_envs} envs do not make {args.num_minibatches} minibatches of whole envs")
    twice_heads = 2 * args.trxl_num_heads  # heads of one size, and as many sines as cosines
    if args.trxl_dim % twice_heads != 0:
        sys.exit(f"--trxl-dim {args.trxl_dim}: must be a multiple of {twice_heads}, twice the heads")
    if args.trxl_memory_length > MAX_POSITIONS:  # or two memories would seem to be of the same age
        sys.exit(f"--trxl-memory-length {args.trxl_memory_length}: must be at most {MAX_POSITIONS}")
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
    agent = Agent(envs, args).to(device)
    if args.reconstruction_coef > 0 and not agent.sees_pixels:
        sys.exit(f"--reconstruction-coef is for pictures of 84x84 pixels; {args.env_id} has none")
    learning_rate = torch.tensor(args.init_lr, device=device)  # a tensor: a recorded update sees it change
    ent_coef = torch.tensor(args.init_ent_coef, device=device)
    optimizer = torch.optim.AdamW(agent.parameters(), learning_rate, fused=True)

    def update(mb_obs, mb_memory, mb_positions, mb_actions, mb_logprobs, mb_advantages, mb_returns, mb_values):
        optimizer.zero_grad()
        newlogprobs, entropy, newvalues, hidden = agent.evaluate_actions(mb_obs, mb_memory, mb_positions, mb_actions)
        loss, stats = ppo_loss(
            newlogprobs, entropy, newvalues, mb_logprobs, mb_advantages, mb_returns, mb_values, ent_coef, args
        )
        if args.reconstruction_coef > 0:
            reconstruction_loss = agent.reconstruction_loss(hidden, mb_obs)
            loss = loss + args.reconstruction_coef * reconstruction_loss
            stats["reconstruction_loss"] = reconstruction_loss.detach()
        stats["loss"] = loss.detach()
        loss.backward()
        # detail 11: the norm of the whole gradient is clipped
        stats["grad_norm"] = nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
        optimizer.step()
        return stats

    # Storage: observations are on the device, where the policy needs them; the rest goes there after a rollout
    next_obs, _ = envs.reset(seed=args.seed)
    rollout_shape = (args.num_steps, args.num_envs)
    obs_dtype = torch.float32
    if next_obs.dtype == np.uint8:  # bytes stay bytes, a quarter of the memory
        obs_dtype = torch.uint8
    obs = torch.zeros(args.num_steps, *next_obs.shape, dtype=obs_dtype, device=device)
    memory_shape = (args.num_envs, args.trxl_num_layers, args.trxl_dim)
    num_memories = args.trxl_memory_length + args.num_steps  # the window of the first step comes first
    memories = torch.zeros((num_memories, *memory_shape), device=device)
    positions = torch.zeros(rollout_shape, dtype=torch.int64, device=device)  # of each step in its episode
    actions = np.zeros(rollout_shape, dtype=np.int64)
    rewards = np.zeros(rollout_shape, dtype=np.float32)
    terminations = np.zeros(rollout_shape, dtype=bool)
    truncations = np.zeros(rollout_shape, dtype=bool)

    # State: what a checkpoint saves and a resumed run restores, in addition to flags and random generators
    state = {
        "global_step": 0,
        "next_obs": next_obs,
        "memory": torch.zeros((args.trxl_memory_length, *memory_shape), device=device),
        "position": torch.zeros(args.num_envs, dtype=torch.int64, device=device),
        "recent_returns": deque(maxlen=100),
        "envs": envs,
        "agent": agent,
        "optimizer": optimizer,
    }
    if args.resume:
        run.restore(checkpoint, state)  # fills `state`, which is read below
    global_step = state["global_step"]
    next_obs = state["next_obs"]
    memory = state["memory"]
    position = state["position"]
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
        # detail 4: the learning rate falls linearly, and so does the entropy coefficient
        remaining = max(1 - global_step / args.anneal_steps, 0)
        learning_rate.fill_(args.final_lr + remaining * (args.init_lr - args.final_lr))
        ent_coef.fill_(args.final_ent_coef + remaining * (args.init_ent_coef - args.final_ent_coef))

        # Rollout: the policy only chooses actions. Log-probabilities and values are computed after it, all at once.
        memories[: args.trxl_memory_length] = memory
        final_obs = {}  # the last observation of each truncated episode, by (step, idx)
        final_memories = {}  # and what it attends to
        final_positions = {}
        for step in range(args.num_steps):
            obs[step] = torch.as_tensor(next_obs)
            positions[step] = position
            window = memories[step : step + args.trxl_memory_length]
            action, memory, position = act(obs[step], window, position)  # memory: the next window
            memories[step + args.trxl_memory_length] = memory[-1]
            action = action.cpu().numpy()
            actions[step] = action
            next_obs, rewards[step], terminations[step], truncations[step], infos = envs.step(action)
            global_step += args.num_envs
            for idx in np.flatnonzero(truncations[step]):
                final_obs[step, idx] = np.array([infos["final_obs"][idx]])  # a copy, as a batch of one
                final_memories[step, idx] = memory[:, [idx]]
                final_positions[step, idx] = position[[idx]]
            dones = torch.as_tensor(terminations[step] | truncations[step], device=device)
            position = position * ~dones  # which hides all memories of the episode that ended
            if "episode" in infos.get("final_info", {}):  # `_episode` tells where one has ended
                episodes = infos["final_info"]["episode"]
                for idx in np.flatnonzero(infos["final_info"]["_episode"]):
                    recent_returns.append(episodes["r"][idx])
                    episode_step = global_step - args.num_envs + idx + 1  # one step per environment
                    writer.add_scalar("charts/episodic_return", episodes["r"][idx], episode_step)
                    writer.add_scalar("charts/episodic_length", episodes["l"][idx], episode_step)

        # Targets
        torch_actions = torch.as_tensor(actions, device=device)
        torch_rewards = torch.as_tensor(rewards, device=device)  # (num_steps, num_envs)
        torch_terminations = torch.as_tensor(terminations, device=device)
        torch_truncations = torch.as_tensor(truncations, device=device)
        torch_memory = memories[:-1]  # only the next rollout attends to the last step
        with torch.no_grad():
            logprobs, _, values, _ = agent.evaluate_actions(obs, torch_memory, positions, torch_actions)
            next_values = values.roll(-1, dims=0)  # V(s[t+1]); exceptions are set below
            next_values[-1] = agent.get_value(torch.as_tensor(next_obs).to(obs), memory, position)
            for index, x in final_obs.items():  # a truncated episode would have gone on from here
                next_values[index] = agent.get_value(
                    torch.as_tensor(x).to(obs), final_memories[index], final_positions[index]
                )
            advantages, returns = compute_gae(
                torch_rewards, torch_terminations, torch_truncations, values, next_values, args.gamma, args.gae_lambda
            )

        # Update
        envs_per_minibatch = args.num_envs // args.num_minibatches
        all_stats = []
        for _epoch in range(args.update_epochs):  # detail 6: several epochs of minibatch updates
            env_inds = torch.randperm(args.num_envs, device=device)  # LSTM detail 4: minibatches of whole environments
            for start in range(0, args.num_envs, envs_per_minibatch):
                mb = env_inds[start : start + envs_per_minibatch]
                stats = update(
                    obs[:, mb],
                    torch_memory[:, mb],
                    positions[:, mb],
                    torch_actions[:, mb],
                    logprobs[:, mb],
                    advantages[:, mb],
                    returns[:, mb],
                    values[:, mb],
                )
                all_stats.append(stats)
            if args.target_kl is not None and stats["approx_kl"] > args.target_kl:
                break

        if not agent.sees_pixels:  # after the update, so that its ratios start at 1
            share = args.batch_size / global_step
            merge_stats(agent.obs_mean, agent.obs_var, obs.flatten(0, 1).float(), share)

        # Log: the means over all minibatches of this iteration. A number that is not finite ends the run.
        means = {name: torch.stack([x[name] for x in all_stats]).mean() for name in stats}
        checked = {"obs": obs, "rewards": torch_rewards} | means
        for name, x in checked.items():
            if not x.isfinite().all():
                raise FloatingPointError(f"{name} is not finite at global_step={global_step}")
        means["explained_variance"] = 1 - (returns - values).var() / returns.var()
        for name, x in means.items():
            writer.add_scalar(f"losses/{name}", x, global_step)
        writer.add_scalar("charts/value_mean", values.mean(), global_step)
        writer.add_scalar("charts/advantage_mean", advantages.mean(), global_step)
        writer.add_scalar("charts/learning_rate", learning_rate, global_step)
        writer.add_scalar("charts/entropy_coefficient", ent_coef, global_step)
        sps = args.batch_size / (time.perf_counter() - start_time)
        writer.add_scalar("charts/SPS", sps, global_step)
        recent_return = np.mean(recent_returns or [np.nan])
        progress.set_postfix(episodic_return=recent_return, refresh=False)
        progress.update(args.batch_size)
        if progress.disable and iteration % (args.num_iterations // 20 + 1) == 0:  # no terminal: 20 lines at most
            print(f"global_step={global_step}, episodic_return={recent_return:.1f}, SPS={sps:.0f}")

        # Checkpoint: regularly, and on Ctrl+C or SIGTERM; then `save_checkpoint` also ends the program
        if run and run.checkpoint_due(args, global_step, args.batch_size):
            state.update(global_step=global_step, next_obs=next_obs, memory=memory, position=position)
            run.save_checkpoint(run_dir, args, __file__, writer, state)

    envs.close()
    progress.close()
    if args.save_model:
        metadata = {"args": json.dumps(vars(args)), "global_step": str(global_step)}
        save_file(agent.state_dict(), f"{run_dir}/{args.exp_name}.safetensors", metadata)
    if run:  # evaluates, uploads, and says where everything is
        run.finish(run_dir, args, writer, make_envs, load_policy, recent_returns)
    writer.close()
