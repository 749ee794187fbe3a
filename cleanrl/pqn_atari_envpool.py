"""Parallelised Q-Network (PQN) for Atari games that EnvPool plays in C++ threads.

Paper:   https://arxiv.org/abs/2407.04811 (Gallici et al. 2024)
Details: https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details/ (Huang et al. 2022)
Docs:    docs/rl-algorithms/pqn_atari_envpool.md
Parent:  ppo_atari_envpool.py
Run:     python cleanrl/pqn_atari_envpool.py --env-id Breakout-v5
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
    num_minibatches: int = 4
    """minibatches per epoch"""
    update_epochs: int = 4
    """passes over each rollout"""
    start_e: float = 1.0
    """the probability of a random action at the start"""
    end_e: float = 0.01
    """the probability of a random action at the end"""
    exploration_fraction: float = 0.1
    """the share of the run in which that probability falls from start_e to end_e"""
    max_grad_norm: float = 10.0
    """the maximum norm of the gradient"""
    q_lambda: float = 0.65
    """the lambda of the returns: 0 trusts the prediction after one step, 1 only the one at the end of the rollout"""
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


def layer_init(layer, std=2**0.5, bias_const=0.0):  # detail 2: orthogonal weights, scaled by std
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, bias_const)
    return layer


class QNetwork(nn.Module):
    def __init__(self, envs):
        super().__init__()
        num_actions = int(envs.single_action_space.n)
        # layer normalization keeps Q-learning stable without a target network (Gallici et al. 2024)
        self.network = nn.Sequential(  # the convolutional network of Mnih et al. 2015
            layer_init(nn.Conv2d(4, 32, 8, stride=4)),
            nn.LayerNorm([32, 20, 20]),
            nn.ReLU(),
            layer_init(nn.Conv2d(32, 64, 4, stride=2)),
            nn.LayerNorm([64, 9, 9]),
            nn.ReLU(),
            layer_init(nn.Conv2d(64, 64, 3)),
            nn.LayerNorm([64, 7, 7]),
            nn.ReLU(),
            nn.Flatten(),
            layer_init(nn.Linear(3136, 512)),
            nn.LayerNorm(512),
            nn.ReLU(),
        )
        self.head = layer_init(nn.Linear(512, num_actions))
        self.bf16 = False

    def get_features(self, x):
        x = x.contiguous(memory_format=torch.channels_last)  # a layout in memory that suits convolutions
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.bf16):
            return self.network(x / 255).float()  # Atari detail 9: pixels are scaled to [0, 1]

    def forward(self, x):
        x = self.get_features(x)
        return self.head(x)

    @torch.inference_mode()
    def get_action(self, x):
        return self(x).argmax(-1)


def linear_schedule(start_e, end_e, duration, step):
    return start_e + (end_e - start_e) * min(step / duration, 1)


def radam_rectification(num_updates, beta2=0.999):
    """RAdam is Adam whose learning rate is multiplied by this (Liu et al. 2020, algorithm 2).

    It grows from 0 to 1 as Adam's estimate of the squared gradients, at first a mean of few samples, becomes reliable.
    """
    rho_inf = 2 / (1 - beta2) - 1
    rho = rho_inf - 2 * num_updates * beta2**num_updates / (1 - beta2**num_updates)
    if rho <= 5:  # too few gradients for an estimate: wait
        return 0.0
    return ((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho)) ** 0.5


def compute_lambda_returns(rewards, terminations, truncations, next_values, gamma, q_lambda):
    """Targets of the Q-network by Peng's Q(lambda), the last step first. All tensors are (num_steps, num_envs)."""
    # `next_values` belong to the observations that really came next, also after a truncation. After a termination,
    # nothing comes next. Returns do not flow from one episode into the one before it.
    returns = torch.zeros_like(rewards)
    next_return = next_values[-1]  # what comes after the rollout is predicted
    for step in reversed(range(len(rewards))):
        next_return = torch.where(truncations[step], next_values[step], next_return)
        mixture = q_lambda * next_return + (1 - q_lambda) * next_values[step]
        next_return = rewards[step] + gamma * mixture * ~terminations[step]
        returns[step] = next_return
    return returns


def pqn_loss(q_values, actions, returns, valid):
    """The loss of a minibatch, and a dictionary of what to log."""
    num_valid = valid.sum().clamp(min=1)
    weights = valid / num_valid  # `(weights * x).sum()` is the mean of valid steps
    taken_q_values = q_values.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    td_errors = taken_q_values - returns
    td_loss = (weights * td_errors**2).sum()
    mean_q_value = (weights * taken_q_values.detach()).sum()
    return td_loss, {"td_loss": td_loss.detach(), "q_values": mean_q_value}


def load_policy(model_path, envs, device="cpu", deterministic=True):
    """Load the trained policy: a function from observations to actions, both NumPy arrays."""
    # differs from ppo_atari_envpool.py: a Q-network acts greedily
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
    scores = np.zeros(args.num_envs)  # of the games so far; a resumed run starts new games
    try:
        pool_size = min(32, (args.num_envs + 1) // 2)  # two pools or more: one gets its actions while others play
        columns = [slice(i, i + pool_size) for i in range(0, args.num_envs, pool_size)]
        envs = [make_envs(args.env_id, len(scores[c]), args.capture_video, run_dir) for c in columns]
    except Exception as error:  # an unknown id, a package that is missing, actions of another kind
        sys.exit(run.explain_env_error(args.env_id, error) if run else f"{args.env_id}: {error}")
    q_network = QNetwork(envs[0]).to(device)
    q_network.bf16 = args.bf16
    learning_rate = torch.tensor(args.learning_rate, device=device)  # a tensor: a recorded update sees it change
    optimizer = torch.optim.Adam(q_network.parameters(), learning_rate, fused=True)  # rectified below: RAdam

    def update(mb_obs, mb_actions, mb_returns, mb_valid):
        optimizer.zero_grad()
        loss, stats = pqn_loss(q_network(mb_obs), mb_actions, mb_returns, mb_valid)
        loss.backward()
        # detail 11: the norm of the whole gradient is clipped
        stats["grad_norm"] = nn.utils.clip_grad_norm_(q_network.parameters(), args.max_grad_norm)
        optimizer.step()
        return stats

    # Storage: observations are on the device, where the policy needs them; the rest goes there after a rollout
    next_obs = np.concatenate([pool.reset()[0] for pool in envs])
    rollout_shape = (args.num_steps, args.num_envs)
    obs = torch.zeros(args.num_steps, *next_obs.shape, dtype=torch.uint8, device=device)
    actions = np.zeros(rollout_shape, dtype=np.int64)
    rewards = np.zeros(rollout_shape, dtype=np.float32)
    terminations = np.zeros(rollout_shape, dtype=bool)
    truncations = np.zeros(rollout_shape, dtype=bool)
    valid = np.zeros_like(terminations)  # steps that were played: not the resets of EnvPool

    # State: what a checkpoint saves and a resumed run restores, in addition to flags and random generators
    state = {
        "global_step": 0,
        "next_obs": next_obs,
        "recent_returns": deque(maxlen=100),
        "envs": envs,
        "q_network": q_network,
        "optimizer": optimizer,
    }
    if args.resume:
        run.restore(checkpoint, state)  # fills `state`, which is read below
    global_step = state["global_step"]
    next_obs = state["next_obs"]
    recent_returns = state["recent_returns"]

    turns = [(step, pool, column) for step in range(args.num_steps + 1) for pool, column in zip(envs, columns)]
    act = q_network.get_action
    if run:  # may speed up `act` and `update`; only --compile changes the rounding of results
        act, update = run.accelerate(args, __file__, act, update, state)
        writer = run.start(run_dir, args, __file__, global_step)  # Ctrl+C now saves a checkpoint
    else:
        writer = SummaryWriter(run_dir)
    progress = tqdm(total=args.num_iterations * args.batch_size, initial=global_step, unit="step", disable=None)
    exploration_steps = max(args.exploration_fraction * args.total_timesteps, 1)
    num_actions = int(envs[0].single_action_space.n)
    for iteration in range(global_step // args.batch_size + 1, args.num_iterations + 1):
        start_time = time.perf_counter()
        annealed_lr = args.learning_rate
        if args.anneal_lr:  # detail 4: the learning rate falls linearly to zero
            remaining = 1 - (iteration - 1) / args.num_iterations
            annealed_lr = remaining * args.learning_rate

        # Rollout: it only chooses actions, epsilon-greedily. All values are computed after it, at once.
        for step, pool, column in turns:
            last = (step - 1, column)  # at step 0, this is the last step of the rollout before
            if step > 0:  # what came of the last actions, which were played in the meantime
                next_obs[column], rewards[last], terminations[last], truncations[last], infos = pool.recv()
                scores[column] += infos["reward"]  # not clipped; scores are of whole games
                for idx in np.flatnonzero(infos["terminated"] | truncations[last]):
                    recent_returns.append(scores[column][idx])
                    episode_step = global_step + idx + 1  # one step per environment
                    writer.add_scalar("charts/episodic_return", scores[column][idx], episode_step)
                    writer.add_scalar("charts/episodic_length", infos["elapsed_step"][idx], episode_step)
                    scores[column][idx] = 0
                global_step += len(infos["reward"])
            if step < args.num_steps:  # the pool plays its next actions in the background
                obs[step, column] = torch.as_tensor(next_obs[column])
                valid[step, column] = ~(terminations[last] | truncations[last])  # else a mere reset
                epsilon = linear_schedule(args.start_e, args.end_e, exploration_steps, global_step)
                num_players = len(scores[column])
                explore = np.random.rand(num_players) < epsilon  # each environment on its own
                action = (np.random.rand(num_players) * num_actions).astype(int)  # faster than randint
                if not explore.all():
                    greedy_action = act(obs[step, column]).cpu().numpy()
                    action = np.where(explore, action, greedy_action)
                actions[step, column] = action
                pool.send(actions[step, column])

        # Targets
        b_obs = obs.flatten(0, 1)  # b_: all steps of the batch in one dimension
        b_actions = torch.as_tensor(actions, device=device).flatten(0, 1)
        torch_rewards = torch.as_tensor(rewards, device=device)  # (num_steps, num_envs)
        torch_terminations = torch.as_tensor(terminations, device=device)
        torch_truncations = torch.as_tensor(truncations, device=device)
        b_valid = torch.as_tensor(valid, device=device).flatten()
        with torch.no_grad():
            b_values = q_network(b_obs).amax(-1)
            values = b_values.view_as(torch_rewards)  # (num_steps, num_envs)
            next_values = values.roll(-1, dims=0)  # V(s[t+1]); exceptions are set below
            b_next_obs = torch.as_tensor(next_obs).to(obs)  # to the dtype and device of obs
            next_values[-1] = q_network(b_next_obs).amax(-1)
            returns = compute_lambda_returns(
                torch_rewards, torch_terminations, torch_truncations, next_values, args.gamma, args.q_lambda
            )

        # Update
        b_returns = returns.flatten(0, 1)
        num_updates = (iteration - 1) * args.update_epochs * args.num_minibatches
        all_stats = []
        for _epoch in range(args.update_epochs):  # detail 6: several epochs of minibatch updates
            b_inds = torch.randperm(args.batch_size, device=device)
            for mb in b_inds.split(args.minibatch_size):
                num_updates += 1
                learning_rate.fill_(annealed_lr * radam_rectification(num_updates))
                stats = update(b_obs[mb], b_actions[mb], b_returns[mb], b_valid[mb])
                all_stats.append(stats)

        # Log: the means over all minibatches of this iteration. A number that is not finite ends the run.
        means = {name: torch.stack([x[name] for x in all_stats]).mean() for name in stats}
        checked = {"obs": obs, "rewards": torch_rewards} | means
        for name, x in checked.items():
            if not x.isfinite().all():
                raise FloatingPointError(f"{name} is not finite at global_step={global_step}")
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

        # Checkpoint: regularly, and on Ctrl+C or SIGTERM; then `save_checkpoint` also ends the program
        if run and run.checkpoint_due(args, global_step, args.batch_size):
            state.update(global_step=global_step, next_obs=next_obs)
            run.save_checkpoint(run_dir, args, __file__, writer, state)

    progress.close()
    if args.save_model:
        metadata = {"args": json.dumps(vars(args)), "global_step": str(global_step)}
        save_file(q_network.state_dict(), f"{run_dir}/{args.exp_name}.safetensors", metadata)
    if run:  # evaluates, uploads, and says where everything is
        run.finish(run_dir, args, writer, make_envs, load_policy, recent_returns)
    writer.close()
