"""DDPG, TD3 and SAC: their updates against oracles, actions with bounds of their own, and what a run promises."""

import dataclasses
import importlib.util
import runpy
import shutil
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import mpmath
import numpy as np
import pytest
import stable_baselines3 as sb3
import torch
from conftest import ROOT, assert_same_run, curves
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from stable_baselines3.common.type_aliases import ReplayBufferSamples

from cleanrl import ddpg_continuous_action, dqn, sac_continuous_action, td3_continuous_action
from cleanrl.sac_continuous_action import Actor, log_prob, make_env
from cleanrl.td3_continuous_action import Actor as DeterministicActor
from cleanrl.td3_continuous_action import QNetwork, smooth

MODULES = {"ddpg": ddpg_continuous_action, "td3": td3_continuous_action, "sac": sac_continuous_action}
SCRIPTS = {name: Path(module.__file__) for name, module in MODULES.items()}
SHORT = ["--no-cuda", "--total-timesteps", "800", "--learning-starts", "200", "--batch-size", "16"]
PENDULUM = [*SHORT, "--env-id", "Pendulum-v1"]
AS_WRITTEN = ["--accelerate", "off"]  # where a test looks into `update` or changes what it calls
NETWORKS = {
    "ddpg": ["actor", "qf1"],
    "td3": ["actor", "qf1", "qf2"],
    "sac": ["actor", "qf1", "qf2"],
}
TARGETS = {
    "ddpg": {"target_actor": "actor", "qf1_target": "qf1"},
    "td3": {"target_actor": "actor", "qf1_target": "qf1", "qf2_target": "qf2"},
    "sac": {"qf1_target": "qf1", "qf2_target": "qf2"},
}
LOW, HIGH = np.array([-0.1, -3.0, 5.0], np.float32), np.array([0.7, 1.0, 5.5], np.float32)
everyone = pytest.mark.parametrize("name", MODULES)
needs_mujoco = pytest.mark.skipif(not importlib.util.find_spec("mujoco"), reason="needs cleanrl[mujoco]")


class Count(gym.Env):
    """Observed are episode and step: what follows what is plain to see. Odd episodes terminate, even ones truncate.

    Each component of an action has bounds of its own, and the environment insists on them.
    """

    observation_space, action_space = gym.spaces.Box(0, np.inf, (2,)), gym.spaces.Box(LOW, HIGH)
    episode = -1

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.step_count, self.length = self.episode + 1, 0, self.np_random.integers(1, 9)
        return self.observation(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.step_count += 1
        over = self.step_count == self.length
        return self.observation(), float(action[1]), over and self.episode % 2 == 1, over and self.episode % 2 == 0, {}

    def observation(self):
        return np.array([self.episode, self.step_count], dtype=np.float32)


class Reuse(Count):
    """Always the same array, as a simulator may do that writes into memory of its own."""

    array = np.zeros(2, dtype=np.float32)

    def observation(self):
        self.array[:] = super().observation()
        return self.array


gym.register("CountBox-v0", Count)
gym.register("Reuse-v0", Reuse)
gym.register("Plain-v0", type("Plain", (Count,), {"action_space": gym.spaces.Box(-1, 1, (3,))}))
gym.register("Unbounded-v0", type("Unbounded", (Count,), {"action_space": gym.spaces.Box(-np.inf, 1, (3,))}))
gym.register("Matrix-v0", type("Matrix", (Count,), {"action_space": gym.spaces.Box(-1, 1, (2, 2))}))
ENVS = SimpleNamespace(single_observation_space=Count.observation_space, single_action_space=Count.action_space)


def run_script(monkeypatch, folder, name, *flags) -> dict:
    """Train in this process; returns the variables of the script."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [str(SCRIPTS[name]), *map(str, flags)])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    try:
        return runpy.run_path(str(SCRIPTS[name]), run_name="__main__")
    finally:
        torch.use_deterministic_algorithms(False)


def parameters(script: dict, names) -> list[torch.Tensor]:
    return [x for name in names for x in script[name].parameters()]


def snapshot(script: dict, names) -> dict[str, torch.Tensor]:
    return {f"{name}.{key}": x.detach().clone() for name in names for key, x in script[name].named_parameters()}


def flags_of_update(name, policy: bool, targets: bool) -> list[bool]:
    """The last arguments of `update`: DDPG and TD3 move the targets with the policy."""
    return [policy, targets] if name == "sac" else [policy]


# The interface


@everyone
def test_flags_and_defaults_are_those_of_the_published_file(name):
    expected = {
        "exp_name": f"{name}_continuous_action", "seed": 1, "torch_deterministic": True, "cuda": True, "track": False,
        "wandb_project_name": "cleanRL", "wandb_entity": None, "capture_video": False, "env_id": "Hopper-v4",
        "total_timesteps": 1_000_000, "num_envs": 1, "buffer_size": 1_000_000, "gamma": 0.99, "tau": 0.005,
        "batch_size": 256, "policy_frequency": 2,
    }  # fmt: skip
    own = {
        "ddpg": {"learning_rate": 3e-4, "exploration_noise": 0.1, "learning_starts": 25_000},
        "sac": {"policy_lr": 3e-4, "q_lr": 1e-3, "learning_starts": 5_000, "target_network_frequency": 1},
    }
    own["td3"] = own["ddpg"] | {"policy_noise": 0.2, "noise_clip": 0.5}
    own["sac"] |= {"alpha": 0.2, "autotune": True}
    actual = dataclasses.asdict(MODULES[name].Args())
    assert (expected | own[name]).items() <= actual.items() and isinstance(actual["learning_starts"], int)
    common = {field.name for field in dataclasses.fields(dqn.Args)} - {"learning_rate", "train_frequency"}
    assert actual.keys() - expected.keys() - own[name].keys() <= common


@everyone
def test_every_flag_is_used(name):
    source = "".join(path.read_text() for path in (SCRIPTS[name], *(ROOT / "cleanrl_utils").rglob("*.py")))
    for field in dataclasses.fields(MODULES[name].Args):
        assert f"args.{field.name}" in source, field.name


def test_networks_are_those_of_the_published_files():
    env = make_env("CountBox-v0", 0, False, "")()
    assert env.action_space == Count.action_space
    for critic, actor, outputs in ((QNetwork, DeterministicActor, 3), (sac_continuous_action.QNetwork, Actor, 6)):
        layers = [x for network in (critic(ENVS), actor(ENVS)) for x in network.modules() if hasattr(x, "out_features")]
        assert [x.in_features for x in layers] == [5, 256, 256, 2, 256, 256]
        assert [x.out_features for x in layers] == [256, 256, 1, 256, 256, outputs]
    assert DeterministicActor(ENVS)(torch.ones(7, 2)).shape == (7, 3)
    assert QNetwork(ENVS)(torch.ones(7, 2), torch.ones(7, 3)).shape == (7, 1)
    torch.manual_seed(1)
    mean, log_std = Actor(ENVS)(torch.randn(700, 2) * 1e6)
    assert mean.shape == log_std.shape == (700, 3)
    assert log_std.min() >= -5 and log_std.max() <= 2 and log_std.min() < -4.99 and log_std.max() > 1.99


def test_replay_buffer_is_that_of_dqn_in_single_precision():
    """A million transitions of Humanoid-v4 take 3 GB so, and 6 in double precision."""
    source = (ROOT / "cleanrl" / "dqn.py").read_text().partition("class ReplayBuffer")[2].partition("\n\n\n")[0]
    source = source.replace("sum(self.widths)))  # float64: nothing is rounded", "sum(self.widths)), dtype=np.float32)")
    names = "obs, next_obs, actions, rewards, terminations"  # which dqn.py says once more
    source = source.replace(
        f"{names} = rows.float().split(self.widths, dim=-1)\n        return {names}\n",
        "return rows.float().split(self.widths, dim=-1)\n",
    )
    for path in SCRIPTS.values():
        assert source in path.read_text()


# Losses and gradients against naive versions in double precision, one transition after the other


def make_double(script, name) -> dict:
    """Networks and optimizers of a script that has run, in double precision; networks far from each other."""
    torch.manual_seed(1)
    for key in (*NETWORKS[name], *TARGETS[name]):
        script[key].double()
        for x in script[key].parameters():
            torch.nn.init.normal_(x, std=0.1)
    for key in ("q_optimizer", "actor_optimizer"):
        script[key].state.clear()
    return script


def make_minibatch(size=16, obs_dim=2, action_dim=3):
    """Some transitions end their episode and some do not."""
    rng = np.random.default_rng(1)
    obs, next_obs = rng.normal(size=(2, size, obs_dim))
    actions, rewards = rng.uniform(-1, 1, (size, action_dim)), rng.normal(size=(size, 1))
    terminations = np.arange(size)[:, None] % 3 == 0
    return [torch.tensor(x, dtype=torch.float64) for x in (obs, next_obs, actions, rewards, terminations)]


def squashed_action(actor, x, noise):
    """One action of SAC's policy and its log-probability, by PyTorch's distributions."""
    mean, log_std = actor(x)
    tanh = torch.distributions.transforms.TanhTransform(cache_size=1)
    affine = torch.distributions.AffineTransform(actor.action_bias, actor.action_scale)
    normal = torch.distributions.Normal(mean, log_std.exp())
    policy = torch.distributions.TransformedDistribution(normal, [tanh, affine])
    action = affine(tanh(mean + log_std.exp() * noise))
    return action, policy.log_prob(action).sum()


def naive_critic_losses(script, name, minibatch, noise, alpha) -> list[torch.Tensor]:
    """The mean squared error of each critic."""
    losses = [0.0 for _ in NETWORKS[name][1:]]
    for obs, next_obs, action, reward, termination, z in zip(*minibatch, noise):
        with torch.no_grad():
            bonus = 0.0
            if name == "sac":
                next_action, logprob = squashed_action(script["actor"], next_obs, z)
                bonus = -alpha * logprob
            else:
                next_action = script["target_actor"](next_obs)
            if name == "td3":
                next_action = (next_action + (0.2 * z).clamp(-0.5, 0.5)).clamp(-1, 1)
            targets = [key for key in TARGETS[name] if key != "target_actor"]
            next_value = min(script[key](next_obs, next_action).item() for key in targets) + bonus
            target = reward.item() if termination else reward.item() + 0.9 * next_value
        for i, key in enumerate(NETWORKS[name][1:]):
            losses[i] = losses[i] + (script[key](obs, action)[0] - target) ** 2 / len(minibatch[0])
    return losses


@everyone
def test_losses_and_gradients_of_the_critics_equal_a_naive_version(monkeypatch, tmp_path, name):
    flags = [*SHORT, *AS_WRITTEN, "--env-id", "Plain-v0", "--total-timesteps", 201, "--gamma", 0.9]
    script = make_double(run_script(monkeypatch, tmp_path, name, *flags), name)
    minibatch, noise = make_minibatch(), torch.randn(16, 3, dtype=torch.float64)
    critics = NETWORKS[name][1:]
    alpha = script["log_alpha"].exp().item() if name == "sac" else None
    losses = naive_critic_losses(script, name, minibatch, noise, alpha)
    gradients = torch.autograd.grad(sum(losses), parameters(script, critics))
    values = [script[key](minibatch[0], minibatch[2]).mean() for key in critics]
    monkeypatch.setattr(torch, "randn_like", lambda x: noise)
    stats = script["update"](*minibatch, *flags_of_update(name, False, False))
    expected = {}
    for key, loss, value in zip(critics, losses, values, strict=True):
        expected |= {f"{key}_loss": loss.item(), f"{key}_values": value.item()}
    if name != "ddpg":
        expected["qf_loss"] = (losses[0] + losses[1]).item() / 2
    assert {key: x.item() for key, x in stats.items()} == pytest.approx(expected, rel=1e-6)  # log_alpha is a float32
    for x, gradient in zip(parameters(script, critics), gradients, strict=True):
        torch.testing.assert_close(x.grad, gradient, rtol=1e-5, atol=1e-9)


def test_losses_of_policy_and_temperature_equal_a_naive_version(monkeypatch, tmp_path):
    flags = [*SHORT, *AS_WRITTEN, "--env-id", "Plain-v0", "--total-timesteps", 201, "--policy-frequency", 1]
    script = make_double(run_script(monkeypatch, tmp_path, "sac", *flags, "--q-lr", 0.0), "sac")
    minibatch, noise = make_minibatch(), torch.randn(16, 3, dtype=torch.float64)
    actor, log_alpha = script["actor"], script["log_alpha"]
    log_alpha.data.fill_(-0.7)
    alpha, actor_loss, alpha_loss = np.exp(np.float32(-0.7)), 0.0, 0.0
    for obs, z in zip(minibatch[0], noise):
        action, logprob = squashed_action(actor, obs, z)
        value = torch.min(script["qf1"](obs, action), script["qf2"](obs, action))[0]
        actor_loss = actor_loss + (alpha * logprob - value) / 16
        alpha_loss -= alpha * (logprob.item() - 3) / 16
    gradients = torch.autograd.grad(actor_loss, list(actor.parameters()))
    monkeypatch.setattr(torch, "randn_like", lambda x: noise)
    stats = script["update"](*minibatch, True, False)
    assert stats["actor_loss"].item() == pytest.approx(actor_loss.item(), rel=1e-6)
    assert stats["alpha_loss"].item() == pytest.approx(alpha_loss, rel=1e-6)
    assert stats["alpha"].item() == pytest.approx(alpha, rel=1e-6)
    assert log_alpha.grad.item() == pytest.approx(alpha_loss, rel=1e-6)  # as d exp(x) = exp(x), and nothing else
    for x, gradient in zip(actor.parameters(), gradients, strict=True):  # nothing from the temperature
        torch.testing.assert_close(x.grad, gradient, rtol=1e-5, atol=1e-9)


def test_fixed_temperature_has_no_loss(monkeypatch, tmp_path):
    flags = [*PENDULUM, *AS_WRITTEN, "--total-timesteps", 201, "--no-autotune"]
    script = run_script(monkeypatch, tmp_path, "sac", *flags)
    stats = script["update"](*script["buffer"].sample(16), True, True)
    assert stats["alpha"].item() == pytest.approx(0.2) and "alpha_loss" not in stats
    assert script["log_alpha"].grad is None


def test_target_noise_is_clipped_and_each_component_has_its_own_scale_and_bounds(monkeypatch):
    actor, noise = DeterministicActor(ENVS), torch.randn(1000, 3) * 3
    monkeypatch.setattr(torch, "randn_like", lambda x: noise)
    actions = torch.tensor(np.random.default_rng(1).uniform(LOW, HIGH, (1000, 3)).astype(np.float32))
    result = smooth(actions, actor, 0.2, 0.5).numpy()
    expected = np.empty_like(result)
    for i in range(1000):
        for j in range(3):
            shift = min(max(0.2 * noise[i, j].item(), -0.5), 0.5) * (HIGH[j] - LOW[j]) / 2
            expected[i, j] = min(max(actions[i, j].item() + shift, LOW[j]), HIGH[j])
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    assert (result >= LOW).all() and (result <= HIGH).all()
    assert (result == LOW).any(0).all() and (result == HIGH).any(0).all()


def exact_log_prob(x, log_std, noise, scale):
    """With 120 digits, by the definition: a normal density divided by the slope of the squashing."""
    with mpmath.workdps(120):
        x, log_std, noise, scale = (mpmath.mpf(float(y)) for y in (x, log_std, noise, scale))
        density = mpmath.exp(-(noise**2) / 2) / (mpmath.exp(log_std) * mpmath.sqrt(2 * mpmath.pi))
        return float(mpmath.log(density / (scale * (1 - mpmath.tanh(x) ** 2))))


@settings(max_examples=200, deadline=None)
@given(
    st.floats(-60, 60, width=32),
    st.floats(-5, 2, width=32),
    st.floats(-6, 6, width=32),
    st.floats(0.015625, 64, width=32),
)
def test_log_probability_is_exact_where_tanh_rounds_to_one(x, log_std, noise, scale):
    expected = exact_log_prob(x, log_std, noise, scale)
    for dtype, tolerance in ((torch.float32, 2e-6), (torch.float64, 1e-9)):
        t_x = torch.tensor([x], dtype=dtype, requires_grad=True)
        result = log_prob(t_x, *(torch.tensor([y], dtype=dtype) for y in (log_std, noise, scale)))
        np.testing.assert_allclose(result.item(), expected, rtol=tolerance, atol=20 * tolerance)
        result.sum().backward()
        assert t_x.grad.item() == pytest.approx(2 * np.tanh(x), rel=1e-5, abs=1e-6)


def test_sampled_actions_have_the_density_that_the_policy_says():
    """Its integral over each bin of the range of an action is the share of the samples in it."""
    torch.manual_seed(1)
    actor, x = Actor(ENVS), torch.randn(2)
    actions = actor.get_action(x.expand(200_000, 2))
    assert actions.shape == (200_000, 3)
    with torch.no_grad():
        mean, log_std = actor(x)
    for j in range(3):
        edges = torch.linspace(LOW[j] + 0.02 * (HIGH[j] - LOW[j]), HIGH[j] - 0.02 * (HIGH[j] - LOW[j]), 1001)
        middles = (edges[1:] + edges[:-1]) / 2
        pre = torch.atanh((middles - actor.action_bias[j]) / actor.action_scale[j])
        noise = ((pre - mean[j]) / log_std[j].exp())[:, None]
        density = log_prob(pre[:, None], log_std[j].expand(1000, 1), noise, actor.action_scale[j : j + 1]).exp()
        shares = (density[:, 0] * (edges[1] - edges[0])).reshape(10, 100).sum(1)
        counts = torch.histogram(actions[:, j].contiguous(), edges[::100].contiguous()).hist / 200_000
        torch.testing.assert_close(counts, shares, rtol=0, atol=0.004)


def test_action_and_log_probability_belong_together(monkeypatch):
    actor, x, noise = Actor(ENVS), torch.randn(50, 2), torch.randn(50, 3)
    monkeypatch.setattr(torch, "randn_like", lambda x: noise)
    actions, logprobs = actor.get_action_and_logprob(x)
    assert logprobs.shape == (50, 1)
    actor.double()
    for i in range(50):
        action, logprob = squashed_action(actor, x[i].double(), noise[i])
        torch.testing.assert_close(actions[i].double(), action, rtol=1e-5, atol=1e-6)
        assert logprobs[i].item() == pytest.approx(logprob.item(), rel=1e-4, abs=1e-4)


# The update against Stable-Baselines3's: same networks, same minibatches, same noise


def copy_parameters(source, target):
    for x, y in zip(source, target, strict=True):
        y.data.copy_(x.reshape(y.shape))


def sb3_parameters(name, model, script) -> list[tuple[list, list]]:
    """Our parameters and the peer's that correspond to them."""
    critics = parameters(script, NETWORKS[name][1:])
    target_critics = parameters(script, [key for key in TARGETS[name] if key != "target_actor"])
    pairs = [(critics, model.critic.parameters()), (target_critics, model.critic_target.parameters())]
    actors = [(script["actor"], model.actor)]
    if name != "sac":
        actors.append((script["target_actor"], model.actor_target))
    for ours, theirs in actors:
        *hidden, weight, bias = ours.parameters()
        if name == "sac":  # whose means and deviations we have in one layer
            heads = zip(weight.chunk(2), bias.chunk(2))
            last = theirs.mu.weight, theirs.mu.bias, theirs.log_std.weight, theirs.log_std.bias
            pairs.append(([*hidden, *(x for head in heads for x in head)], [*theirs.latent_pi.parameters(), *last]))
        else:
            pairs.append(([*hidden, weight, bias], theirs.parameters()))
    return [(list(ours), list(theirs)) for ours, theirs in pairs]


@pytest.mark.parametrize("flags", [[], ["--no-autotune", "--alpha", "0.3"]], ids=["", "fixed temperature"])
@everyone
def test_updates_equal_those_of_stable_baselines3(monkeypatch, tmp_path, name, flags):
    if name != "sac" and flags:
        pytest.skip("only SAC has a temperature")
    rates = ["--policy-lr", "1e-3"] if name == "sac" else ["--learning-rate", "1e-3"]
    flags = [*AS_WRITTEN, "--env-id", "Plain-v0", "--policy-frequency", 1, *rates, *flags]
    ours = run_script(monkeypatch, tmp_path, name, *SHORT, *flags, "--batch-size", 32, "--total-timesteps", 201)

    settings = {"policy_kwargs": {"net_arch": [256, 256]}, "learning_rate": 1e-3, "tau": 0.005, "gamma": 0.99}
    settings |= {"policy_delay": 1} if name == "td3" else {}
    if name == "sac":
        settings["ent_coef"] = "auto_1.0" if ours["args"].autotune else 0.3
        ours["log_alpha"].data.fill_(0.0 if ours["args"].autotune else np.log(0.3))
    model = getattr(sb3, name.upper())("MlpPolicy", gym.make("Plain-v0"), device="cpu", **settings)
    model.set_logger(sb3.common.logger.configure(None, []))
    if name == "sac":  # their log_std is clamped, ours squashed; their log-probability is slightly off on purpose
        model.actor.action_dist.epsilon = 0.0
        params = model.actor.get_action_dist_params
        squash = lambda mean, log_std, kwargs: (mean, 3.5 * log_std.tanh() - 1.5, kwargs)  # noqa: E731
        monkeypatch.setattr(model.actor, "get_action_dist_params", lambda obs: squash(*params(obs)))
    for a, b in sb3_parameters(name, model, ours):
        copy_parameters(a, b)
    optimizers = [ours[key] for key in ("q_optimizer", "actor_optimizer", "alpha_optimizer") if key in ours]
    for optimizer in optimizers:
        optimizer.state.clear()
    for optimizer in (*optimizers, model.actor.optimizer, model.critic.optimizer):
        for group in optimizer.param_groups:
            group["eps"] = 1e-3  # with 1e-8, rounding decides where gradients of about 1e-8 lead to
    if name == "sac":
        model.critic.optimizer.param_groups[0]["eps"] = 5e-4  # their loss of the critics is half of ours

    noises, drawn = torch.randn(2, 2, 32, 3), []  # two updates, noise for the target and for the policy
    monkeypatch.setattr(torch, "randn_like", lambda x: drawn.pop(0))
    monkeypatch.setattr(torch.distributions.normal, "_standard_normal", lambda shape, **_: drawn.pop(0))
    monkeypatch.setattr(torch.Tensor, "normal_", lambda x, mean, std: mean + std * drawn.pop(0))
    before = snapshot(ours, NETWORKS[name])
    for _, noise in zip(range(2 if not (name == "sac" and ours["args"].autotune) else 1), noises):
        minibatch = torch.randn(32, 9).split(ours["buffer"].widths, -1)
        obs, next_obs, actions, rewards, terminations = minibatch
        actions.tanh_()
        terminations.round_().clamp_(0, 1)
        batch = ReplayBufferSamples(obs, actions, next_obs, terminations, rewards)
        monkeypatch.setattr(model.replay_buffer, "sample", lambda *_, **__: batch)  # noqa: B023
        drawn[:] = noise
        stats = ours["update"](*minibatch, *flags_of_update(name, True, True))
        drawn[:] = reversed(noise) if name == "sac" else noise  # there, the policy draws first
        model.train(1, 32)
        logged = model.logger.name_to_value
        qf_loss = 2 * stats["qf_loss"] if name == "td3" else stats["qf_loss" if name == "sac" else "qf1_loss"]
        assert logged["train/critic_loss"] == pytest.approx(qf_loss.item(), rel=1e-4)
        assert logged["train/actor_loss"] == pytest.approx(stats["actor_loss"].item(), rel=1e-4, abs=1e-5)
        for a, b in sb3_parameters(name, model, ours):
            for x, y in zip(a, b, strict=True):
                torch.testing.assert_close(x.data, y.data, rtol=1e-4, atol=1e-6)
    assert all((x != before[key]).any() for key, x in snapshot(ours, NETWORKS[name]).items())
    if name == "sac" and ours["args"].autotune:
        assert logged["train/ent_coef_loss"] == 0  # of log(1)
        torch.testing.assert_close(ours["log_alpha"].data, model.log_ent_coef.data[0], rtol=1e-3, atol=0)
        assert abs(ours["log_alpha"].item()) > 9e-4


@everyone
def test_critics_get_no_gradients_from_the_loss_of_the_policy(monkeypatch, tmp_path, name):
    """Theirs are the same whether the policy is updated, too, or not."""
    flags = [*PENDULUM, *AS_WRITTEN, "--total-timesteps", 210, "--q-lr" if name == "sac" else "--learning-rate", 0]
    script = run_script(monkeypatch, tmp_path, name, *flags)
    minibatch, gradients = script["buffer"].sample(16), []
    for policy_is_due in (False, True):
        torch.manual_seed(1)
        script["update"](*minibatch, *flags_of_update(name, policy_is_due, False))
        gradients.append([x.grad.clone() for x in parameters(script, NETWORKS[name][1:])])
    assert all((x == y).all() and (x != 0).any() for x, y in zip(*gradients, strict=True))
    assert all((x.grad != 0).any() for x in script["actor"].parameters())
    assert all(x.grad is None for x in parameters(script, TARGETS[name]))


# Actions


@everyone
def test_noise_is_independent_and_each_component_has_its_own_scale_and_bounds(name):
    torch.manual_seed(1)
    actor = MODULES[name].Actor(ENVS)
    flags = [] if name == "sac" else [0.1]
    actions = actor.get_action(torch.ones(50_000, 2), *flags).numpy()
    assert (actions >= LOW).all() and (actions <= HIGH).all()
    np.testing.assert_allclose(np.corrcoef(actions.T), np.eye(3), atol=0.02)  # between components
    assert len(np.unique(actions[:, 1])) > 49_000  # between environments
    if name == "sac":
        actor.network[-1].bias.data[3:] = 100.0  # the largest deviation
        flags = []
    else:
        np.testing.assert_allclose(actions.std(0), 0.1 * (HIGH - LOW) / 2, rtol=0.03)
        np.testing.assert_allclose(actions.mean(0), actor(torch.ones(2)).detach(), rtol=0.01, atol=0.01)
        flags = [1000.0]
    wild = actor.get_action(torch.ones(10_000, 2), *flags).numpy()
    assert (wild >= LOW).all() and (wild <= HIGH).all()
    assert (wild == LOW).any(0).all() and (wild == HIGH).any(0).all()


@everyone
def test_a_saturated_policy_stays_within_the_bounds(name):
    actor = MODULES[name].Actor(ENVS)
    for sign in (-1, 1):
        actor.network[-1].bias.data.fill_(sign * 100.0)
        actions = actor.get_action(torch.zeros(4, 2), *[True] * (name == "sac")).numpy()
        assert (actions == (LOW if sign == -1 else HIGH)).all()


# Transitions and the number of updates


@pytest.mark.parametrize("env_id, num_envs", [("CountBox-v0", 1), ("CountBox-v0", 3), ("Reuse-v0", 1)])
@everyone
def test_stored_transitions_stay_within_their_episode(monkeypatch, tmp_path, name, env_id, num_envs):
    flags = [*SHORT, "--num-envs", num_envs, "--env-id", env_id, "--total-timesteps", 600]
    buffer = run_script(monkeypatch, tmp_path, name, *flags)["buffer"]
    rows = buffer.rows[: buffer.num_added]
    assert len(rows) == 600 and rows.dtype == np.float32
    obs, next_obs, actions, rewards, terminations = np.split(rows, np.cumsum(buffer.widths)[:-1], axis=1)
    assert (next_obs[:, 0] == obs[:, 0]).all() and (next_obs[:, 1] == obs[:, 1] + 1).all()
    assert (rewards == actions[:, 1:2]).all()
    for idx in range(num_envs):
        episodes, ends = obs[idx::num_envs, 0], terminations[idx::num_envs, 0]
        last = np.flatnonzero(np.diff(episodes))  # the last step of each episode
        assert len(last) > 20
        assert (ends[last] == episodes[last] % 2).all() and ends.sum() == ends[last].sum() + ends[-1]
    at_random = (actions[:200] - LOW) / (HIGH - LOW)
    np.testing.assert_allclose(at_random.mean(0), 0.5, atol=0.1)
    np.testing.assert_allclose(at_random.std(0), 12**-0.5, atol=0.05)
    assert (np.abs(at_random - 0.5).max(0) > 0.47).all()


@pytest.mark.parametrize("num_envs, frequency", [(1, 2), (4, 2), (3, 5), (16, 1)])
@everyone
def test_updates_per_step_do_not_depend_on_the_number_of_environments(monkeypatch, tmp_path, name, num_envs, frequency):
    steps = {}
    step = torch.optim.Adam.step
    monkeypatch.setattr(torch.optim.Adam, "step", lambda self: (steps.setdefault(id(self), []).append(1), step(self)))
    flags = [*PENDULUM, *AS_WRITTEN, "--num-envs", num_envs, "--policy-frequency", frequency]
    variables = run_script(monkeypatch, tmp_path, name, *flags, "--total-timesteps", 500)
    assert variables["global_step"] == 500 // num_envs * num_envs
    critic, actor = (len(steps[id(variables[optimizer])]) for optimizer in ("q_optimizer", "actor_optimizer"))
    assert abs(critic - (variables["global_step"] - 200)) <= num_envs
    per_update = 1 if name == "sac" else 1 / frequency  # SAC makes up for the delay
    assert abs(actor - critic * per_update) <= frequency


def test_delayed_updates_of_sac_take_the_same_minibatch_with_noise_of_their_own(monkeypatch, tmp_path):
    flags = [*PENDULUM, *AS_WRITTEN, "--policy-frequency", 3, "--total-timesteps", 210, "--policy-lr", 0]
    script = run_script(monkeypatch, tmp_path, "sac", *flags)
    sampled, seen = script["actor"].get_action_and_logprob, []

    def watched(obs):
        actions, logprobs = sampled(obs)
        seen.append((obs, actions))
        return actions, logprobs

    script["actor"].get_action_and_logprob = watched
    minibatch = script["buffer"].sample(16)
    script["update"](*minibatch, True, False)
    (next_obs, _), *delayed = seen
    assert torch.equal(next_obs, minibatch[1])  # of the critics
    assert all(torch.equal(obs, minibatch[0]) for obs, _ in delayed) and len(delayed) == 3
    assert len({actions.sum().item() for _, actions in delayed}) == 3
    script["update"](*minibatch, False, False)
    assert len(seen) == 5  # for the critics once more, and not for the policy


@everyone
def test_target_networks_start_as_copies_and_move_only_when_asked_and_by_tau(monkeypatch, tmp_path, name):
    flags = [*PENDULUM, *AS_WRITTEN, "--tau", 0.25]
    frozen = ["--q-lr", 0, "--policy-lr", 0] if name == "sac" else ["--learning-rate", 0]
    script = run_script(monkeypatch, tmp_path, name, *flags, *frozen, "--exp-name", "frozen", "--total-timesteps", 210)
    for target, network in TARGETS[name].items():
        for x, y in zip(script[target].parameters(), script[network].parameters(), strict=True):
            torch.testing.assert_close(x.data, y.data, rtol=1e-6, atol=1e-8)
    script = run_script(monkeypatch, tmp_path, name, *flags, "--total-timesteps", 230)
    minibatch = script["buffer"].sample(32)
    for moves in (False, True):
        before = snapshot(script, TARGETS[name])
        script["update"](*minibatch, *([True, moves] if name == "sac" else [moves]))
        for target, network in TARGETS[name].items():
            for key, x in script[target].named_parameters():
                old, online = before[f"{target}.{key}"], script[network].get_parameter(key).data
                torch.testing.assert_close(x.data, 0.75 * old + 0.25 * online if moves else old, rtol=1e-5, atol=1e-7)
                assert (x == old).all() != moves


def test_target_networks_of_sac_move_at_their_own_frequency(monkeypatch, tmp_path):
    moved, lerp = [], torch.Tensor.lerp_
    monkeypatch.setattr(torch.Tensor, "lerp_", lambda *arguments: (moved.append(1), lerp(*arguments))[1])
    flags = [*PENDULUM, *AS_WRITTEN, "--target-network-frequency", 5, "--total-timesteps", 300]
    run_script(monkeypatch, tmp_path, "sac", *flags)
    assert len(moved) == 20 * 12  # weights and biases of three layers of two critics


def test_temperature_is_tuned_or_stays(monkeypatch, tmp_path):
    variables = run_script(monkeypatch, tmp_path, "sac", *PENDULUM, "--total-timesteps", 300)
    assert variables["target_entropy"] == -1
    assert variables["log_alpha"].item() == pytest.approx(-0.1, abs=0.03)  # 100 steps of 1e-3, from alpha = 1
    for alpha in (0.2, 0.0):
        flags = [*PENDULUM, "--total-timesteps", 300, "--no-autotune", "--alpha", alpha, "--exp-name", f"alpha{alpha}"]
        variables = run_script(monkeypatch, tmp_path, "sac", *flags)
        assert variables["log_alpha"].exp().item() == pytest.approx(alpha)


# What a run promises


@everyone
def test_metrics_and_model(runner, tmp_path, name):
    run_dir = runner.train(*PENDULUM, "--save-model", script=SCRIPTS[name])
    logged = curves(run_dir)
    names = {"charts/episodic_return", "charts/episodic_length", "charts/SPS", "eval/episodic_return"}
    names |= {"losses/qf1_values", "losses/qf1_loss", "losses/actor_loss"}
    if name != "ddpg":
        names |= {"losses/qf2_values", "losses/qf2_loss", "losses/qf_loss"}
    if name == "sac":
        names |= {"losses/alpha", "losses/alpha_loss"}
    assert logged.keys() == names
    for tag in names - {"eval/episodic_return", "charts/episodic_return", "charts/episodic_length", "charts/SPS"}:
        assert [step for step, _ in logged[tag]] == list(range(300, 801, 100)), tag
    assert [step for step, _ in logged["charts/episodic_return"]] == [200, 400, 600, 800]
    envs = MODULES[name].make_envs("Pendulum-v1", 3, False, "")
    obs, _ = envs.reset(seed=1)
    model = run_dir / f"{name}_continuous_action.safetensors"
    policy = MODULES[name].load_policy(model, envs)
    assert policy(obs).shape == (3, 1) and (policy(obs) == policy(obs)).all()
    sampled = MODULES[name].load_policy(model, envs, deterministic=False)
    assert (sampled(obs) == sampled(obs)).all() == (name != "sac")
    weights = load_file(model)
    assert {key.split(".")[0] for key in weights} == set(NETWORKS[name])
    # Models of the first edition have the same names, and SAC's temperature beside them
    save_file(weights | {"log_alpha": torch.zeros(())}, tmp_path / "old.safetensors")
    assert (MODULES[name].load_policy(tmp_path / "old.safetensors", envs)(obs) == policy(obs)).all()
    incomplete = {key: x for key, x in weights.items() if key != "actor.network.0.bias"}
    save_file(incomplete, tmp_path / "incomplete.safetensors")
    with pytest.raises(RuntimeError, match="network.0.bias"):
        MODULES[name].load_policy(tmp_path / "incomplete.safetensors", envs)


@everyone
def test_same_seed_gives_the_same_run_and_another_does_not(monkeypatch, tmp_path, name):
    flags = [*PENDULUM, "--num-envs", 2, "--total-timesteps", 400]
    first, second, other = (
        snapshot(run_script(monkeypatch, tmp_path, name, *flags, "--exp-name", run, "--seed", seed), NETWORKS[name])
        for run, seed in (("first", 1), ("second", 1), ("other", 2))
    )
    assert all((first[key] == second[key]).all() for key in first)
    assert any((first[key] != other[key]).any() for key in first)


@pytest.mark.parametrize("name, num_envs", [pytest.param("ddpg", 1, marks=pytest.mark.slow), ("td3", 3), ("sac", 1)])
def test_killed_and_resumed_run_equals_one_that_never_stopped(runner, name, num_envs):
    flags = [
        *PENDULUM,
        "--num-envs",
        num_envs,
        "--total-timesteps",
        1500,
        "--checkpoint-frequency",
        300,
        "--save-model",
    ]
    never_stopped = runner.train(*flags, script=SCRIPTS[name])
    process = runner.start(SCRIPTS[name], *flags, "--exp-name", "killed")
    checkpoint = runner.wait_for("runs/*killed*/checkpoint.pt", process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert torch.load(checkpoint, weights_only=False)["global_step"] < 1500
    runner.run(SCRIPTS[name], "--resume", checkpoint.parent)
    assert_same_run(never_stopped, checkpoint.parent)


@pytest.mark.slow
@everyone
def test_compiled_update_learns_the_same_as_the_eager_one(runner, name):
    eager, compiled = (
        curves(runner.train(*PENDULUM, "--exp-name", run, *flags, script=SCRIPTS[name]))
        for run, flags in (("eager", []), ("compiled", ["--compile"]))
    )
    for tag in eager.keys() - {"charts/SPS"}:
        for (_, a), (_, b) in zip(eager[tag][:2], compiled[tag][:2], strict=True):  # later, rounding adds up
            assert a == pytest.approx(b, rel=1e-2, abs=1e-3), tag


@everyone
def test_copied_out_file_trains_in_an_empty_folder_without_the_repository(runner, name):
    script = Path(shutil.copy(SCRIPTS[name], runner.folder / "mine.py"))
    flags = [*PENDULUM, "--save-model", "--total-timesteps", 400]
    run_dir = runner.train(*flags, script=script, modules=ROOT / "tests" / "modules" / "without_utils")
    assert (run_dir / "mine.safetensors").exists() and len(curves(run_dir)["losses/qf1_loss"]) == 2


@needs_mujoco
def test_videos_are_recorded(runner):
    flags = [*SHORT, "--env-id", "Pendulum-v1", "--total-timesteps", "210", "--capture-video", "--save-model"]
    run_dir = runner.train(*flags, script=SCRIPTS["sac"])
    assert list(run_dir.glob("videos/*.mp4")) and list(run_dir.glob("evaluation/videos/*.mp4"))


@pytest.mark.parametrize(
    "name, flags, words",
    [
        ("ddpg", ["--env-id", "CartPole-v1"], ["Discrete(2)", "dqn.py"]),
        ("sac", ["--env-id", "CartPole-v1"], ["Discrete(2)", "dqn.py"]),
        ("td3", ["--env-id", "box_envs:Unbounded-v0"], ["-inf", "not a bounded vector", "ppo_continuous_action.py"]),
        ("ddpg", ["--env-id", "box_envs:Matrix-v0"], ["(2, 2)", "not a bounded vector"]),
        ("ddpg", ["--env-id", "Nope-v0"], ["Nope"]),
        ("ddpg", ["--total-timesteps", "25000"], ["--learning-starts 25000"]),
        ("td3", ["--policy-frequency", "0"], ["at least 1"]),
        ("sac", ["--target-network-frequency", "0"], ["at least 1"]),
        ("sac", ["--num-envs", "0"], ["at least 1"]),
        ("sac", ["--resume", "nowhere"], ["not a run folder"]),
    ],
)
def test_mistake_gets_one_clear_line_and_leaves_nothing_on_disk(runner, tmp_path_factory, name, flags, words):
    modules = tmp_path_factory.mktemp("modules")
    (modules / "box_envs.py").write_text(BOX_ENVS)
    result = runner.run(SCRIPTS[name], *flags, modules=modules, check=False)
    assert result.returncode != 0
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert all(word in result.stderr for word in words), result.stderr
    assert not list(runner.folder.iterdir())


BOX_ENVS = """
import gymnasium as gym, numpy as np
def make(space):
    env = gym.Env()
    env.observation_space, env.action_space = gym.spaces.Box(-1, 1, (2,)), space
    env.reset = lambda seed=None, options=None: (np.zeros(2, np.float32), {})
    env.step = lambda action: (np.zeros(2, np.float32), np.nan, False, False, {})
    return env
gym.register("Unbounded-v0", lambda **_: make(gym.spaces.Box(-np.inf, 1, (3,))))
gym.register("Matrix-v0", lambda **_: make(gym.spaces.Box(-1, 1, (2, 2))))
gym.register("NaN-v0", lambda **_: make(gym.spaces.Box(-1, 1, (2,))))
"""


def test_non_finite_losses_stop_the_run_with_one_line(runner, tmp_path_factory):
    modules = tmp_path_factory.mktemp("modules")
    (modules / "box_envs.py").write_text(BOX_ENVS)
    result = runner.run(SCRIPTS["td3"], *SHORT, "--env-id", "box_envs:NaN-v0", modules=modules, check=False)
    assert result.returncode != 0 and "Traceback" not in result.stderr
    assert "qf1_values is not finite at global_step=300" in result.stderr


# Learning


@pytest.mark.slow
def test_pendulum_is_learned_by_sac(runner):
    flags = ["--no-cuda", "--env-id", "Pendulum-v1", "--learning-starts", "500", "--batch-size", "64"]
    run_dir = runner.train(*flags, "--total-timesteps", "6000", script=SCRIPTS["sac"])
    returns = [value for _, value in curves(run_dir)["charts/episodic_return"]]
    assert np.mean(returns[:3]) < -900 and np.mean(returns[-5:]) > -400, returns


@pytest.mark.slow
@everyone
def test_pendulum_is_learned(runner, name):
    flags = ["--no-cuda", "--env-id", "Pendulum-v1", "--learning-starts", "1000", "--total-timesteps", "15000"]
    run_dir = runner.train(*flags, "--save-model", script=SCRIPTS[name])
    logged = curves(run_dir)
    returns = [value for _, value in logged["charts/episodic_return"]]
    # medians: from a few starts, the pendulum of a young policy goes round and round
    assert np.median(returns[:5]) < -900 and np.median(returns[-20:]) > -300, returns
    assert np.median([value for _, value in logged["eval/episodic_return"]]) > -300
