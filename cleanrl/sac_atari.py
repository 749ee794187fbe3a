"""Soft Actor-Critic (SAC) for Atari games: with discrete actions, expectations over actions are exact sums.

Paper:   https://arxiv.org/abs/1910.07207 (Christodoulou 2019)
Docs:    docs/rl-algorithms/sac_atari.md
Parent:  sac_continuous_action.py
Run:     python cleanrl/sac_atari.py --env-id BeamRiderNoFrameskip-v4
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
    env_id: str = "BeamRiderNoFrameskip-v4"
    """the id of the environment"""
    total_timesteps: int = 5_000_000
    """environment steps of the whole run, all environments together"""
    policy_lr: float = 3e-4
    """the learning rate of the policy"""
    q_lr: float = 3e-4
    """the learning rate of the critics and of the temperature"""
    num_envs: int = 1
    """the number of parallel environments"""
    buffer_size: int = 1_000_000
    """transitions that the replay buffer holds"""
    gamma: float = 0.99
    """the discount factor"""
    tau: float = 1.0
    """how far the target networks move towards the networks: 1 copies them"""
    batch_size: int = 64
    """transitions in a minibatch"""
    learning_starts: int = 20_000
    """environment steps before the first update, with random actions"""
    update_frequency: int = 4
    """environment steps between updates"""
    target_network_frequency: int = 8000
    """environment steps between updates of the target networks"""
    alpha: float = 0.2
    """the temperature, i.e. what entropy is worth, if it is not tuned"""
    autotune: bool = True
    """tune the temperature to a given entropy"""
    target_entropy_scale: float = 0.89
    """that entropy, in units of the entropy of random actions"""


def make_env(env_id, idx, capture_video, run_dir):
    def thunk():
        from stable_baselines3.common.atari_wrappers import ClipRewardEnv, EpisodicLifeEnv, FireResetEnv

        video = {"render_mode": "rgb_array"} if capture_video and idx == 0 else {}
        env = gym.make(env_id if ":" in env_id else f"ale_py:{env_id}", obs_type="grayscale", frameskip=1, **video)
        env = gym.wrappers.AtariPreprocessing(env)  # no-op starts, 4 frames a step, 84x84 grey
        env = gym.wrappers.RecordEpisodeStatistics(env)
        if video:
            env = gym.wrappers.RecordVideo(env, f"{run_dir}/videos")
        # differs from sac_continuous_action.py: as in ppo_atari.py
        env = EpisodicLifeEnv(env)  # a lost life ends the episode of the agent, but not the game
        env = FireResetEnv(env) if "FIRE" in env.unwrapped.get_action_meanings() else env
        return gym.wrappers.FrameStackObservation(ClipRewardEnv(env), 4)

    return thunk


def make_envs(env_id, num_envs, capture_video, run_dir):
    # SAME_STEP: the step that ends an episode returns the next one's first observation; infos["final_obs"] has its last
    thunks = [make_env(env_id, idx, capture_video, run_dir) for idx in range(num_envs)]
    return gym.vector.SyncVectorEnv(thunks, copy=False, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)


def cnn(envs):
    convs = nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU()
    layers = *convs, nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, int(envs.single_action_space.n))
    for layer in layers:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


class SoftQNetwork(nn.Module):
    def __init__(self, envs):
        super().__init__()
        self.network = cnn(envs)

    def forward(self, x):  # differs from sac_continuous_action.py: the values of all actions
        return self.network(x / 255)


class Actor(nn.Module):
    def __init__(self, envs):
        super().__init__()
        self.network = cnn(envs)

    def forward(self, x):  # differs from sac_continuous_action.py: the logarithms of the probabilities of all actions
        return self.network(x / 255).log_softmax(-1)

    @torch.inference_mode()
    def get_action(self, x, noise=0.0):
        x = self(x)
        return (x - noise * torch.empty_like(x).exponential_().log()).argmax(-1)  # Gumbel-max trick: a sample


class ReplayBuffer:
    """The last transitions, each one row of an array, in which frames are numbers: each frame is stored only once."""

    def __init__(self, size, widths, device):
        self.widths = widths  # of obs, next_obs, actions, rewards and terminations in a row
        self.rows, self.count, self.new = torch.zeros((size, sum(widths)), dtype=torch.float64), 0, []
        # NumPy's zeros take no memory before they are overwritten; there is room for an episode each 25 steps
        self.frames = torch.from_numpy(np.zeros((size + size // 25 + 1000, 84, 84), dtype=np.uint8)).to(device)
        self.num_frames, self.last_obs, self.last_numbers = 0, -1, np.full(4, -1)

    def add(self, obs, next_obs, *outcomes):
        """A step of all environments; the next observation at the end of an episode is its final one."""
        starts = (obs != self.last_obs).any((1, 2, 3))  # an episode starts with four times the same frame
        frames = np.concatenate([obs[starts, -1], next_obs[:, -1]])  # differs from sac_continuous_action.py: new frames
        for number, frame in enumerate(torch.as_tensor(frames), self.num_frames):
            self.frames[number % len(self.frames)] = frame
        numbers = np.where(starts[:, None], self.num_frames + starts.cumsum()[:, None] - 1, self.last_numbers)
        self.num_frames, self.last_obs = self.num_frames + len(frames), next_obs
        self.last_numbers = np.column_stack([numbers[:, 1:], np.arange(self.num_frames - len(obs), self.num_frames)])
        self.new.append((numbers, self.last_numbers, *outcomes))

    def write(self):
        """Move all that was added since the last time to its place, over the oldest rows."""
        rows, self.new = (np.column_stack([np.concatenate(x) for x in zip(*self.new)]) if self.new else ()), []
        while len(rows):
            place = self.rows[self.count % len(self.rows) :][: len(rows)]
            place[:] = torch.as_tensor(rows[: len(place)], dtype=place.dtype)
            self.count, rows = self.count + len(place), rows[len(place) :]

    def sample(self, batch_size):
        self.write()
        inds = torch.randint(min(self.count, len(self.rows)), (batch_size,))
        while (gone := self.rows[inds, 0] < self.num_frames - len(self.frames)).any():  # frames: after short episodes
            inds[gone] = torch.randint(len(self.rows), (int(gone.sum()),))
        numbers, outcomes = self.rows[inds].to(self.frames.device).split((8, 3), -1)
        return *self.frames[numbers.long() % len(self.frames)].split(4, 1), *outcomes.float().split(1, -1)

    def state_dict(self):
        self.write()
        frames = self.frames[: self.num_frames].to("cpu", copy=self.num_frames < len(self.frames))
        return vars(self) | {"rows": self.rows[: self.count].clone(), "frames": frames}

    def load_state_dict(self, state):
        self.rows[: len(state["rows"])], self.frames[: len(state["frames"])] = state["rows"], state["frames"]
        vars(self).update(state | {"rows": self.rows, "frames": self.frames})


def critic_loss(qf1_values, qf2_values, next_q_values, rewards, terminations, gamma):
    """The loss of both critics in a minibatch, and what to log as a dictionary."""
    # differs from ddpg_continuous_action.py: there are two of them, with one target
    td_target = rewards + gamma * next_q_values * (1 - terminations)
    qf1_loss = nn.functional.mse_loss(qf1_values, td_target)
    qf2_loss = nn.functional.mse_loss(qf2_values, td_target)
    qf_loss = qf1_loss + qf2_loss
    stats = {"qf1_values": qf1_values.mean(), "qf2_values": qf2_values.mean()}
    stats |= {"qf1_loss": qf1_loss, "qf2_loss": qf2_loss, "qf_loss": qf_loss / 2}
    return qf_loss, {name: x.detach() for name, x in stats.items()}


def policy_loss(q_values, logprobs, log_alpha, target_entropy):
    """The loss of policy and temperature in a minibatch (eqs. 12 and 11), and what to log as a dictionary."""
    # differs from sac_continuous_action.py: expectations are sums over all actions, weighted with their probabilities
    alpha, probs = log_alpha.exp(), logprobs.exp()
    losses = {"actor_loss": (probs * (alpha.detach() * logprobs - q_values)).sum(-1).mean()}
    if target_entropy is not None:  # otherwise the temperature stays
        losses["alpha_loss"] = -alpha * (probs * (logprobs + target_entropy)).detach().sum(-1).mean()
    return sum(losses.values()), {name: x.detach() for name, x in (losses | {"alpha": alpha}).items()}


def load_policy(model_path, envs, device="cpu", deterministic=True):
    """The trained policy as a function from observations to actions, NumPy to NumPy."""
    # differs from td3_continuous_action.py: actions may be drawn, too
    actor = Actor(envs).to(device)
    actor.load_state_dict({k[6:]: x for k, x in load_file(model_path, device=str(device)).items() if k[:6] == "actor."})
    noise = float(not deterministic)
    return lambda obs: actor.get_action(torch.as_tensor(obs, device=device).float(), noise).cpu().numpy()


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
    if min(args.num_envs, args.buffer_size, args.batch_size, args.update_frequency, args.target_network_frequency) < 1:
        sys.exit("--num-envs, --buffer-size, --batch-size, --update- and --target-network-frequency are at least 1")
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
        networks = nn.ModuleDict({"actor": Actor(envs), "qf1": SoftQNetwork(envs), "qf2": SoftQNetwork(envs)})
        targets = copy.deepcopy(networks.to(device)).requires_grad_(False)
        del targets["actor"]
        (actor, qf1, qf2), (qf1_target, qf2_target) = networks.values(), targets.values()
        critics = *qf1.parameters(), *qf2.parameters()
        networks.log_alpha = nn.Parameter(torch.tensor(1.0 if args.autotune else args.alpha, device=device).log())
        target_entropy = args.target_entropy_scale * np.log(envs.single_action_space.n) if args.autotune else None
        policy_lr, q_lr = torch.tensor([args.policy_lr, args.q_lr], device=device)  # CUDA graphs read tensors anew
        policy = {"params": actor.parameters(), "lr": policy_lr}, {"params": networks.log_alpha, "lr": q_lr}
        q_optimizer = torch.optim.Adam(critics, q_lr, eps=1e-4, fused=True, capturable=q_lr.is_cuda)
        actor_optimizer = torch.optim.Adam(policy, eps=1e-4, fused=True, capturable=q_lr.is_cuda)
        shape = args.buffer_size, (4, 4, 1, 1, 1)
        buffer = run.fit(ReplayBuffer, *shape, device) if run else ReplayBuffer(*shape, device)
    except (gym.error.Error, AssertionError, ImportError, TypeError, ValueError, OSError) as error:
        sys.exit(f"cannot train on {args.env_id}: {run.advice(args.env_id, error) if run else error}")

    def critic_backward(obs, next_obs, actions, rewards, terminations):
        with torch.no_grad():
            next_logprobs = actor(next_obs)
            # clipped double Q-learning (eq. 10): the smaller value, as maximization would follow overestimates
            next_q_values = torch.minimum(qf1_target(next_obs), qf2_target(next_obs))
            next_q_values = next_q_values - networks.log_alpha.exp() * next_logprobs
            next_q_values = (next_logprobs.exp() * next_q_values).sum(-1, keepdim=True)
        qf_values = qf1(obs).gather(-1, actions.long()), qf2(obs).gather(-1, actions.long())
        loss, stats = critic_loss(*qf_values, next_q_values, rewards, terminations, args.gamma)
        loss.backward()
        return stats

    def actor_backward(obs):
        with torch.no_grad():
            q_values = torch.minimum(qf1(obs), qf2(obs))
        loss, stats = policy_loss(q_values, actor(obs), networks.log_alpha, target_entropy)
        loss.backward()
        return stats

    def update(*minibatch):
        q_optimizer.zero_grad()
        stats = critic_backward(*minibatch)
        q_optimizer.step()
        actor_optimizer.zero_grad()
        stats |= actor_backward(minibatch[0])
        actor_optimizer.step()
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
        # Act: at random until learning starts, then by the policy
        obs = next_obs.copy()  # the environments reuse their array
        if learning := global_step > max(args.learning_starts, args.num_envs):
            actions = actor.get_action(torch.tensor(obs, device=device).float(), 1.0).cpu().numpy()
        else:
            actions = np.random.randint(envs.single_action_space.n, size=args.num_envs)

        # Learn: before the environments step, so that on a GPU both happen at the same time
        for step in range(global_step - args.num_envs + 1, global_step + 1) if learning else ():
            if step % args.update_frequency == 0:
                stats = update(*(x.to(device) for x in buffer.sample(args.batch_size)))
            if step % args.target_network_frequency == 0:
                torch._foreach_lerp_(list(targets.parameters()), [x.data for x in critics], args.tau)

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
