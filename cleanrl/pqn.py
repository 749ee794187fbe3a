"""Parallelised Q-Network (PQN): Q-learning in PPO's loop, without a replay buffer and without a target network.

Paper:   https://arxiv.org/abs/2407.04811 (Gallici et al. 2024)
Details: https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details/ (Huang et al. 2022)
Docs:    docs/rl-algorithms/pqn.md
Parent:  ppo.py
Run:     python cleanrl/pqn.py --env-id CartPole-v1
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

import gymnasium as gym
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
    env_id: str = "CartPole-v1"
    """the id of the environment"""
    total_timesteps: int = 500_000
    """environment steps of the whole run, all environments together"""
    learning_rate: float = 2.5e-4
    """the learning rate of the optimizer"""
    num_envs: int = 4
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
    end_e: float = 0.05
    """the probability of a random action at the end"""
    exploration_fraction: float = 0.5
    """the share of the run in which that probability falls from start_e to end_e"""
    max_grad_norm: float = 10.0
    """the maximum norm of the gradient"""
    q_lambda: float = 0.65
    """the lambda of the returns: 0 trusts the prediction after one step, 1 only the one at the end of the rollout"""

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
        env = gym.make(env_id, render_mode="rgb_array") if is_filmed else gym.make(env_id)
        action_space = env.action_space
        if not isinstance(action_space, gym.spaces.Discrete):
            raise ValueError(f"its actions are {action_space}; try ppo_continuous_action.py")
        if action_space.start != 0:  # the policy counts actions from 0, this environment does not
            from_0 = gym.spaces.Discrete(action_space.n)
            env = gym.wrappers.TransformAction(env, lambda action: action + action_space.start, from_0)
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


class QNetwork(nn.Module):
    def __init__(self, envs):
        super().__init__()
        obs_dim = envs.single_observation_space.shape[0]
        num_actions = int(envs.single_action_space.n)
        # layer normalization keeps Q-learning stable without a target network (Gallici et al. 2024)
        self.network = nn.Sequential(
            layer_init(nn.Linear(obs_dim, 120)),
            nn.LayerNorm(120),
            nn.ReLU(),
            layer_init(nn.Linear(120, 84)),
            nn.LayerNorm(84),
            nn.ReLU(),
            layer_init(nn.Linear(84, num_actions)),
        )

    def forward(self, x):
        return self.network(x)

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


def pqn_loss(q_values, actions, returns):
    """The loss of a minibatch, and a dictionary of what to log."""
    taken_q_values = q_values.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
    td_loss = ((taken_q_values - returns) ** 2).mean()
    return td_loss, {"td_loss": td_loss.detach(), "q_values": taken_q_values.detach().mean()}


def load_policy(model_path, envs, device="cpu", deterministic=True):
    """Load the trained policy: a function from observations to actions, both NumPy arrays."""
    # differs from ppo.py: a Q-network acts greedily
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
    try:
        envs = make_envs(args.env_id, args.num_envs, args.capture_video, run_dir)
    except Exception as error:  # an unknown id, a package that is missing, actions of another kind
        sys.exit(run.explain_env_error(args.env_id, error) if run else f"{args.env_id}: {error}")
    q_network = QNetwork(envs).to(device)
    learning_rate = torch.tensor(args.learning_rate, device=device)  # a tensor: a recorded update sees it change
    optimizer = torch.optim.Adam(q_network.parameters(), learning_rate, fused=True)  # rectified below: RAdam

    def update(mb_obs, mb_actions, mb_returns):
        optimizer.zero_grad()
        loss, stats = pqn_loss(q_network(mb_obs), mb_actions, mb_returns)
        loss.backward()
        # detail 11: the norm of the whole gradient is clipped
        stats["grad_norm"] = nn.utils.clip_grad_norm_(q_network.parameters(), args.max_grad_norm)
        optimizer.step()
        return stats

    # Storage: observations are on the device, where the policy needs them; the rest goes there after a rollout
    next_obs, _ = envs.reset(seed=args.seed)
    rollout_shape = (args.num_steps, args.num_envs)
    obs = torch.zeros(args.num_steps, *next_obs.shape, device=device)
    actions = np.zeros(rollout_shape, dtype=np.int64)
    rewards = np.zeros(rollout_shape, dtype=np.float32)
    terminations = np.zeros(rollout_shape, dtype=bool)
    truncations = np.zeros(rollout_shape, dtype=bool)

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

    act = q_network.get_action
    if run:  # may speed up `act` and `update`; only --compile changes the rounding of results
        act, update = run.accelerate(args, __file__, act, update, state)
        writer = run.start(run_dir, args, __file__, global_step)  # Ctrl+C now saves a checkpoint
    else:
        writer = SummaryWriter(run_dir)
    progress = tqdm(total=args.num_iterations * args.batch_size, initial=global_step, unit="step", disable=None)
    exploration_steps = max(args.exploration_fraction * args.total_timesteps, 1)
    for iteration in range(global_step // args.batch_size + 1, args.num_iterations + 1):
        start_time = time.perf_counter()
        annealed_lr = args.learning_rate
        if args.anneal_lr:  # detail 4: the learning rate falls linearly to zero
            remaining = 1 - (iteration - 1) / args.num_iterations
            annealed_lr = remaining * args.learning_rate

        # Rollout: it only chooses actions, epsilon-greedily. All values are computed after it, at once.
        final_obs = {}  # the last observation of each truncated episode, by (step, idx)
        for step in range(args.num_steps):
            obs[step] = torch.as_tensor(next_obs)
            epsilon = linear_schedule(args.start_e, args.end_e, exploration_steps, global_step)
            explore = np.random.rand(args.num_envs) < epsilon  # each environment on its own
            action = (np.random.rand(args.num_envs) * envs.single_action_space.n).astype(int)  # faster than randint
            if not explore.all():
                greedy_action = act(obs[step]).cpu().numpy()
                action = np.where(explore, action, greedy_action)
            actions[step] = action
            next_obs, rewards[step], terminations[step], truncations[step], infos = envs.step(action)
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
        with torch.no_grad():
            values = q_network(obs).amax(-1)  # (num_steps, num_envs)
            next_values = values.roll(-1, dims=0)  # V(s[t+1]); exceptions are set below
            next_values[-1] = q_network(torch.as_tensor(next_obs).to(obs)).amax(-1)  # to the dtype and device of obs
            for index, x in final_obs.items():  # a truncated episode would have gone on from here
                next_values[index] = q_network(torch.as_tensor(x).to(obs)).amax(-1)
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
                stats = update(b_obs[mb], b_actions[mb], b_returns[mb])
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
        save_file(q_network.state_dict(), f"{run_dir}/{args.exp_name}.safetensors", metadata)
    if run:  # evaluates, uploads, and says where everything is
        run.finish(run_dir, args, writer, make_envs, load_policy, recent_returns)
    writer.close()
