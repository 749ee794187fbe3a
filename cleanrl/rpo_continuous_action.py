"""Robust Policy Optimization (RPO): PPO for continuous actions, with a policy that stays exploring.

Paper:   https://arxiv.org/abs/2212.07536 (Rahman and Xue 2022)
Docs:    docs/rl-algorithms/rpo_continuous_action.md
Parent:  ppo_continuous_action.py
Run:     python cleanrl/rpo_continuous_action.py --env-id HalfCheetah-v4
"""

import json
import os
import random
import sys
import time
from collections import deque
from dataclasses import dataclass

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
    """compile the update with `torch.compile`: half a minute of warm-up; the gain depends on network and device"""
    cudagraphs: bool = True
    """replay policy and update as they were recorded, on the GPU as CUDA graphs: the same numbers, much faster"""
    track: bool = False
    """also log to Weights & Biases"""
    wandb_project_name: str = "cleanRL"
    """the project on Weights & Biases"""
    wandb_entity: str | None = None
    """the entity (team) of the project on Weights & Biases"""
    capture_video: bool = False
    """record videos of the first environment, and of the evaluation, into `RUN_DIR/videos`"""
    save_model: bool = False
    """save the trained model into `RUN_DIR/{exp_name}.safetensors` and evaluate it"""
    upload_model: bool = False
    """upload the saved model to the Hugging Face Hub"""
    hf_entity: str = ""
    """the user or organisation on the Hugging Face Hub"""
    checkpoint_frequency: int = 100_000
    """environment steps between checkpoints (0: never)"""
    resume: str | None = None
    """continue the run in this folder from its last checkpoint; flags given beside it win over the saved ones"""

    # Algorithm specific arguments
    env_id: str = "HalfCheetah-v4"
    """the id of the environment"""
    total_timesteps: int = 8_000_000
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
    """stop the epochs of an update once the KL divergence exceeds this"""
    rpo_alpha: float = 0.5
    """in the update, means of actions are moved by up to this; 0.01 suits tasks on which 0.5 does not learn"""

    # Computed at run time
    batch_size: int = 0
    """num_envs * num_steps"""
    minibatch_size: int = 0
    """batch_size // num_minibatches"""
    num_iterations: int = 0
    """total_timesteps // batch_size"""


def make_env(env_id, idx, capture_video, run_dir):
    def thunk():
        video = {"render_mode": "rgb_array"} if capture_video and idx == 0 else {}
        env = gym.make(f"shimmy:{env_id}" if env_id.startswith("dm_control/") else env_id, **video)  # imports shimmy
        if not isinstance(env.action_space, gym.spaces.Box) or len(env.action_space.shape) != 1:
            raise ValueError(f"its actions are {env.action_space}, no vector; for Discrete actions there is ppo.py")
        env = gym.wrappers.ClipAction(env)  # differs from ppo.py: continuous detail 5, actions are executed clipped
        if len(env.observation_space.shape or ()) != 1:  # integers, matrices and dictionaries become one vector
            env = gym.wrappers.FlattenObservation(env)
        env = gym.wrappers.RecordEpisodeStatistics(env)
        if video:
            env = gym.wrappers.RecordVideo(env, f"{run_dir}/videos")
        return env

    return thunk


def make_envs(env_id, num_envs, capture_video, run_dir):
    # detail 1: vectorized architecture. SAME_STEP: the step that ends an episode returns the first observation of the
    # next one, and its own last observation in infos["final_obs"]; no reset step gets among the transitions
    thunks = [make_env(env_id, idx, capture_video, run_dir) for idx in range(num_envs)]
    return gym.vector.SyncVectorEnv(thunks, copy=False, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)


def layer_init(layer, std=2**0.5, bias_const=0.0):  # detail 2: orthogonal weights, constant biases
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, bias_const)
    return layer


def mlp(input_dim, output_dim, output_std):
    hidden = [layer_init(nn.Linear(input_dim, 64)), nn.Tanh(), layer_init(nn.Linear(64, 64)), nn.Tanh()]
    return nn.Sequential(*hidden, layer_init(nn.Linear(64, output_dim), output_std))


class Agent(nn.Module):
    def __init__(self, envs):
        super().__init__()
        # detail 13: separate networks for policy and value
        self.critic = mlp(envs.single_observation_space.shape[0], 1, output_std=1.0)
        self.actor = mlp(self.critic[0].in_features, envs.single_action_space.shape[0], 0.01)  # continuous detail 4
        self.actor_logstd = nn.Parameter(torch.zeros(envs.single_action_space.shape))  # continuous detail 2: no network
        self.obs_stats = nn.Buffer(torch.tensor([[0.0], [1.0]]).repeat(1, self.critic[0].in_features))  # mean, variance
        self.return_stats = nn.Buffer(torch.tensor([0.0, 1.0]))  # differs from ppo.py: statistics, saved with the model

    def normalize(self, x):  # continuous details 6 and 7: normalization and clipping of observations
        return ((x - self.obs_stats[0]) / (self.obs_stats[1] + 1e-8).sqrt()).clamp(-10, 10)

    def get_value(self, x):
        return self.critic(self.normalize(x)).squeeze(-1)

    @torch.inference_mode()
    def get_action(self, x, deterministic=False):
        x = self.normalize(x)
        for layer in self.actor:  # `forward` skips the machinery of nn.Module, a fifth of the time of a call this small
            x = layer.forward(x)
        return x if deterministic else torch.addcmul(x, self.actor_logstd.exp(), torch.randn_like(x))

    def get_action_and_value(self, x, action=None):
        action = self.get_action(x).clone() if action is None else action
        entropy = self.actor_logstd + 1.4189385  # continuous detail 1: normal distributions, log(std * sqrt(2 pi e))
        logprobs = 0.5 - entropy - 0.5 * ((action - self.actor(self.normalize(x))) / self.actor_logstd.exp()) ** 2
        return action, logprobs.sum(-1), entropy.expand_as(logprobs).sum(-1), self.get_value(x)  # continuous detail 3


def merge_stats(stats, x, share):  # (mean, variance) of all samples, of which `x` are a share (Chan et al. 1979)
    var, mean = torch.var_mean(x, (0, 1), correction=0)
    stats.lerp_(torch.stack([mean, var + (1 - share) * (mean - stats[0]) ** 2]), share)


def compute_gae(rewards, terminations, truncations, values, next_values, gamma, gae_lambda):
    """Detail 5: generalized advantage estimation (Schulman et al. 2016); all tensors are (num_steps, num_envs).

    `next_values` belong to the observations that really came next. After a termination there is no next value, after a
    truncation there is that of the final observation, and neither hands on the advantages of the following episode.
    """
    deltas = rewards + gamma * next_values * ~terminations - values
    decays = gamma * gae_lambda * ~(terminations | truncations)
    advantages = [torch.zeros_like(values[0])]
    for delta, decay in zip(deltas.flip(0), decays.flip(0)):
        advantages.append(torch.addcmul(delta, decay, advantages[-1]))  # delta + decay * advantage of the next step
    advantages = torch.stack(advantages[1:]).flip(0)
    return advantages, advantages + values


def ppo_loss(newlogprobs, entropy, newvalues, logprobs, advantages, returns, values, args):
    """The loss of a minibatch, and the debug variables (detail 12) as a dictionary."""
    logratio = newlogprobs - logprobs
    ratio = logratio.exp()
    if args.norm_adv:  # detail 7: normalization of advantages
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    # detail 8: clipped surrogate objective (Schulman et al. 2017, eq. 7)
    clipped_ratio = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
    policy_loss = -torch.min(advantages * ratio, advantages * clipped_ratio)
    # detail 9: value function loss clipping
    value_loss = 0.5 * (newvalues - returns) ** 2
    if args.clip_vloss:
        clipped_values = values + (newvalues - values).clamp(-args.clip_coef, args.clip_coef)
        value_loss = torch.max(value_loss, 0.5 * (clipped_values - returns) ** 2)
    stats = {"value_loss": value_loss, "policy_loss": policy_loss, "entropy": entropy, "old_approx_kl": -logratio}
    stats["approx_kl"] = ratio - 1 - logratio  # lower variance: http://joschu.net/blog/kl-approx.html
    stats["clipfrac"] = ((ratio - 1).abs() > args.clip_coef).float()
    stats = {name: x.mean() for name, x in stats.items()}
    # detail 10: overall loss and entropy bonus (Schulman et al. 2017, eq. 9)
    loss = stats["policy_loss"] - args.ent_coef * stats["entropy"] + args.vf_coef * stats["value_loss"]
    return loss, {name: x.detach() for name, x in stats.items()}


def load_policy(model_path, envs, device="cpu", deterministic=True):
    """The trained policy as a function from observations to actions, NumPy to NumPy."""
    agent = Agent(envs).to(device)
    agent.load_state_dict(load_file(model_path, device=str(device)))
    return lambda obs: agent.get_action(torch.as_tensor(obs, device=device).float(), deterministic).cpu().numpy()


if __name__ == "__main__":
    args = tyro.cli(Args)
    try:  # what a run leaves on disk and on the web; copied out of the repository, this file trains without it
        from cleanrl_utils import run
    except ImportError:
        run = None
        if args.resume or args.track or args.upload_model or args.compile:
            sys.exit("--resume, --track, --upload-model, --compile need cleanrl_utils: install it from the repository")
    if args.resume:
        args, checkpoint = run.load_checkpoint(args.resume, __file__, Args)
    args.batch_size = args.num_envs * args.num_steps
    if min(args.num_envs, args.num_steps, args.num_minibatches) < 1 or args.batch_size % args.num_minibatches:
        sys.exit(f"{args.num_envs} envs x {args.num_steps} steps do not split into {args.num_minibatches} minibatches")
    args.minibatch_size = args.batch_size // args.num_minibatches
    args.num_iterations = args.total_timesteps // args.batch_size
    if min(args.num_iterations, args.update_epochs) < 1:
        sys.exit(f"--total-timesteps {args.total_timesteps}: at least {args.batch_size}; --update-epochs: at least 1")

    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what determinism asks of cuBLAS
    torch.use_deterministic_algorithms(args.torch_deterministic)
    torch.set_num_threads(1)  # on matrices this small, threads cost more than they give
    device = torch.device("cuda" if torch.cuda.is_available() and args.cuda else "cpu")

    run_dir = args.resume or f"runs/{args.env_id.replace('/', '_')}__{args.exp_name}__{args.seed}__{int(time.time())}"
    try:
        envs = make_envs(args.env_id, args.num_envs, args.capture_video, run_dir)
        agent = Agent(envs).to(device)
        lr = torch.tensor(args.learning_rate, device=device)  # a tensor: CUDA graphs read it anew at each replay
        optimizer = torch.optim.Adam(agent.parameters(), lr, eps=1e-5, fused=True, capturable=lr.is_cuda)  # detail 3
    except (gym.error.Error, AssertionError, ImportError, TypeError, ValueError, OSError) as error:
        sys.exit(f"cannot train on {args.env_id}: {run.advice(args.env_id, error) if run else error}")

    def backward(mb_obs, mb_actions, *mb_targets):
        # mean + z with z ~ U(-alpha, alpha); a normal density depends on action - mean only, so the action gets -z
        mb_actions = mb_actions - torch.empty_like(mb_actions).uniform_(-args.rpo_alpha, args.rpo_alpha)
        _, newlogprobs, entropy, newvalues = agent.get_action_and_value(mb_obs, mb_actions)
        loss, stats = ppo_loss(newlogprobs, entropy, newvalues, *mb_targets, args)
        loss.backward()
        return stats | {"grad_norm": nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)}  # detail 11

    def update(*minibatch):
        optimizer.zero_grad()
        stats = backward(*minibatch)
        optimizer.step()
        return stats

    if run:  # the same numbers, faster: replayed or compiled; to print or to break inside of them, --no-cudagraphs
        agent.get_action, backward, update = run.accelerate(args, device, agent.get_action, backward, update)

    # Storage
    global_step, recent_returns = 0, deque(maxlen=100)
    next_obs, _ = envs.reset(seed=args.seed)
    obs = torch.zeros((args.num_steps, *next_obs.shape), device=device)
    actions = np.zeros((args.num_steps, *envs.action_space.shape), dtype=np.float32)
    rewards = np.zeros((args.num_steps, args.num_envs), dtype=np.float32)
    terminations, truncations = np.zeros((2, *rewards.shape), dtype=bool)
    discounted, envs.discounted = np.zeros_like(rewards), np.zeros(args.num_envs)  # the latter saved with `envs`
    if args.resume:
        global_step, next_obs, recent_returns = run.restore(checkpoint, envs, agent=agent, optimizer=optimizer)
    writer = run.start(run_dir, args, __file__, global_step) if run else SummaryWriter(run_dir)
    progress = tqdm(total=args.num_iterations * args.batch_size, initial=global_step, unit="step", disable=None)
    for iteration in range(global_step // args.batch_size + 1, args.num_iterations + 1):
        start_time = time.perf_counter()
        lr.fill_(args.learning_rate * (1 - (iteration - 1) / args.num_iterations if args.anneal_lr else 1))  # detail 4

        # Rollout: only act; one forward pass after it gives the log-probabilities and values of all its steps
        final_obs = {}  # (step, idx) of a truncated episode: its final observation
        for step in range(args.num_steps):
            obs[step] = torch.as_tensor(next_obs)  # a copy: the environments reuse their array
            actions[step] = action = agent.get_action(obs[step]).tolist()
            next_obs, rewards[step], terminations[step], truncations[step], infos = envs.step(action)
            discounted[step] = args.gamma * envs.discounted + rewards[step]  # return so far, one per episode
            envs.discounted = discounted[step] * ~(terminations[step] | truncations[step])
            global_step += args.num_envs
            if "episode" in infos.get("final_info", ()):
                for idx in np.flatnonzero(truncations[step]):
                    final_obs[step, idx] = infos["final_obs"][idx][None]  # a batch of one
                episodes = infos["final_info"]["episode"]
                for idx in np.flatnonzero(infos["final_info"]["_episode"]):
                    recent_returns.append(episodes["r"][idx])
                    episode_step = global_step - args.num_envs + idx + 1  # no two episodes share a step
                    writer.add_scalar("charts/episodic_return", episodes["r"][idx], episode_step)
                    writer.add_scalar("charts/episodic_length", episodes["l"][idx], episode_step)

        # Targets
        t_actions, *t_outcomes = (torch.as_tensor(x).to(device) for x in (actions, rewards, terminations, truncations))
        with torch.no_grad():
            merge_stats(agent.return_stats, torch.as_tensor(discounted, device=device), args.batch_size / global_step)
            t_outcomes[0] = (t_outcomes[0] / (agent.return_stats[1] + 1e-8).sqrt()).clamp(-10, 10)  # continuous 8, 9
            _, logprobs, _, values = agent.get_action_and_value(obs, t_actions)
            next_values = values.roll(-1, 0)
            next_values[-1] = agent.get_value(torch.as_tensor(next_obs, device=device).float())
            for index, x in final_obs.items():  # a truncated episode is bootstrapped from where it was cut off
                next_values[index] = agent.get_value(torch.as_tensor(x, device=device).float())
            advantages, returns = compute_gae(*t_outcomes, values, next_values, args.gamma, args.gae_lambda)

        # Update
        batch = [x.flatten(0, 1) for x in (obs, t_actions, logprobs, advantages, returns, values)]
        stats = []
        for _epoch in range(args.update_epochs):  # detail 6: minibatch updates
            inds = torch.randperm(args.batch_size, device=device)
            for minibatch in zip(*(x[inds].split(args.minibatch_size) for x in batch)):
                stats.append(update(*minibatch))
            if args.target_kl is not None and stats[-1]["approx_kl"] > args.target_kl:
                break
        # Once per rollout, after its update: the policy that played is the one whose ratios start at 1; and it is fast
        merge_stats(agent.obs_stats, obs, args.batch_size / global_step)

        # Log: means over the minibatches of this iteration
        stats = {name: torch.stack([x[name] for x in stats]).mean() for name in stats[0]}
        for name, x in {"obs": obs, "rewards": t_outcomes[0], **stats}.items():
            if not x.isfinite().all():
                raise FloatingPointError(f"{name} is not finite at global_step={global_step}")
        stats["explained_variance"] = 1 - (returns - values).var() / returns.var()
        for name, x in stats.items():
            writer.add_scalar(f"losses/{name}", x, global_step)
        writer.add_scalar("charts/learning_rate", lr, global_step)
        sps = args.batch_size / (time.perf_counter() - start_time)
        writer.add_scalar("charts/SPS", sps, global_step)
        recent_return = np.mean(recent_returns or [np.nan])
        progress.set_postfix(episodic_return=recent_return, refresh=False)
        progress.update(args.batch_size)
        if progress.disable and iteration % (args.num_iterations // 20 + 1) == 0:  # no terminal: plain lines
            print(f"global_step={global_step}, episodic_return={recent_return:.1f}, SPS={sps:.0f}")
        if run and run.checkpoint_due(args, global_step, args.batch_size):
            state = {"global_step": global_step, "next_obs": next_obs, "recent_returns": recent_returns}
            run.save_checkpoint(run_dir, args, __file__, envs, writer, state, agent=agent, optimizer=optimizer)

    envs.close()
    progress.close()
    if args.save_model:
        save_file(agent.state_dict(), f"{run_dir}/{args.exp_name}.safetensors", {"args": json.dumps(vars(args))})
    if run:  # evaluate, upload, and say where everything is
        run.finish(run_dir, args, writer, make_envs, load_policy, recent_returns)
    writer.close()
