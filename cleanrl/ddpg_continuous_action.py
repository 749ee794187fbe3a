"""Deep Deterministic Policy Gradient (DDPG): Q-learning for continuous actions, which a second network chooses.

Paper:   https://arxiv.org/abs/1509.02971 (Lillicrap et al. 2016)
Docs:    docs/rl-algorithms/ddpg_continuous_action.md
Parent:  none
Run:     python cleanrl/ddpg_continuous_action.py --env-id Hopper-v4
"""

import copy
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
    """the deviation of the noise that explores, in units of half the range of an action"""
    learning_starts: int = 25_000
    """environment steps before the first update, with random actions"""
    policy_frequency: int = 2
    """environment steps between updates of the policy and of the target networks"""


def make_env(env_id, idx, capture_video, run_dir):
    def thunk():
        video = {"render_mode": "rgb_array"} if capture_video and idx == 0 else {}
        env = gym.make(f"shimmy:{env_id}" if env_id.startswith("dm_control/") else env_id, **video)  # imports shimmy
        if not isinstance(space := env.action_space, gym.spaces.Box) or len(space.shape) != 1 or not space.is_bounded():
            raise ValueError(f"its actions are {space}, no vector with bounds; try dqn.py or ppo_continuous_action.py")
        if len(env.observation_space.shape or ()) != 1:  # integers, matrices and dictionaries become one vector
            env = gym.wrappers.FlattenObservation(env)
        env = gym.wrappers.RecordEpisodeStatistics(env)
        if video:
            env = gym.wrappers.RecordVideo(env, f"{run_dir}/videos")
        return env

    return thunk


def make_envs(env_id, num_envs, capture_video, run_dir):
    # SAME_STEP: the step that ends an episode returns the next one's first observation; infos["final_obs"] has its last
    thunks = [make_env(env_id, idx, capture_video, run_dir) for idx in range(num_envs)]
    return gym.vector.SyncVectorEnv(thunks, copy=False, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)


def mlp(input_dim, output_dim):
    hidden = nn.Linear(input_dim, 256), nn.ReLU(inplace=True), nn.Linear(256, 256), nn.ReLU(inplace=True)
    return nn.Sequential(*hidden, nn.Linear(256, output_dim))


class QNetwork(nn.Module):
    def __init__(self, envs):
        super().__init__()
        self.network = mlp(envs.single_observation_space.shape[0] + envs.single_action_space.shape[0], 1)

    def forward(self, x, a):
        return self.network(torch.cat([x, a], -1))


class Actor(nn.Module):
    def __init__(self, envs):
        super().__init__()
        self.network = mlp(envs.single_observation_space.shape[0], envs.single_action_space.shape[0])
        low, high = torch.tensor(np.array([envs.single_action_space.low, envs.single_action_space.high])).float()
        self.low, self.high = nn.Buffer(low), nn.Buffer(high)  # each component of an action has bounds of its own
        self.action_scale, self.action_bias = nn.Buffer((high - low) / 2), nn.Buffer((high + low) / 2)

    def forward(self, x):
        return self.network(x).tanh() * self.action_scale + self.action_bias

    @torch.inference_mode()
    def get_action(self, x, noise=0.0):
        x = self(x)
        return torch.addcmul(x, self.action_scale, torch.randn_like(x), value=noise).clamp(self.low, self.high)


class ReplayBuffer:
    """The last transitions, each one row of an array, so that a minibatch is gathered at once."""

    def __init__(self, size, widths, device):
        self.widths = widths  # of obs, next_obs, actions, rewards and terminations in a row
        self.rows, self.count, self.new = torch.zeros((size, sum(widths)), device=device), 0, []

    def add(self, *transitions):
        """A step of all environments; the next observation at the end of an episode is its final one."""
        self.new.append(transitions)

    def write(self):
        """Move all that was added since the last time to its place, over the oldest rows."""
        rows, self.new = (np.column_stack([np.concatenate(x) for x in zip(*self.new)]) if self.new else ()), []
        while len(rows):
            place = self.rows[self.count % len(self.rows) :][: len(rows)]
            place[:] = torch.as_tensor(rows[: len(place)], dtype=place.dtype)
            self.count, rows = self.count + len(place), rows[len(place) :]

    def sample(self, batch_size):
        self.write()
        inds = torch.randint(min(self.count, len(self.rows)), (batch_size,), device=self.rows.device)
        return self.rows[inds].split(self.widths, -1)

    def state_dict(self):
        self.write()
        return vars(self) | {"rows": self.rows[: self.count].clone()}

    def load_state_dict(self, state):
        self.rows[: len(state["rows"])] = state["rows"]
        vars(self).update(state | {"rows": self.rows})


def critic_loss(qf1_values, next_q_values, rewards, terminations, gamma):
    """The loss of the critic in a minibatch (Lillicrap et al. 2016, algorithm 1), and what to log as a dictionary."""
    td_target = rewards + gamma * next_q_values * (1 - terminations)
    qf1_loss = nn.functional.mse_loss(qf1_values, td_target)
    return qf1_loss, {"qf1_values": qf1_values.detach().mean(), "qf1_loss": qf1_loss.detach()}


def load_policy(model_path, envs, device="cpu", deterministic=True):
    """The trained policy as a function from observations to actions, NumPy to NumPy; it is always without noise."""
    actor = Actor(envs).to(device)
    actor.load_state_dict({k[6:]: x for k, x in load_file(model_path, device=str(device)).items() if k[:6] == "actor."})
    return lambda obs: actor.get_action(torch.as_tensor(obs, device=device).float()).cpu().numpy()


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
    if min(args.num_envs, args.buffer_size, args.batch_size, args.policy_frequency) < 1:
        sys.exit("--num-envs, --buffer-size, --batch-size and --policy-frequency are at least 1")
    if args.total_timesteps <= args.learning_starts:
        sys.exit(f"--total-timesteps {args.total_timesteps}: more than --learning-starts {args.learning_starts}")

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
        networks = nn.ModuleDict({"actor": Actor(envs), "qf1": QNetwork(envs)})
        targets = copy.deepcopy(networks.to(device)).requires_grad_(False)
        lr = torch.tensor(args.learning_rate, device=device)  # a tensor: CUDA graphs read it anew at each replay
        (actor, qf1), (target_actor, qf1_target) = networks.values(), targets.values()
        q_optimizer = torch.optim.Adam(qf1.parameters(), lr, fused=True, capturable=lr.is_cuda)
        actor_optimizer = torch.optim.Adam(actor.parameters(), lr, fused=True, capturable=lr.is_cuda)
        shape = args.buffer_size, (*envs.single_observation_space.shape * 2, *envs.single_action_space.shape, 1, 1)
        buffer = run.fit(ReplayBuffer, *shape, device) if run else ReplayBuffer(*shape, device)
    except (gym.error.Error, AssertionError, ImportError, TypeError, ValueError, OSError) as error:
        sys.exit(f"cannot train on {args.env_id}: {run.advice(args.env_id, error) if run else error}")

    def critic_backward(obs, next_obs, actions, rewards, terminations):
        with torch.no_grad():
            next_q_values = qf1_target(next_obs, target_actor(next_obs))
        loss, stats = critic_loss(qf1(obs, actions), next_q_values, rewards, terminations, args.gamma)
        loss.backward()
        return stats

    def actor_backward(obs):
        actor_loss = -qf1(obs, actor(obs)).mean()
        actor_loss.backward(inputs=list(actor.parameters()))  # none for the critic: a third of the time
        return {"actor_loss": actor_loss.detach()}

    def update(update_policy, obs, next_obs, actions, rewards, terminations):
        q_optimizer.zero_grad()
        stats = critic_backward(obs, next_obs, actions, rewards, terminations)
        q_optimizer.step()
        if update_policy:
            actor_optimizer.zero_grad()
            stats |= actor_backward(obs)
            actor_optimizer.step()
            torch._foreach_lerp_(list(targets.parameters()), [x.data for x in networks.parameters()], args.tau)
        return stats

    if run:  # the same numbers, faster: replayed or compiled; to print or to break inside of them, --no-cudagraphs
        functions = actor.get_action, critic_backward, actor_backward, update
        actor.get_action, critic_backward, actor_backward, update = run.accelerate(args, device, *functions)

    # Storage
    global_step, recent_returns, stats = 0, deque(maxlen=100), {}
    next_obs, _ = envs.reset(seed=args.seed)
    stateful = {"networks": networks, "targets": targets, "buffer": buffer}
    stateful |= {"q_optimizer": q_optimizer, "actor_optimizer": actor_optimizer}
    if args.resume:
        global_step, next_obs, recent_returns = run.restore(checkpoint, envs, **stateful)
    writer = run.start(run_dir, args, __file__, global_step) if run else SummaryWriter(run_dir)
    progress = tqdm(total=args.total_timesteps, initial=global_step, unit="step", disable=None)
    start_time, logged_step = time.perf_counter(), global_step
    for global_step in range(logged_step + args.num_envs, args.total_timesteps + 1, args.num_envs):
        # Act: at random until learning starts, then by the policy, with noise
        obs = next_obs.copy()  # the environments reuse their array
        if learning := global_step > max(args.learning_starts, args.num_envs):
            actions = actor.get_action(torch.as_tensor(obs).float().to(device), args.exploration_noise).cpu().numpy()
        else:
            actions = np.random.uniform(envs.action_space.low, envs.action_space.high).astype(np.float32)

        # Learn: before the environments step, so that on a GPU both happen at the same time
        for step in range(global_step - args.num_envs + 1, global_step + 1) if learning else ():
            stats |= update(step % args.policy_frequency == 0, *(x.to(device) for x in buffer.sample(args.batch_size)))

        # Step
        next_obs, rewards, terminations, truncations, infos = envs.step(actions)
        real_next_obs = next_obs.copy()
        for idx in np.flatnonzero(terminations | truncations):  # not the first observation of the next episode
            real_next_obs[idx] = infos["final_obs"][idx]
        buffer.add(obs, real_next_obs, actions, rewards, terminations)
        if "episode" in infos.get("final_info", ()):
            episodes = infos["final_info"]["episode"]
            for idx in np.flatnonzero(infos["final_info"]["_episode"]):
                recent_returns.append(episodes["r"][idx])
                episode_step = global_step - args.num_envs + idx + 1  # no two episodes share a step
                writer.add_scalar("charts/episodic_return", episodes["r"][idx], episode_step)
                writer.add_scalar("charts/episodic_length", episodes["l"][idx], episode_step)

        # Log
        if global_step % 100 < args.num_envs:
            for name, x in stats.items():
                if not np.isfinite(x := x.item()):
                    raise FloatingPointError(f"{name} is not finite at global_step={global_step}")
                writer.add_scalar(f"losses/{name}", x, global_step)
            sps = (global_step - logged_step) / (time.perf_counter() - start_time)
            writer.add_scalar("charts/SPS", sps, global_step)
            recent_return = np.mean(recent_returns or [np.nan])
            progress.set_postfix(episodic_return=recent_return, refresh=False)
            progress.update(global_step - logged_step)
            start_time, logged_step, stats = time.perf_counter(), global_step, {}
            if progress.disable and global_step % (args.total_timesteps // 2000 * 100 + 100) < args.num_envs:
                print(f"global_step={global_step}, episodic_return={recent_return:.1f}, SPS={sps:.0f}")
        if run and run.checkpoint_due(args, global_step, args.num_envs):
            state = {"global_step": global_step, "next_obs": next_obs, "recent_returns": recent_returns}
            run.save_checkpoint(run_dir, args, __file__, envs, writer, state, **stateful)

    envs.close()
    progress.close()
    if args.save_model:
        save_file(networks.state_dict(), f"{run_dir}/{args.exp_name}.safetensors", {"args": json.dumps(vars(args))})
    if run:  # evaluate, upload, and say where everything is
        run.finish(run_dir, args, writer, make_envs, load_policy, recent_returns)
    writer.close()
