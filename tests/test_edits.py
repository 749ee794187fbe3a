"""Edits that researchers make: whatever they change, `--accelerate` never trains something else than the text says.

Each edit is trained with `--accelerate off`, `auto` and `on`. Under `auto` an edited file runs as written. Under `on`
it gives the same bits as well, or the audit stops it in one line. The table says which of these happens on a CPU.
"""

import json
import textwrap
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ROOT, Runner
from torch.utils._pytree import tree_flatten

MODES = ("off", "auto", "on")
STOPPED_BY_THE_AUDIT = "--accelerate on: the replay of"
RUNS_AS_WRITTEN = "runs as written, as it is not a released file"

# What `--accelerate on` makes of an edit on a CPU: which functions it replays, or that an audit stops the run.
BOTH, UPDATE, ACT, NEITHER, STOPPED = "both", "update", "act", "neither", "stopped"

PPO_FLAGS = "--num-envs 2 --num-steps 16 --num-minibatches 2 --update-epochs 2 --total-timesteps 512"
FLAGS = {
    "ppo": PPO_FLAGS,
    "ppo_continuous_action": f"{PPO_FLAGS} --env-id Pendulum-v1 --learning-rate 1e-3",
    "dqn": "--total-timesteps 330 --learning-starts 100 --train-frequency 3 --batch-size 32 --buffer-size 200 "
    "--target-network-frequency 60 --end-e 0.5",
    "sac_continuous_action": "--env-id Pendulum-v1 --total-timesteps 90 --learning-starts 30 --batch-size 16 "
    "--buffer-size 200",
}


@dataclass
class Edit:
    file: str
    name: str
    outcome: str
    replacements: tuple[tuple[str, str], ...]
    is_neutral: bool  # it changes what is done, not what is learned

    def apply(self) -> str:
        """The text of the file after the edit."""
        text = (ROOT / "cleanrl" / f"{self.file}.py").read_text()
        for old, new in self.replacements:
            count = text.count(old)
            assert count == 1, f"{self.name}: {self.file}.py contains this text {count} times instead of once:\n{old}"
            text = text.replace(old, new)
        return text


EDITS: list[Edit] = []


def edit(file: str, name: str, outcome: str, *replacements: tuple[str, str], is_neutral: bool = False) -> None:
    EDITS.append(Edit(file, name, outcome, replacements, is_neutral))


def before(anchor: str, code: str) -> tuple[str, str]:
    """Insert code above a line, with its indentation."""
    return anchor, indented(anchor, code) + anchor


def after(anchor: str, code: str) -> tuple[str, str]:
    """Insert code below a line, with its indentation."""
    assert anchor.endswith("\n")
    return anchor, anchor + indented(anchor, code)


def inside(anchor: str, code: str) -> tuple[str, str]:
    """Insert code as the first lines of a function or class."""
    return anchor, anchor + textwrap.indent(indented(anchor, code), "    ")


def indented(anchor: str, code: str) -> str:
    indentation = anchor[: len(anchor) - len(anchor.lstrip())]
    return textwrap.indent(textwrap.dedent(code).strip() + "\n", indentation)


# Places in the files
DEFINITIONS = "    def update("  # above it all networks and optimizers are made
STATE = '        "envs": envs,\n'
ZERO_GRAD = "        optimizer.zero_grad()\n"
BACKWARD = "        loss.backward()\n"
STEP = "        optimizer.step()\n"
RETURN = "        return stats\n"
PPO_LOOP = "        # Rollout: the policy only"  # the beginning of an iteration
OTHER_LOOP = "        # Act: "  # the beginning of a step
HALF_WAY = "if iteration == args.num_iterations // 2:"
HALF_WAY_STEP = "if global_step == args.total_timesteps * 2 // 3:"
NETWORK = "        super().__init__()\n"
ACTION = "    def get_action(self, x, deterministic=False):\n"
EVALUATE = "    def evaluate_actions(self, x, action):\n"
PPO_ADAM = "torch.optim.Adam(agent.parameters(), learning_rate, eps=1e-5, fused=True)"
PPO_LOGITS = "        logits = self.actor(x)\n"
PPO_ANNEAL = "            learning_rate.fill_(remaining * args.learning_rate)\n"
PPO_VALUE_LOSS = "    value_loss = 0.5 * value_loss.mean()\n"
PPO_UPDATE = "update(b_obs[mb], b_actions[mb], b_logprobs[mb], b_advantages[mb], b_returns[mb], b_values[mb])"
FIRST_LAYER = "        layer_init(nn.Linear(input_dim, 64)),\n"
DQN_ADAM = "torch.optim.Adam(q_network.parameters(), learning_rate, fused=True)"
DQN_LOSS = "((taken_q_values - td_target) ** 2).mean()"
DQN_TARGET = "            next_q_values = target_network(mb_next_obs)\n"
DQN_UPDATE_TARGET = "                    update_target(target_network, q_network, args.tau)\n"
DQN_UPDATE = "                    stats = update(mb_obs, mb_next_obs, mb_actions, mb_rewards, mb_terminations)\n"
DQN_HEAD = "nn.Linear(84, num_actions)"
SAC_ACTOR_LOSS = "(alpha * logprobs - q_values).mean()"
SAC_CRITIC_LOSS = "        qf_loss = qf1_loss + qf2_loss\n"
SAC_LAYER = "nn.Linear(256, 256)"


# Schedules: a number that the training loop changes, wherever it is kept

edit(
    "ppo",
    "entropy coefficient in args falls",
    BOTH,
    before(PPO_LOOP, "args.ent_coef = 0.01 * (1 - iteration / args.num_iterations)"),
)
edit(
    "ppo",
    "entropy coefficient in args is another one in a single iteration between two audits",
    BOTH,
    before(PPO_LOOP, "args.ent_coef = 0.5 if iteration == 11 else 0.01"),
)
edit(
    "ppo",
    "layer is frozen in a single iteration between two audits",
    BOTH,
    before(PPO_LOOP, "agent.actor[0].weight.requires_grad_(iteration != 11)"),
)
edit(
    "ppo",
    "clipping range in args falls half way",
    BOTH,
    before(PPO_LOOP, f"{HALF_WAY}\n    args.clip_coef = 1e-4"),
)
edit(
    "ppo",
    "temperature in an attribute rises",
    STOPPED,
    after(NETWORK, "self.temperature = 1.0"),
    after(PPO_LOGITS, "logits = logits / self.temperature"),
    before(PPO_LOOP, "agent.temperature *= 0.7"),
)
edit(
    "ppo",
    "loss scale in a dictionary falls",
    STOPPED,
    before(DEFINITIONS, 'schedule = {"scale": 1.0}'),
    before(BACKWARD, 'loss = schedule["scale"] * loss'),
    (PPO_ADAM, "torch.optim.Adam(agent.parameters(), learning_rate, eps=0.1, fused=True)"),
    before(PPO_LOOP, 'schedule["scale"] *= 0.9'),
)
edit(
    "ppo",
    "loss scale in a closure falls",
    STOPPED,
    before(
        DEFINITIONS,
        """
        def make_schedule():
            scale = 1.0

            def get():
                return scale

            def decay():
                nonlocal scale
                scale *= 0.9

            return get, decay

        get_scale, decay_scale = make_schedule()
        """,
    ),
    (PPO_VALUE_LOSS, "    value_loss = get_scale() * value_loss.mean()\n"),
    before(PPO_LOOP, "decay_scale()"),
)
edit(
    "ppo",
    "weight of the value loss in a NumPy number falls",
    STOPPED,
    before(DEFINITIONS, "value_weight = np.float64(0.5)"),
    (PPO_VALUE_LOSS, "    value_loss = value_weight * value_loss.mean()\n"),
    before(PPO_LOOP, "value_weight = value_weight * 0.9"),
)
edit(
    "ppo",
    "weight of the value loss in a NumPy array falls",
    STOPPED,
    before(DEFINITIONS, "value_weight = np.full(1, 0.5)"),
    (PPO_VALUE_LOSS, "    value_loss = value_weight[0] * value_loss.mean()\n"),
    before(PPO_LOOP, "value_weight *= 0.9"),
)
edit(
    "ppo",
    "weight of the value loss in a global falls half way",
    STOPPED,
    before(DEFINITIONS, "value_weight = 0.5"),
    (PPO_VALUE_LOSS, "    value_loss = value_weight * value_loss.mean()\n"),
    before(PPO_LOOP, f"{HALF_WAY}\n    value_weight = 0.1"),
)
edit(
    "ppo",
    "weight of the value loss in a tensor falls in place",
    BOTH,
    before(DEFINITIONS, "value_weight = torch.tensor(0.5, device=device)"),
    (PPO_VALUE_LOSS, "    value_loss = value_weight * value_loss.mean()\n"),
    before(PPO_LOOP, "value_weight.mul_(0.9)"),
)
edit(
    "ppo",
    "weight of the value loss is an argument of update and changes in each call",
    ACT,
    ("def update(mb_obs,", "def update(value_weight, mb_obs,"),
    before(BACKWARD, "loss = loss + value_weight * (newvalues - mb_returns).abs().mean()"),
    (PPO_UPDATE, PPO_UPDATE.replace("update(", "update(1 / (iteration + len(all_stats) / 100), ")),
)
edit(
    "ppo",
    "learning-rate tensor is replaced by a new one",
    STOPPED,
    (
        PPO_ANNEAL,
        "            learning_rate = torch.tensor(remaining * args.learning_rate, device=device)\n"
        '            optimizer.param_groups[0]["lr"] = learning_rate\n',
    ),
    is_neutral=True,
)
edit(
    "ppo",
    "learning rate is a number and falls",
    STOPPED,
    (PPO_ADAM, "torch.optim.Adam(agent.parameters(), args.learning_rate, eps=1e-5, fused=True)"),
    (PPO_ANNEAL, '            optimizer.param_groups[0]["lr"] = remaining * args.learning_rate\n'),
)
edit(
    "ppo_continuous_action",
    "noise of the policy falls with its calls",
    UPDATE,
    after(NETWORK, "self.noise_scale = 1.0"),
    inside(ACTION, "self.noise_scale *= 0.999"),
    ("torch.randn_like(action)", "self.noise_scale * torch.randn_like(action)"),
)
edit(
    "ppo_continuous_action",
    "noise of the policy falls in the loop",
    STOPPED,
    after(NETWORK, "self.noise_scale = 1.0"),
    ("torch.randn_like(action)", "self.noise_scale * torch.randn_like(action)"),
    before(PPO_LOOP, "agent.noise_scale = 1 - iteration / args.num_iterations"),
)
edit(
    "ppo_continuous_action",
    "standard deviation falls in place",
    BOTH,
    before(PPO_LOOP, "with torch.no_grad():\n    agent.actor_logstd.sub_(0.01)"),
)
edit(
    "dqn",
    "discount in args rises",
    NEITHER,
    before(OTHER_LOOP, "args.gamma = 0.9 + 0.09 * global_step / args.total_timesteps"),
)
edit(
    "sac_continuous_action",
    "target entropy in a global falls",
    BOTH,
    before(OTHER_LOOP, "target_entropy -= 0.01"),
)
edit(
    "sac_continuous_action",
    "a schedule shows only in updates of the actor",
    STOPPED,
    before(DEFINITIONS, "entropy_weight = 1.0"),
    (SAC_ACTOR_LOSS, "(entropy_weight * alpha * logprobs - q_values).mean()"),
    before(OTHER_LOOP, f"{HALF_WAY_STEP}\n    entropy_weight = 0.1"),
)
edit(
    "sac_continuous_action",
    "a schedule shows only in updates without the actor",
    STOPPED,
    before(DEFINITIONS, "error_weight = 0.0"),
    after(SAC_CRITIC_LOSS, "if not policy_is_due:\n    qf_loss = qf_loss + error_weight * qf_loss**2"),
    before(OTHER_LOOP, f"{HALF_WAY_STEP}\n    error_weight = 1.0"),
)

edit(
    "ppo",
    "the number of steps so far decides in the update",
    STOPPED,
    before(BACKWARD, "if global_step > 300:\n    loss = loss * loss.detach()"),
)

# Networks that change half way

edit(
    "ppo",
    "eval() half way, with dropout",
    BOTH,
    (FIRST_LAYER, "        nn.Dropout(0.2),\n" + FIRST_LAYER),
    before(PPO_LOOP, f"{HALF_WAY}\n    agent.eval()"),
)
edit(
    "ppo",
    "eval() for the rollout, train() for the update, with dropout",
    BOTH,
    (FIRST_LAYER, "        nn.Dropout(0.2),\n" + FIRST_LAYER),
    before(PPO_LOOP, "agent.eval()"),
    before("        # Update\n", "agent.train()"),
)
edit(
    "ppo",
    "a layer is frozen half way",
    BOTH,
    before(PPO_LOOP, f"{HALF_WAY}\n    agent.actor[0].requires_grad_(False)"),
)
edit(
    "ppo",
    "a layer is replaced half way",
    STOPPED,
    before(PPO_LOOP, f"{HALF_WAY}\n    agent.actor[2] = nn.Linear(64, 64).to(device)"),
)
edit(
    "ppo",
    "a layer is reset half way, in place",
    BOTH,
    before(PPO_LOOP, f"{HALF_WAY}\n    layer_init(agent.actor[2])"),
)
edit(
    "ppo",
    "p.data is replaced half way",
    STOPPED,
    before(PPO_LOOP, f"{HALF_WAY}\n    for p in agent.parameters():\n        p.data = 0.9 * p.data"),
)
edit(
    "ppo",
    "p.data is replaced in each update",
    STOPPED,
    after(STEP, "for p in agent.parameters():\n    p.data = 0.999 * p.data"),
)
edit(
    "ppo",
    "p.data is clamped in place in each update",
    BOTH,
    after(STEP, "for p in agent.parameters():\n    p.data.clamp_(-0.2, 0.2)"),
)
edit(
    "dqn",
    "target network by deepcopy",
    STOPPED,
    (DQN_UPDATE_TARGET, "                    target_network = __import__('copy').deepcopy(q_network)\n"),
)
edit(
    "dqn",
    "target network by deepcopy, also in the state",
    STOPPED,
    (
        DQN_UPDATE_TARGET,
        "                    target_network = __import__('copy').deepcopy(q_network)\n"
        '                    state["target_network"] = target_network\n',
    ),
    is_neutral=True,
)
edit(
    "dqn",
    "networks and optimizer start anew half way",
    STOPPED,
    before(
        OTHER_LOOP,
        f"""
        {HALF_WAY_STEP}
            q_network = QNetwork(envs).to(device)
            optimizer = {DQN_ADAM}
            state.update(q_network=q_network, optimizer=optimizer)
        """,
    ),
)
edit(
    "sac_continuous_action",
    "critics are reset half way, and the moments of their optimizer are dropped",
    STOPPED,
    before(
        OTHER_LOOP,
        f"""
        {HALF_WAY_STEP}
            for module in (*qf1.modules(), *qf2.modules()):
                if isinstance(module, nn.Linear):
                    module.reset_parameters()
            q_optimizer.state.clear()
        """,
    ),
)

# Networks with a state of their own

edit(
    "ppo",
    "BatchNorm",
    BOTH,
    (FIRST_LAYER, FIRST_LAYER + "        nn.BatchNorm1d(64),\n"),
)
edit(
    "ppo",
    "LayerNorm",
    BOTH,
    (FIRST_LAYER, FIRST_LAYER + "        nn.LayerNorm(64),\n"),
)
edit(
    "ppo",
    "running statistics in place in the forward pass",
    BOTH,
    after(NETWORK, "self.mean = nn.Buffer(torch.zeros(4))"),
    inside(
        EVALUATE,
        """
        with torch.no_grad():
            self.mean.lerp_(x.mean(0), 0.1)
        x = x - self.mean
        """,
    ),
)
edit(
    "ppo",
    "running statistics reassigned in the forward pass",
    ACT,
    after(NETWORK, "self.mean = nn.Buffer(torch.zeros(4))"),
    inside(EVALUATE, "self.mean = 0.9 * self.mean + 0.1 * x.mean(0)\nx = x - self.mean"),
)
edit(
    "ppo",
    "running statistics reassigned in the policy, where inference_mode is on",
    UPDATE,
    after(NETWORK, "self.mean = nn.Buffer(torch.zeros(4))"),
    inside(ACTION, "self.mean = 0.9 * self.mean + 0.1 * x.mean(0)\nx = x - 100 * self.mean"),
)
edit(
    "ppo_continuous_action",
    "observation statistics in the policy's forward pass",
    BOTH,
    inside(ACTION, "merge_stats(self.obs_mean, self.obs_var, x, 0.01)"),
)
NOISY_LAYER = """class NoisyLinear(nn.Linear):
    def __init__(self, input_dim, output_dim):
        super().__init__(input_dim, output_dim)
        self.noise = nn.Buffer(torch.zeros(output_dim, input_dim))

    def reset_noise(self):
        {reset}

    def forward(self, x):
        return nn.functional.linear(x, self.weight + 0.1 * self.noise, self.bias)


"""
RESET_NOISE = """
for module in {network}.modules():
    if isinstance(module, NoisyLinear):
        module.reset_noise()
"""
WAYS_TO_RESET = {
    "in place": ("self.noise.normal_()", BOTH),
    "by a new tensor": ("self.noise = torch.randn_like(self.noise)", NEITHER),
}
for way, (reset, outcome) in WAYS_TO_RESET.items():
    noisy_network = (
        ("class QNetwork", NOISY_LAYER.format(reset=reset) + "class QNetwork"),
        (DQN_HEAD, "NoisyLinear(84, num_actions)"),
    )
    edit(
        "dqn",
        f"NoisyNet: reset_noise() {way} before each update",
        BOTH if outcome == BOTH else STOPPED,
        *noisy_network,
        before(DQN_UPDATE, RESET_NOISE.format(network="q_network")),
    )
    edit(
        "dqn",
        f"NoisyNet: reset_noise() {way} in policy and update",
        outcome,
        *noisy_network,
        before(ZERO_GRAD, RESET_NOISE.format(network="q_network")),
        inside("    def get_action(self, x):\n", RESET_NOISE.format(network="self")),
    )
edit(
    "ppo",
    "weight_norm",
    BOTH,
    (FIRST_LAYER, "        nn.utils.parametrizations.weight_norm(layer_init(nn.Linear(input_dim, 64))),\n"),
)
edit(
    "ppo",
    "spectral_norm",
    BOTH,
    (FIRST_LAYER, "        nn.utils.parametrizations.spectral_norm(layer_init(nn.Linear(input_dim, 64))),\n"),
)
edit(
    "sac_continuous_action",
    "critics with dropout and LayerNorm",
    BOTH,
    (SAC_LAYER, f"{SAC_LAYER}, nn.Dropout(0.1), nn.LayerNorm(256)"),
)
edit(
    "sac_continuous_action",
    "spectral_norm",
    BOTH,
    (SAC_LAYER, f"nn.utils.parametrizations.spectral_norm({SAC_LAYER})"),
)
edit(
    "ppo",
    "an attribute masks actions, and the loop replaces it",
    UPDATE,
    after(NETWORK, "self.mask = torch.ones(2)"),
    after(PPO_LOGITS, "logits = logits + self.mask.log().clamp(min=-9)"),
    before("            action = act(", "agent.mask = torch.tensor([1.0, float(step % 3 > 0)], device=device)"),
)
edit(
    "ppo",
    "an attribute masks actions, and the loop replaces it rarely",
    STOPPED,
    after(NETWORK, "self.mask = torch.ones(2)"),
    after(PPO_LOGITS, "logits = logits + self.mask.to(logits).log().clamp(min=-9)"),
    before(PPO_LOOP, "agent.mask = torch.tensor([1.0, float(iteration % 3 > 0)], device=device)"),
)

# Hooks

edit(
    "ppo",
    "a step hook of the optimizer clamps weights",
    BOTH,
    before(
        DEFINITIONS,
        """
        @torch.no_grad()
        def clamp(optimizer, args, kwargs):
            for p in agent.parameters():
                p.clamp_(-0.2, 0.2)

        optimizer.register_step_post_hook(clamp)
        """,
    ),
)
edit(
    "ppo",
    "a step hook of the optimizer counts in an attribute of its own",
    ACT,
    before(
        DEFINITIONS,
        """
        class ClampLater:
            count = 0

            @torch.no_grad()
            def __call__(self, optimizer, args, kwargs):
                self.count += 1
                if self.count > 20:
                    for p in agent.parameters():
                        p.clamp_(-0.2, 0.2)

        optimizer.register_step_pre_hook(ClampLater())
        """,
    ),
)
edit(
    "ppo",
    "a gradient hook scales",
    BOTH,
    before(DEFINITIONS, "agent.actor[0].weight.register_hook(lambda gradient: 0.1 * gradient)"),
)
edit(
    "ppo",
    "a gradient hook counts its calls and decides by them",
    ACT,
    before(
        DEFINITIONS,
        """
        def make_hook():
            calls = 0

            def hook(gradient):
                nonlocal calls
                calls += 1
                return gradient * (1.0 if calls <= 30 else 0.1)

            return hook

        agent.actor[0].weight.register_hook(make_hook())
        """,
    ),
)
edit(
    "ppo",
    "a forward hook counts its calls and decides by them",
    NEITHER,
    before(
        DEFINITIONS,
        """
        def make_hook():
            calls = [0]

            def hook(module, inputs, output):
                calls[0] += 1
                return output * (1.0 if calls[0] <= 200 else 0.5)

            return hook

        agent.actor[4].register_forward_hook(make_hook())
        """,
    ),
)

# Random numbers

edit(
    "ppo",
    "Python's random numbers in the update",
    ACT,
    before(BACKWARD, "if random.random() < 0.5:\n    loss = loss * loss.detach()"),
)
edit(
    "ppo",
    "NumPy's random numbers in the update",
    ACT,
    before(BACKWARD, "loss = loss + np.random.rand() * entropy.mean()"),
)
edit(
    "ppo",
    "a NumPy generator in the update",
    ACT,
    before(DEFINITIONS, "generator = np.random.default_rng(args.seed)"),
    before(BACKWARD, "if generator.random() < 0.2:\n    loss = loss * loss.detach()"),
)
edit(
    "ppo",
    "a generator of Python in the update",
    ACT,
    before(DEFINITIONS, "generator = random.Random(args.seed)"),
    before(BACKWARD, "if generator.random() < 0.2:\n    loss = loss * loss.detach()"),
)
edit(
    "ppo",
    "PyTorch's random numbers in the update",
    BOTH,
    before(BACKWARD, "loss = loss + torch.rand(2, device=device).prod() * entropy.mean()"),
)
edit(
    "ppo",
    "a PyTorch generator in the update",
    ACT,
    before(DEFINITIONS, "generator = torch.Generator(device).manual_seed(args.seed)"),
    before(BACKWARD, "loss = loss + torch.rand((), generator=generator, device=device) * entropy.mean()"),
)
edit(
    "ppo",
    "Python's random numbers in the policy",
    UPDATE,
    after(PPO_LOGITS, "if random.random() < 0.1:\n    logits = logits * 0"),
)
edit(
    "ppo_continuous_action",
    "NumPy's random numbers in the policy",
    UPDATE,
    ("torch.randn_like(action)", "torch.as_tensor(np.random.randn(2, 1).astype(np.float32)).to(action)"),
)
edit(
    "ppo",
    "the update sets PyTorch's seed",
    STOPPED,
    before(ZERO_GRAD, "torch.manual_seed(args.seed)"),
)
edit(
    "dqn",
    "dropout in the network",
    BOTH,
    (DQN_HEAD, f"nn.Sequential(nn.Dropout(0.1), {DQN_HEAD})"),
)

# Optimizers

edit(
    "ppo",
    "RMSprop",
    BOTH,
    (PPO_ADAM, "torch.optim.RMSprop(agent.parameters(), args.learning_rate)"),
)
edit(
    "ppo",
    "RMSprop with a tensor as learning rate",
    ACT,
    (PPO_ADAM, "torch.optim.RMSprop(agent.parameters(), learning_rate)"),
)
edit(
    "ppo",
    "SGD with momentum",
    BOTH,
    (PPO_ADAM, "torch.optim.SGD(agent.parameters(), args.learning_rate, momentum=0.9)"),
)
edit(
    "ppo",
    "AdamW",
    BOTH,
    (PPO_ADAM, "torch.optim.AdamW(agent.parameters(), learning_rate, fused=True)"),
)
edit(
    "ppo",
    "Adam as PyTorch chooses it",
    ACT,
    (PPO_ADAM, "torch.optim.Adam(agent.parameters(), args.learning_rate)"),
)
edit(
    "ppo",
    "two groups of parameters",
    BOTH,
    (
        PPO_ADAM,
        'torch.optim.Adam([{"params": agent.actor.parameters()}, {"params": agent.critic.parameters(), "lr": 1e-3}], '
        "learning_rate, fused=True)",
    ),
)
edit(
    "ppo",
    "another optimizer half way",
    STOPPED,
    before(PPO_LOOP, f"{HALF_WAY}\n    optimizer = torch.optim.SGD(agent.parameters(), 1e-3)"),
)
edit(
    "ppo",
    "learning-rate scheduler in the loop",
    BOTH,
    before(DEFINITIONS, "scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)"),
    (PPO_ANNEAL, "            scheduler.step()\n"),
)
edit(
    "ppo",
    "learning-rate scheduler in the update",
    ACT,
    before(DEFINITIONS, "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 30)"),
    (PPO_ANNEAL, "            pass\n"),
    after(STEP, "scheduler.step()"),
)
edit(
    "ppo",
    "clip_grad_value_",
    BOTH,
    after(BACKWARD, "nn.utils.clip_grad_value_(agent.parameters(), 0.001)"),
)
edit(
    "ppo",
    "gradient accumulation over two updates",
    ACT,
    before(DEFINITIONS, "num_updates = 0"),
    (
        f"{ZERO_GRAD}",
        "        global num_updates\n        if num_updates % 2 == 0:\n            optimizer.zero_grad()\n",
    ),
    (STEP, "        num_updates += 1\n        if num_updates % 2 == 0:\n            optimizer.step()\n"),
)
edit(
    "ppo",
    "gradient accumulation over two updates, told by an argument",
    BOTH,
    ("def update(mb_obs,", "def update(is_second, mb_obs,"),
    (ZERO_GRAD, "        if not is_second:\n            optimizer.zero_grad()\n"),
    (STEP, "        if is_second:\n            optimizer.step()\n"),
    (PPO_UPDATE, PPO_UPDATE.replace("update(", "update(len(all_stats) % args.num_minibatches > 0, ")),
)
edit(
    "ppo",
    "gradients are set to zero, not removed",
    BOTH,
    (ZERO_GRAD, "        optimizer.zero_grad(set_to_none=False)\n"),
    is_neutral=True,
)
edit(
    "ppo",
    "weights averaged in a copy outside the state, towards which they are pulled",
    BOTH,
    before(DEFINITIONS, "average = __import__('copy').deepcopy(agent).requires_grad_(False)"),
    after(
        STEP,
        """
        with torch.no_grad():
            for mean, p in zip(average.parameters(), agent.parameters()):
                mean.lerp_(p, 0.1)
                p.lerp_(mean, 0.5)
        """,
    ),
)
edit(
    "ppo",
    "a second network and its optimizer outside the state",
    BOTH,
    before(
        DEFINITIONS,
        """
        predictor = nn.Linear(4, 1).to(device)
        predictor_optimizer = torch.optim.Adam(predictor.parameters(), learning_rate, fused=True)
        """,
    ),
    before(BACKWARD, "loss = loss + (predictor(mb_obs).squeeze(-1) - newvalues).square().mean()"),
    after(BACKWARD, "predictor_optimizer.step()\npredictor_optimizer.zero_grad()"),
)

# Values that the host sees

edit(
    "ppo",
    ".item() in the update",
    ACT,
    before(BACKWARD, "loss = loss / max(1.0, loss.item())"),
)
edit(
    "ppo",
    "`if` on a tensor in the update",
    ACT,
    (STEP, "        if loss.detach() < 9:\n            optimizer.step()\n"),
)
edit(
    "ppo",
    "`if` on .tolist() in the update",
    ACT,
    (STEP, "        if loss.detach().tolist() < 9:\n            optimizer.step()\n"),
)
edit(
    "ppo",
    "`if` on .numpy() in the update",
    ACT,
    (STEP, "        if loss.detach().cpu().numpy() < 9:\n            optimizer.step()\n"),
)
edit(
    "ppo",
    "`if` on a tensor in the policy",
    UPDATE,
    after(PPO_LOGITS, "if x[0, 0] > 0:\n    logits = 100 * logits"),
)
edit(
    "ppo",
    "the update raises its own learning rate where the ratio is small",
    ACT,
    before(STEP, 'if stats["clipfrac"] == 0:\n    learning_rate.mul_(1.01)'),
)
edit(
    "ppo",
    "a loss is appended to a list",
    ACT,
    before(DEFINITIONS, "losses = []"),
    after(BACKWARD, "losses.append(loss.detach())"),
    before(PPO_LOOP, "if losses:\n    learning_rate.mul_(1 + len(losses) / 100)"),
)
edit(
    "ppo",
    "the policy keeps its entropies in a list",
    UPDATE,
    after(NETWORK, "self.entropies = []"),
    after(PPO_LOGITS, "self.entropies.append(logits.softmax(-1).max())"),
    before(PPO_LOOP, "learning_rate.mul_(1 + len(agent.entropies) / 1000)"),
)
edit(
    "dqn",
    "priorities in NumPy are written in the update",
    ACT,
    before(DEFINITIONS, "priorities = np.ones(30_000)"),
    after(
        BACKWARD,
        """
        errors = (q_values - next_q_values).detach().abs().amax(-1)
        priorities[: len(errors)] = errors.cpu().numpy()
        """,
    ),
    before(DQN_UPDATE, "mb_rewards = mb_rewards * float(priorities[: args.batch_size].mean())"),
)

# Counters in the update that decide something

LATE = "loss = loss * loss.detach()"
edit(
    "ppo",
    "counter in a global",
    ACT,
    before(DEFINITIONS, "num_updates = 0"),
    before(ZERO_GRAD, "global num_updates\nnum_updates += 1"),
    before(BACKWARD, f"if num_updates > 30:\n    {LATE}"),
)
edit(
    "ppo",
    "counter in an attribute",
    ACT,
    after(NETWORK, "self.num_updates = 0"),
    before(BACKWARD, f"agent.num_updates += 1\nif agent.num_updates > 30:\n    {LATE}"),
)
edit(
    "ppo",
    "counter in an attribute of a class",
    ACT,
    ("    def get_value(", "    num_updates = 0\n\n    def get_value("),
    before(BACKWARD, f"Agent.num_updates += 1\nif Agent.num_updates > 30:\n    {LATE}"),
)
edit(
    "ppo",
    "counter in an attribute of a function",
    ACT,
    before(BACKWARD, f"ppo_loss.calls = getattr(ppo_loss, 'calls', 0) + 1\nif ppo_loss.calls > 30:\n    {LATE}"),
)
edit(
    "ppo",
    "counter in a closure",
    ACT,
    before(
        DEFINITIONS,
        """
        def make_counter():
            count = 0

            def is_late():
                nonlocal count
                count += 1
                return count > 30

            return is_late

        is_late = make_counter()
        """,
    ),
    before(BACKWARD, f"if is_late():\n    {LATE}"),
)
edit(
    "ppo",
    "counter from itertools",
    ACT,
    before(DEFINITIONS, "counter = __import__('itertools').count()"),
    before(BACKWARD, f"if next(counter) > 30:\n    {LATE}"),
)
edit(
    "ppo",
    "counter in a generator",
    ACT,
    before(DEFINITIONS, "is_late = (i > 30 for i in range(10**6))"),
    before(BACKWARD, f"if next(is_late):\n    {LATE}"),
)
edit(
    "ppo",
    "counter deep in an object",
    ACT,
    before(
        DEFINITIONS,
        """
        class Node:
            pass

        plan = Node()
        plan.loss = Node()
        plan.loss.schedule = Node()
        plan.loss.schedule.counts = {"updates": 0}
        """,
    ),
    before(
        BACKWARD,
        f"""
        plan.loss.schedule.counts["updates"] += 1
        if plan.loss.schedule.counts["updates"] > 30:
            {LATE}
        """,
    ),
)
edit(
    "ppo",
    "counter in the policy, in a global",
    UPDATE,
    before("class Agent", "num_actions_taken = 0\n\n\n"),
    inside(ACTION, "global num_actions_taken\nnum_actions_taken += 1"),
    after(PPO_LOGITS, "if num_actions_taken > 200:\n    logits = 100 * logits"),
)
edit(
    "ppo",
    "counter in the policy, in an attribute",
    UPDATE,
    after(NETWORK, "self.calls = 0"),
    after(PPO_LOGITS, "self.calls += 1\nif self.calls > 200:\n    logits = 100 * logits"),
)
edit(
    "dqn",
    "target network inside the update, by a counter",
    ACT,
    before(DEFINITIONS, "num_updates = 0"),
    after(
        STEP,
        """
        global num_updates
        num_updates += 1
        if num_updates % 20 == 0:
            update_target(target_network, q_network, 0.5)
        """,
    ),
)

# Losses

edit(
    "ppo",
    "boolean mask in the loss",
    ACT,
    before(BACKWARD, "loss = loss + newvalues[mb_advantages > 0].square().mean()"),
)
edit(
    "ppo",
    "integer indices in the loss",
    BOTH,
    before(BACKWARD, "loss = loss + agent.actor(mb_obs)[torch.arange(len(mb_obs)), mb_actions].square().mean()"),
)
edit(
    "ppo",
    "gradient penalty",
    BOTH,
    before(
        BACKWARD,
        """
        x = mb_obs.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(agent.get_value(x).sum(), x, create_graph=True)
        loss = loss + gradient.square().sum(-1).mean()
        """,
    ),
)
edit(
    "ppo",
    "torch.distributions",
    ACT,
    before(
        BACKWARD,
        """
        distribution = torch.distributions.Categorical(logits=agent.actor(mb_obs))
        loss = loss - 0.1 * distribution.entropy().mean() + 0.01 * distribution.log_prob(mb_actions).mean()
        """,
    ),
)
edit(
    "ppo_continuous_action",
    "torch.distributions without validation",
    BOTH,
    before(
        BACKWARD,
        """
        distribution = torch.distributions.Normal(newvalues, torch.ones_like(newvalues), validate_args=False)
        loss = loss - 0.1 * distribution.log_prob(mb_returns).mean() + 0.1 * distribution.rsample().mean()
        """,
    ),
)
edit(
    "ppo",
    "custom autograd.Function",
    BOTH,
    (
        "class Agent(",
        """class ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.scale, None


class Agent(""",
    ),
    before(BACKWARD, "loss = loss + ScaleGradient.apply(newvalues, 0.1).square().mean()"),
)
edit(
    "ppo",
    "torch.func: the gradient of each sample",
    BOTH,
    before(
        BACKWARD,
        """
        def value_of(x):
            return agent.get_value(x[None])[0]

        loss = loss + torch.func.vmap(torch.func.grad(value_of))(mb_obs).square().mean()
        """,
    ),
)
edit(
    "ppo",
    "autocast to bfloat16",
    BOTH,
    (
        "        newlogprobs, entropy, newvalues = agent.evaluate_actions(mb_obs, mb_actions)\n",
        "        with torch.autocast(device.type, dtype=torch.bfloat16):\n"
        "            newlogprobs, entropy, newvalues = agent.evaluate_actions(mb_obs, mb_actions)\n",
    ),
)
edit(
    "ppo",
    "a sparse embedding",
    ACT,
    before(DEFINITIONS, "embedding = nn.Embedding(2, 1, sparse=True).to(device)"),
    before(BACKWARD, "loss = loss + (embedding(mb_actions).squeeze(-1) - newvalues).square().mean()"),
)
edit(
    "dqn",
    "Huber loss",
    BOTH,
    (DQN_LOSS, "nn.functional.smooth_l1_loss(taken_q_values, td_target)"),
)
edit(
    "dqn",
    "double DQN",
    BOTH,
    (
        DQN_TARGET,
        "            best_actions = q_network(mb_next_obs).argmax(-1, keepdim=True)\n"
        "            next_q_values = target_network(mb_next_obs).gather(-1, best_actions)\n",
    ),
)
edit(
    "dqn",
    "weights of samples from NumPy, as an argument",
    BOTH,
    ("def update(mb_obs,", "def update(mb_weights, mb_obs,"),
    before(BACKWARD, "loss = loss * (mb_weights.mean() + mb_weights.max())"),
    (
        DQN_UPDATE,
        "                    mb_weights = torch.as_tensor(np.random.rand(args.batch_size), device=device).float()\n"
        + DQN_UPDATE.replace("update(", "update(mb_weights, "),
    ),
)
edit(
    "dqn",
    "weights of samples from NumPy, in the update",
    ACT,
    before(BACKWARD, "loss = loss * torch.as_tensor(np.random.rand(), device=device).float()"),
)
edit(
    "dqn",
    "target network inside the update, softly",
    BOTH,
    after(STEP, "update_target(target_network, q_network, 0.05)"),
)
edit(
    "sac_continuous_action",
    "gradients of the critics are clipped",
    BOTH,
    after("        qf_loss.backward()\n", "nn.utils.clip_grad_norm_(q_params, 0.1)"),
)
edit(
    "sac_continuous_action",
    "a third critic in a list outside the state",
    BOTH,
    before(DEFINITIONS, "others = [QNetwork(envs).to(device)]"),
    before(DEFINITIONS + "mb", "q_optimizer.add_param_group({'params': others[0].parameters()})"),
    after(SAC_CRITIC_LOSS, "qf_loss = qf_loss + (others[0](mb_obs, mb_actions) - qf1_values).square().mean()"),
)

# How the functions are called, and what surrounds them

edit(
    "ppo",
    "update is called with keywords",
    ACT,
    (PPO_UPDATE, PPO_UPDATE.replace("b_values[mb]", "mb_values=b_values[mb]")),
    is_neutral=True,
)
edit(
    "ppo",
    "update takes a dictionary",
    ACT,
    ("def update(mb_obs, mb_actions,", "def update(batch,"),
    before(ZERO_GRAD, 'mb_obs, mb_actions = batch["obs"], batch["actions"]'),
    (PPO_UPDATE, PPO_UPDATE.replace("b_obs[mb], b_actions[mb]", '{"obs": b_obs[mb], "actions": b_actions[mb]}')),
    is_neutral=True,
)
edit(
    "ppo",
    "update takes a tuple",
    ACT,
    ("def update(mb_obs, mb_actions,", "def update(batch,"),
    before(ZERO_GRAD, "mb_obs, mb_actions = batch"),
    (PPO_UPDATE, PPO_UPDATE.replace("b_obs[mb], b_actions[mb]", "(b_obs[mb], b_actions[mb])")),
    is_neutral=True,
)
edit(
    "ppo",
    "the loop also acts deterministically",
    BOTH,
    before(PPO_LOOP, "learning_rate.add_(act(obs[0], deterministic=True).float().mean() * 1e-4)"),
)
edit(
    "ppo",
    "the loop also acts deterministically, with a flag by position",
    BOTH,
    before(PPO_LOOP, "learning_rate.add_(act(obs[0], True).float().mean() * 1e-4)"),
)
edit(
    "ppo",
    "update gives the loss, and the loop does the rest",
    ACT,
    (BACKWARD, "        return loss, stats\n\n    def learn(loss, stats):\n        loss.backward()\n"),
    (f"stats = {PPO_UPDATE}", f"loss, stats = {PPO_UPDATE}\n                stats = learn(loss, stats)"),
    is_neutral=True,
)
edit(
    "ppo",
    "envs.step is wrapped before",
    BOTH,
    before(
        DEFINITIONS,
        """
        original_step = envs.step

        def step_with_scaled_rewards(action):
            next_obs, reward, *rest = original_step(action)
            return next_obs, 0.1 * reward, *rest

        envs.step = step_with_scaled_rewards
        """,
    ),
)
edit(
    "ppo",
    "the policy is wrapped before",
    BOTH,
    (
        "    act = agent.get_action\n",
        "    def act(x):\n        return 1 - agent.get_action(x)\n\n",
    ),
)
edit(
    "ppo",
    "the update asks the policy for actions",
    BOTH,
    before(BACKWARD, "loss = loss + act(mb_obs).float().mean() * entropy.mean()"),
)
edit(
    "ppo",
    "gradient checkpointing with dropout",
    STOPPED,
    (FIRST_LAYER, "        nn.Dropout(0.2),\n" + FIRST_LAYER),
    before(
        BACKWARD,
        """
        from torch.utils.checkpoint import checkpoint as recompute

        loss = loss + recompute(agent.get_value, mb_obs, use_reentrant=False).mean()
        """,
    ),
)
edit(
    "ppo",
    "the loop changes what update has returned",
    BOTH,
    (
        "                all_stats.append(stats)\n",
        '                stats["value_loss"].mul_(0)\n                all_stats.append(stats)\n'
        '                learning_rate.add_(sum(x["policy_loss"].abs() for x in all_stats) * 1e-4)\n',
    ),
)
edit(
    "sac_continuous_action",
    "minibatches of two sizes take turns",
    BOTH,
    ("buffer.sample(args.batch_size)", "buffer.sample(args.batch_size + step % 3)"),
)


# Training


@dataclass
class Result:
    code: int
    stderr: str
    leaves: list[np.ndarray | int | float]  # everything in the last checkpoint
    replayed: dict[str, int]


def train(script: Path, flags: str, accelerate: str, device: str, folder: Path) -> Result:
    folder.mkdir()
    flag = "--cuda" if device == "cuda" else "--no-cuda"
    command = [script, *flags.split(), "--accelerate", accelerate, flag]
    result = Runner(folder).run(*command, check=False, gpu=device == "cuda")
    report = folder / "replayed.json"
    replayed = json.loads(report.read_text()) if report.exists() else {}
    return Result(result.returncode, result.stderr, checkpoint_leaves(folder, device), replayed)


def checkpoint_leaves(folder: Path, device: str) -> list:
    """The tensors, arrays and numbers of the last checkpoint, without the arguments, of which one differs."""
    path = next(folder.glob("runs/*/checkpoint.pt"), None)
    if path is None:
        return []
    checkpoint = torch.load(path, weights_only=False, map_location="cpu")
    assert bool(checkpoint["cuda_random"]) == (device == "cuda")  # it did run there
    del checkpoint["args"], checkpoint["envs"]
    leaves = tree_flatten(checkpoint)[0]
    return [x.detach().numpy() if isinstance(x, torch.Tensor) else x for x in leaves]


def same_bits(a: list, b: list) -> bool:
    if len(a) != len(b):
        return False
    for x, y in zip(a, b):
        if type(x) is not type(y):
            return False
        if isinstance(x, np.ndarray):
            if x.dtype != y.dtype or x.tobytes() != y.tobytes():
                return False
        elif repr(x) != repr(y):
            return False
    return True


@cache
def unedited(file: str, device: str, folder: Path) -> Result:
    return train(ROOT / "cleanrl" / f"{file}.py", FLAGS[file], "off", device, folder / f"unedited_{file}_{device}")


def outcome_of(result: Result) -> str:
    if result.code:
        return STOPPED
    update = bool(result.replayed.get("update"))
    act = any(count for name, count in result.replayed.items() if name != "update")
    return {(True, True): BOTH, (True, False): ACT, (False, True): UPDATE, (False, False): NEITHER}[act, update]


devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def skip_without(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")


def cases() -> list:
    """All edits; of the many to one file with one outcome, every second one beyond the first six is slow."""
    params, seen = [], Counter()
    for case in EDITS:
        kind = case.file, case.outcome
        seen[kind] += 1
        is_slow = seen[kind] > 6 and seen[kind] % 2 == 0
        name = f"{case.file}: {case.name}"
        params.append(pytest.param(case, id=name, marks=pytest.mark.slow if is_slow else ()))
    return params


@devices
@pytest.mark.parametrize("case", cases())
def test_edited_file_trains_what_its_text_says(case, device, tmp_path, tmp_path_factory, monkeypatch):
    skip_without(device)
    script = tmp_path / f"{case.file}.py"
    script.write_text(case.apply())
    results = {}
    for mode in MODES:
        if mode == "on":  # it then writes down what it has replayed
            monkeypatch.setenv("CLEANRL_PROVING", str(tmp_path / "on" / "replayed.json"))
        results[mode] = train(script, FLAGS[case.file], mode, device, tmp_path / mode)
    off, auto, on = (results[mode] for mode in MODES)

    assert off.code == 0, off.stderr
    original = unedited(case.file, device, tmp_path_factory.getbasetemp())
    assert same_bits(off.leaves, original.leaves) == case.is_neutral, "the edit itself makes a difference"

    assert auto.code == 0, auto.stderr
    assert same_bits(off.leaves, auto.leaves)
    assert auto.stderr.count(RUNS_AS_WRITTEN) == 1

    if on.code == 0:
        assert same_bits(off.leaves, on.leaves), f"silently different, replayed: {on.replayed}"
    else:
        assert on.code == 1
        assert on.stderr.splitlines()[-1].startswith(STOPPED_BY_THE_AUDIT), on.stderr
        assert "Traceback" not in on.stderr
    if device == "cpu":
        assert outcome_of(on) == case.outcome, f"{on.replayed} {on.stderr}"


# Errors


ERRORS = {
    "in the update, by a counter": [
        before(DEFINITIONS, "num_updates = 0"),
        before(BACKWARD, "if num_updates > 30:\n    raise ValueError('too late')"),
        before(ZERO_GRAD, "global num_updates\nnum_updates += 1"),
    ],
    "in the update, by a value of a tensor": [
        before(BACKWARD, "if stats['approx_kl'] > 1e-6:\n    raise ValueError('too late')"),
    ],
    "in the update, by what the loop has changed": [
        before(ZERO_GRAD, "if args.ent_coef > 0.01:\n    raise ValueError('too late')"),
        before(PPO_LOOP, f"{HALF_WAY}\n    args.ent_coef = 0.02"),
    ],
    "in the first update": [
        before(BACKWARD, "raise ValueError('too late')"),
    ],
    "in the policy": [
        after(PPO_LOGITS, "if x.abs().max() > 0.3:\n    raise ValueError('too late')"),
    ],
}


@devices
@pytest.mark.parametrize("where", ERRORS)
def test_error_is_raised_whatever_is_replayed(where, device, tmp_path):
    skip_without(device)
    script = tmp_path / "ppo.py"
    script.write_text(Edit("ppo", where, "", tuple(ERRORS[where]), False).apply())
    for mode in MODES:
        result = train(script, FLAGS["ppo"], mode, device, tmp_path / mode)
        assert result.code == 1
        assert "ValueError: too late" in result.stderr, (mode, result.stderr)
        assert "line" in result.stderr.split("ValueError")[0]  # where it happened


def test_the_table_has_edits_of_every_file_and_with_every_outcome():
    assert len(EDITS) >= 45
    assert {case.file for case in EDITS} == FLAGS.keys()
    assert {case.outcome for case in EDITS} == {BOTH, UPDATE, ACT, NEITHER, STOPPED}
    assert len({(case.file, case.name) for case in EDITS}) == len(EDITS)
    assert sum(case.outcome == BOTH for case in EDITS) >= 15
