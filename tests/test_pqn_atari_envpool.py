"""PQN on EnvPool's games, with stacked frames and with an LSTM: targets, memory and updates against oracles."""

import dataclasses
import functools
import random
import re
import runpy
import shutil
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import ROOT, curves
from safetensors.torch import load_file, save_file
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils.tensorboard import SummaryWriter

from cleanrl import ppo_atari_envpool, pqn, pqn_atari_envpool, pqn_atari_envpool_lstm
from cleanrl_utils import run as cleanrl_run
from cleanrl_utils.evaluate import evaluate, main

envpool = pytest.importorskip("envpool", reason="needs cleanrl[envpool]", exc_type=ImportError)
ALGORITHMS = {"stack": pqn_atari_envpool, "lstm": pqn_atari_envpool_lstm}
MODULES = ROOT / "tests" / "modules"
NUM_ENVS, NUM_STEPS, ITERATIONS, ACTIONS = 4, 16, 9, 4
FLAGS = ["--no-cuda", "--num-envs", NUM_ENVS, "--num-steps", NUM_STEPS, "--num-minibatches", 2, "--update-epochs", 1]
FLAGS += ["--total-timesteps", NUM_ENVS * NUM_STEPS * ITERATIONS, "--learning-rate", "2e-3", "--max-grad-norm", 3]
FLAGS += ["--exploration-fraction", 0.5, "--end-e", 0]
# Time limits of the two pools. The short one cuts games off at the last step of a rollout, too, and in another one of
# them the last step is a reset; the long one lets some games end by themselves.
LIMITS = 6, 1000
ENVS = SimpleNamespace(single_action_space=SimpleNamespace(n=ACTIONS), num_envs=NUM_ENVS)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def script_of(kind) -> Path:
    return Path(ALGORITHMS[kind].__file__)


# Oracles


def naive_features(weights, x):
    """The convolutional network with its normalized layers, from their formulas."""

    def normalized_relu(x, layer):
        x = x - x.mean(tuple(range(1, x.ndim)), keepdim=True)
        x = x / ((x**2).mean(tuple(range(1, x.ndim)), keepdim=True) + 1e-5).sqrt()
        return (x * weights[f"network.{layer}.weight"] + weights[f"network.{layer}.bias"]).clamp(min=0)

    x = x / 255
    for layer, stride in ((0, 4), (3, 2), (6, 1)):
        x = torch.conv2d(x, weights[f"network.{layer}.weight"], weights[f"network.{layer}.bias"], stride)
        x = normalized_relu(x, layer + 1)
    return normalized_relu(x.flatten(1) @ weights["network.10.weight"].T + weights["network.10.bias"], 11)


def naive_q_values(weights, x, states, played):
    """Of observations (steps, environments, ...); with an LSTM, one environment and one step at a time.

    `states` holds the hidden and the cell state of each environment, as a list that is changed. A state is forgotten
    after a step that was not played. Only the last row of observations may be without an entry in `played`.
    """
    features = naive_features(weights, x.flatten(0, 1).to(weights["head.weight"])).unflatten(0, x.shape[:2])
    if "lstm_h.weight" in weights:
        w_x, b_x, w_h, b_h = (weights[f"lstm_{name}"] for name in ("x.weight", "x.bias", "h.weight", "h.bias"))
        columns = []
        for env in range(x.shape[1]):
            h, c = states[env]
            column = []
            for step in range(len(x)):
                gates = w_x @ features[step, env] + b_x + w_h @ h + b_h
                i, f, g, o = gates[:128], gates[128:256], gates[256:384], gates[384:]
                new_c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
                new_h = torch.sigmoid(o) * torch.tanh(new_c)
                column.append(new_h)
                if step < len(played):
                    h, c = (new_h, new_c) if played[step, env] else (torch.zeros_like(h), torch.zeros_like(c))
            states[env] = h, c
            columns.append(torch.stack(column))
        features = torch.stack(columns, dim=1)
    return features @ weights["head.weight"].T + weights["head.bias"]


def no_states(num_envs=NUM_ENVS, dtype=torch.float32):
    return [tuple(torch.zeros(2, 128, dtype=dtype)) for _ in range(num_envs)]


def naive_lambda_return(rewards, terminations, truncations, next_values, gamma=0.99, q_lambda=0.65):
    """By definition, for the first step: the returns of 1, 2, ... steps, with powers of lambda as their weights."""
    n_step_returns, discounted_rewards = [], 0.0
    for t in range(len(rewards)):
        discounted_rewards += gamma**t * float(rewards[t])
        bootstrap = 0.0 if terminations[t] else gamma ** (t + 1) * float(next_values[t])
        n_step_returns.append(discounted_rewards + bootstrap)
        if terminations[t] or truncations[t]:
            break
    *shorter, longest = n_step_returns
    weighted = sum((1 - q_lambda) * q_lambda**n * x for n, x in enumerate(shorter))
    return weighted + q_lambda ** len(shorter) * longest


# Watching the script


class WatchedPool:
    """One pool of environments.

    A spoiled one passes other actions to EnvPool's reset steps, and returns rubbish where only these could learn from
    it: as their rewards, and as the observation after the end of an episode.
    """

    def __init__(self, pool, spoil):
        self.pool, self.spoil = pool, spoil
        self.over = np.zeros(pool.num_envs, dtype=bool)
        self.rng = np.random.default_rng(1)

    def __getattr__(self, name):
        return getattr(self.pool, name)

    def send(self, actions):
        if self.spoil:
            actions = np.where(self.over, self.rng.integers(ACTIONS, size=actions.shape), actions)
        self.pool.send(actions)

    def recv(self):
        obs, rewards, terminations, truncations, infos = self.pool.recv()
        if self.spoil:
            rewards = np.where(self.over, 1000, rewards)
            noise = self.rng.integers(256, size=obs.shape, dtype=np.uint8)
            obs = np.where(terminations[:, None, None, None], noise, obs)
            self.over = terminations | truncations
        return obs, rewards, terminations, truncations, infos


KEPT = ["obs", "actions", "rewards", "terminations", "truncations", "valid", "returns", "next_obs", "lstm_state"]
KEPT += ["initial_state"]


class EnoughError(Exception):
    """Ends a run early."""


def run_script(kind, folder, *flags, limits=(), spoil=False, make=None, iterations=None):
    """Train in this process; returns the pools, what was logged, what each rollout held, and every minibatch.

    Pools with limits of their steps are watched. `make` makes other ones. The run may end after some iterations.
    """
    make, add_scalar, limits = make or envpool.make_gymnasium, SummaryWriter.add_scalar, list(limits)
    result = SimpleNamespace(pools=[], rollouts=[], minibatches=[], models=[], curves={})

    def make_watched(env_id, **settings):
        if limits:
            pool = WatchedPool(make(env_id, **settings, max_episode_steps=limits.pop(0)), spoil)
        else:
            pool = make(env_id, **settings)
        result.pools.append(pool)
        return pool

    def copy_of(model):
        return {name: x.clone() for name, x in model.state_dict().items()}

    def recorded_accelerate(args, script, act, update, state):
        result.models.append(copy_of(state["q_network"]))

        def recorded_update(*minibatch):
            result.minibatches.append([x.clone() for x in minibatch])
            return update(*minibatch)

        return act, recorded_update

    def add_scalar_and_look(writer, tag, value, step):
        add_scalar(writer, tag, value, step)
        result.curves.setdefault(tag, []).append((step, float(value)))
        if tag == "charts/avg_episodic_return":  # the last of an iteration
            script = sys._getframe(1).f_globals
            kept = {name: torch.as_tensor(script[name]).numpy().copy() for name in KEPT if name in script}
            seeds = [pool.config["seed"] for pool in script["envs"]]
            result.rollouts.append(SimpleNamespace(**kept, seeds=seeds))
            result.models.append(copy_of(script["q_network"]))
            if len(result.rollouts) == iterations:
                writer.close()
                raise EnoughError

    deterministic = torch.are_deterministic_algorithms_enabled()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", [str(script_of(kind)), *map(str, flags)])
        patch.setattr(sys, "excepthook", sys.excepthook)  # the script sets these: put them back afterwards
        patch.setattr(threading, "excepthook", threading.excepthook)
        patch.setattr(envpool, "make_gymnasium", make_watched)
        patch.setattr(SummaryWriter, "add_scalar", add_scalar_and_look)
        patch.setattr(cleanrl_run, "accelerate", recorded_accelerate)
        try:
            runpy.run_path(str(script_of(kind)), run_name="__main__")
        except EnoughError:
            cleanrl_run.stop.uninstall()
        finally:
            torch.use_deterministic_algorithms(deterministic)
    result.run_dir = next(folder.glob("runs/*"))
    return result


def replay(kind, seeds, limits, actions):
    """What plain EnvPool, one environment at a time, returns to the same actions.

    Only to those that it does not ignore: others take their place where an episode has just ended.
    """
    columns, rng = [], np.random.default_rng(2)
    for seed, limit, column in zip(seeds, limits, actions.T, strict=True):
        settings = {"num_envs": 1, "seed": seed, "episodic_life": True, "reward_clip": True}
        settings |= {"max_episode_steps": limit, "stack_num": {"stack": 4, "lstm": 1}[kind]}
        pool = envpool.make_gymnasium("Breakout-v5", **settings)
        rows, over = [], False
        obs, _ = pool.reset()
        for action in column:
            action = rng.integers(ACTIONS) if over else action
            next_obs, reward, termination, truncation, infos = pool.step(np.array([action]))
            outcome = reward, termination, truncation, infos["reward"], infos["terminated"], infos["elapsed_step"]
            rows.append((obs[0], *(x[0] for x in outcome), next_obs[0]))
            obs, over = next_obs, termination[0] or truncation[0]
        columns.append(rows)
    names = ["obs", "rewards", "terminations", "truncations", "scores", "over", "elapsed", "next_obs"]
    arrays = {name: np.array([[row[i] for row in rows] for rows in columns]) for i, name in enumerate(names)}
    return SimpleNamespace(**{name: x.swapaxes(0, 1) for name, x in arrays.items()})  # (steps, environments, ...)


@pytest.fixture(scope="module", params=ALGORITHMS)
def recorded(request, tmp_path_factory):
    """A run, and the same games in plain EnvPool."""
    kind = request.param
    run = run_script(kind, tmp_path_factory.mktemp(kind), *FLAGS, limits=LIMITS)
    size = NUM_ENVS // 2
    seeds = [pool.config["seed"] + i for pool in run.pools for i in range(size)]
    actions = np.concatenate([rollout.actions for rollout in run.rollouts])
    run.kind = kind
    run.games = replay(kind, seeds, np.repeat(LIMITS, size), actions)
    # EnvPool counts the steps of a game that it has played: not those that only reset
    elapsed = np.concatenate([np.zeros((1, NUM_ENVS)), run.games.elapsed])
    run.games.played = np.diff(elapsed, axis=0) == 1
    return run


def parts(run):
    """Each rollout of the script with the part of the games that it should hold, and the network that played it."""
    assert len(run.rollouts) == ITERATIONS
    for i, (rollout, model) in enumerate(zip(run.rollouts, run.models)):
        part = slice(i * NUM_STEPS, (i + 1) * NUM_STEPS)
        yield rollout, SimpleNamespace(**{name: x[part] for name, x in vars(run.games).items()}), model


@pytest.fixture(scope="module")
def q_values(recorded):
    """Of each rollout: (17, environments, actions), those of the observation after it included."""
    states, all_q_values = no_states(), []
    with torch.no_grad():
        for _, games, model in parts(recorded):
            x = torch.as_tensor(np.concatenate([games.obs, games.next_obs[-1:]]))
            all_q_values.append(naive_q_values(model, x, states, games.played).numpy())
    return all_q_values


# The interface

PUBLISHED = {
    "seed": 1, "torch_deterministic": True, "cuda": True, "track": False, "wandb_project_name": "cleanRL",
    "wandb_entity": None, "capture_video": False, "env_id": "Breakout-v5", "total_timesteps": 10_000_000,
    "learning_rate": 2.5e-4, "num_envs": 8, "num_steps": 128, "anneal_lr": True, "gamma": 0.99, "num_minibatches": 4,
    "update_epochs": 4, "start_e": 1, "end_e": 0.01, "exploration_fraction": 0.1, "q_lambda": 0.65, "batch_size": 0,
    "minibatch_size": 0, "num_iterations": 0,
}  # fmt: skip


@pytest.mark.parametrize("kind, max_grad_norm", [("stack", 10.0), ("lstm", 0.5)])
def test_flags_and_defaults_are_those_of_the_published_file(kind, max_grad_norm):
    flags = dataclasses.asdict(ALGORITHMS[kind].Args())
    assert PUBLISHED.items() <= flags.items() and flags["max_grad_norm"] == max_grad_norm
    assert flags["exp_name"] == script_of(kind).stem
    new = flags.keys() - PUBLISHED.keys() - {"max_grad_norm"}
    assert new <= dataclasses.asdict(ppo_atari_envpool.Args()).keys()


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_every_flag_is_used(kind):
    source = "".join(path.read_text() for path in (script_of(kind), *(ROOT / "cleanrl_utils").rglob("*.py")))
    for field in dataclasses.fields(ALGORITHMS[kind].Args):
        assert f"args.{field.name}" in source, field.name


def test_metrics_are_those_of_the_published_file(recorded):
    each_iteration = {"losses/td_loss", "losses/q_values", "losses/grad_norm", "charts/SPS", "charts/learning_rate"}
    each_iteration |= {"charts/avg_episodic_return"}
    assert recorded.curves.keys() == each_iteration | {"charts/episodic_return", "charts/episodic_length"}
    for tag in each_iteration:
        steps = [step for step, _ in recorded.curves[tag]]
        assert steps == [NUM_ENVS * NUM_STEPS * (i + 1) for i in range(ITERATIONS)], tag


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_returns_optimizer_and_schedule_are_those_of_pqn(kind):
    """Where tests/test_pqn.py compares them with oracles."""
    for name in ("compute_lambda_returns", "radam_rectification", "linear_schedule", "layer_init"):
        ours, theirs = getattr(ALGORITHMS[kind], name).__code__, getattr(pqn, name).__code__
        assert ours.co_code == theirs.co_code and ours.co_consts == theirs.co_consts, name


def test_every_detail_of_the_lstm_is_numbered_in_the_comments():
    assert set(re.findall(r"LSTM detail (\d)", script_of("lstm").read_text())) == set("12345")


# The network


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_network_starts_orthogonal_and_with_layers_that_are_normalized(kind):
    network = ALGORITHMS[kind].QNetwork(ENVS)
    frames, hidden = {"stack": (4, 512), "lstm": (1, 128)}[kind]
    shapes = {name: tuple(x.shape) for name, x in network.named_parameters() if x.ndim != 1}
    norms = {"network.1": (32, 20, 20), "network.4": (64, 9, 9), "network.7": (64, 7, 7)}
    expected = {"network.0.weight": (32, frames, 8, 8), "network.3.weight": (64, 32, 4, 4)}
    expected |= {"network.6.weight": (64, 64, 3, 3), "network.10.weight": (512, 3136)}
    expected |= {"head.weight": (ACTIONS, hidden)}
    expected |= {f"{name}.{part}": shape for name, shape in norms.items() for part in ("weight", "bias")}
    if kind == "lstm":
        expected |= {"lstm_x.weight": (512, 512), "lstm_h.weight": (512, 128)}
    assert shapes == expected
    for name, x in network.named_parameters():
        layer = name.rpartition(".")[0]
        if name.endswith("bias"):
            assert not x.any(), name
        elif layer in norms or layer == "network.11":
            assert (x == 1).all(), name
        else:
            x = x.detach().flatten(1)
            narrow = x if len(x) < len(x[0]) else x.T
            gain = 1 if layer.startswith("lstm") else 2
            torch.testing.assert_close(narrow @ narrow.T, gain * torch.eye(len(narrow)), rtol=0, atol=1e-4)


@pytest.fixture(scope="module", params=ALGORITHMS)
def network(request):
    """With weights that are all other than at the start, and some steps for it: observations, states, valid."""
    torch.manual_seed(1)
    network = ALGORITHMS[request.param].QNetwork(ENVS)
    for name, x in network.named_parameters():
        if x.ndim == 1 or name in ("network.1.bias", "network.4.bias", "network.7.bias"):
            torch.nn.init.normal_(x, mean=name.endswith("weight"), std=0.3)
    frames = {"stack": 4, "lstm": 1}[request.param]
    coarse = torch.randint(0, 256, (9, NUM_ENVS, frames, 3, 3), dtype=torch.uint8)  # noise looks all the same
    x = coarse.repeat_interleave(28, dim=-1).repeat_interleave(28, dim=-2)
    valid = torch.ones(9, NUM_ENVS, dtype=torch.bool)
    valid[[0, 3, 4, 8], [1, 0, 0, 2]] = False  # the first step, two in a row, the last step
    lstm_state = torch.randn(2, NUM_ENVS, 128)
    made = SimpleNamespace(kind=request.param, network=network, x=x, valid=valid, lstm_state=lstm_state)
    with torch.no_grad():
        network.head.bias -= whole_sequence(made).mean((0, 1))  # so that no action is the best one everywhere
    return made


def whole_sequence(network, x=None, lstm_state=None):
    x = network.x if x is None else x
    if network.kind == "stack":
        return network.network(x.flatten(0, 1)).unflatten(0, x.shape[:2])
    return network.network(x, network.lstm_state if lstm_state is None else lstm_state, network.valid)


def test_q_values_equal_a_naive_version(network):
    with torch.no_grad():
        weights = {name: x.double() for name, x in network.network.state_dict().items()}
        states = [tuple(network.lstm_state[:, env].double()) for env in range(NUM_ENVS)]
        expected = naive_q_values(weights, network.x, states, network.valid)
        torch.testing.assert_close(whole_sequence(network), expected.float(), rtol=1e-4, atol=1e-4)


def test_acting_step_by_step_gives_the_actions_of_the_whole_sequence(network):
    q_values, lstm_state = whole_sequence(network).detach(), network.lstm_state
    for step, x in enumerate(network.x):
        if network.kind == "stack":
            action = network.network.get_action(x)
        else:
            action, lstm_state = network.network.get_action(x, lstm_state)
            assert lstm_state.shape == (2, NUM_ENVS, 128)
            lstm_state = lstm_state * network.valid[step].unsqueeze(-1)
        assert torch.equal(action, q_values[step].argmax(-1))
    assert len(q_values.argmax(-1).unique()) == ACTIONS


@pytest.mark.parametrize("network", ["lstm"], indirect=True)
def test_nothing_is_remembered_beyond_the_end_of_an_episode_and_everything_within_it(network):
    before = whole_sequence(network).detach()
    x = network.x.clone()
    x[:5, 0] = 255 - x[:5, 0]  # environment 0 starts an episode in step 5, and environment 1 does in step 1
    x[0, 1:] = 255 - x[0, 1:]
    after = whole_sequence(network, x, -network.lstm_state).detach()
    assert torch.equal(before[5:, 0], after[5:, 0]) and torch.equal(before[1:, 1], after[1:, 1])
    assert (before[4, 0] != after[4, 0]).any() and (before[0, 1] != after[0, 1]).any()  # of the reset steps
    assert (before[:, 2:] != after[:, 2:]).any(dim=-1).all()  # a reset step at the end comes too late


def test_bf16_is_for_the_convolutions_only(network):
    exact = whole_sequence(network).detach()
    network.network.bf16 = True
    rounded = whole_sequence(network).detach()
    network.network.bf16 = False
    assert rounded.dtype == torch.float32 and not torch.equal(exact, rounded)
    torch.testing.assert_close(rounded, exact, rtol=0.2, atol=0.3)


def test_acting_and_updating_leave_no_value_on_the_host(network):
    """So that they can be CUDA graphs: fake tensors have no values, and raise where one is asked for."""
    actions, returns = torch.zeros(9, NUM_ENVS, dtype=torch.int64), torch.zeros(9, NUM_ENVS)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        x, lstm_state, valid, actions, returns = (
            mode.from_tensor(x) for x in (network.x, network.lstm_state, network.valid, actions, returns)
        )
        with pytest.raises(DataDependentOutputException):
            x.sum().item()
        if network.kind == "stack":
            assert network.network.get_action(x[0]).shape == (NUM_ENVS,)
            q_values = network.network(x.flatten(0, 1)).unflatten(0, valid.shape)
        else:
            assert network.network.get_action(x[0], lstm_state)[1].shape == lstm_state.shape
            q_values = network.network(x, lstm_state, valid)
        loss, stats = ALGORITHMS[network.kind].pqn_loss(q_values, actions, returns, valid)
        loss.backward()
        assert all(value.shape == () for value in stats.values())


# The rollout


def test_recording_has_all_kinds_of_ends(recorded):
    """What the tests below would otherwise not see."""
    games = recorded.games
    life_lost, game_over = (games.terminations & (games.over == is_over) for is_over in (0, 1))
    assert life_lost.any() and game_over.any() and games.truncations.any()
    ends = slice(NUM_STEPS - 1, None, NUM_STEPS)  # the last steps of rollouts
    assert games.truncations[ends].any() and not games.played[ends][:-1].all()
    assert not games.played[::NUM_STEPS].all()  # reset steps are also the first ones of rollouts


def test_rollouts_hold_what_envpool_returns_and_mark_the_steps_whose_action_it_ignores(recorded):
    for rollout, games, _ in parts(recorded):
        np.testing.assert_array_equal(rollout.next_obs, games.next_obs[-1])
        np.testing.assert_array_equal(rollout.valid, games.played)
        for name in ("obs", "rewards", "terminations", "truncations"):
            np.testing.assert_array_equal(getattr(rollout, name), getattr(games, name))


def test_actions_are_random_at_first_and_then_the_best_ones_of_all_that_the_episode_has_shown(recorded, q_values):
    """Each rollout by the network that played it: with an LSTM, its states go on from one rollout to the next."""
    agrees, is_clear = [], []
    for (rollout, _, _), rows in zip(parts(recorded), q_values, strict=True):
        ranked = np.sort(rows[:-1], axis=-1)
        is_clear.append(ranked[..., -1] - ranked[..., -2] > 1e-4)  # else rounding decides
        agrees.append(rollout.actions == rows[:-1].argmax(-1))
    agrees, is_clear = np.concatenate(agrees), np.concatenate(is_clear)
    half = len(agrees) // 2
    assert agrees[half + 1 :][is_clear[half + 1 :]].all() and is_clear.mean() > 0.9
    assert 0.1 < agrees[: half // 4].mean() < 0.45  # one of four actions, and as yet few that are not random
    assert 0.3 < agrees[: half + 1].mean() < 0.9
    differs = ~agrees[: half // 2]
    assert all((differs[:, i] != differs[:, j]).any() for i in range(NUM_ENVS) for j in range(i))
    assert len(np.unique(recorded.rollouts[0].actions)) == ACTIONS


@pytest.mark.parametrize("recorded", ["lstm"], indirect=True)
def test_state_is_handed_on_to_the_next_rollout_and_forgotten_after_a_reset_step(recorded):
    assert not recorded.rollouts[0].initial_state.any()
    for before, rollout in zip(recorded.rollouts, recorded.rollouts[1:]):
        np.testing.assert_array_equal(rollout.initial_state, before.lstm_state)
        np.testing.assert_array_equal(before.lstm_state.any(axis=(0, 2)), before.valid[-1])


# Targets


def test_targets_are_those_of_the_episodes_without_the_reset_steps(recorded, q_values):
    ends = {"terminated": 0, "truncated": 0, "rollout": 0}
    for (rollout, games, _), rows in zip(parts(recorded), q_values, strict=True):
        next_values = rows[1:].max(-1)
        for t, i in np.argwhere(games.played):
            outcomes = games.rewards, games.terminations, games.truncations, next_values
            expected = naive_lambda_return(*(x[t:, i] for x in outcomes))
            assert rollout.returns[t, i] == pytest.approx(expected, rel=1e-3, abs=1e-3)
            is_last = games.terminations[t, i] or games.truncations[t, i] or t == NUM_STEPS - 1
            kind = "terminated" if games.terminations[t, i] else "truncated" if games.truncations[t, i] else "rollout"
            ends[kind] += bool(is_last)
    assert min(ends.values()) > 5, ends


# Updates


@pytest.mark.parametrize("shape", [(12,), (4, 3)])
@pytest.mark.parametrize("kind", ALGORITHMS)
def test_loss_and_gradient_are_those_of_pqn_without_the_reset_steps(kind, shape):
    torch.manual_seed(1)
    valid = torch.rand(shape) < 0.6
    q_values, actions, returns = torch.randn(*shape, 3), torch.randint(0, 3, shape), torch.randn(shape)
    returns[~valid] = 1e4
    ours, theirs = q_values.clone().requires_grad_(), q_values[valid].requires_grad_()
    loss, stats = ALGORITHMS[kind].pqn_loss(ours, actions, returns, valid)
    expected, expected_stats = pqn.pqn_loss(theirs, actions[valid], returns[valid])
    loss.backward()
    expected.backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(stats, expected_stats)
    torch.testing.assert_close(ours.grad[valid], theirs.grad)
    assert (ours.grad[~valid] == 0).all()
    nothing, _ = ALGORITHMS[kind].pqn_loss(ours, actions, returns, torch.zeros_like(valid))
    assert nothing == 0 and torch.autograd.grad(nothing, ours)[0].eq(0).all()


def test_minibatches_hold_each_step_once_with_an_lstm_whole_environments(recorded):
    minibatches, rollout = recorded.minibatches[-2:], recorded.rollouts[-1]
    assert len(recorded.minibatches) == 2 * ITERATIONS
    if recorded.kind == "stack":
        assert len(minibatches[0][0]) == NUM_STEPS * NUM_ENVS // 2
        seen = [[x[i].numpy() for x in minibatch] for minibatch in minibatches for i in range(len(minibatch[0]))]
        arrays = rollout.obs, rollout.actions, rollout.returns, rollout.valid
        expected = [[x[t, i] for x in arrays] for t in range(NUM_STEPS) for i in range(NUM_ENVS)]
    else:
        assert minibatches[0][0].shape[:2] == (NUM_STEPS, NUM_ENVS // 2)
        seen = [[x[:, i].numpy() for x in minibatch] for minibatch in minibatches for i in range(NUM_ENVS // 2)]
        arrays = rollout.obs, rollout.initial_state, rollout.actions, rollout.returns, rollout.valid
        expected = [[x[:, i] for x in arrays] for i in range(NUM_ENVS)]

    def in_order(rows):
        return sorted(tuple(x.tobytes() for x in row) for row in rows)

    assert in_order(seen) == in_order(expected)


def test_updates_of_the_script_are_those_of_radam_in_double_precision(recorded):
    """The first eight, with gradients by the naive network, clipped, and the annealed learning rate."""
    weights = {name: x.double().requires_grad_() for name, x in recorded.models[0].items()}
    moments = {name: (torch.zeros_like(x), torch.zeros_like(x)) for name, x in weights.items()}
    num_clipped = 0
    for t, minibatch in enumerate(recorded.minibatches[:8], 1):
        if recorded.kind == "stack":
            obs, actions, returns, valid = (x.unsqueeze(1) for x in minibatch)
            states = no_states(1)
        else:
            obs, lstm_state, actions, returns, valid = minibatch
            states = [tuple(lstm_state[:, env].double()) for env in range(lstm_state.shape[1])]
        q_values = naive_q_values(weights, obs, states, valid)
        errors = [
            q_values[step, env, actions[step, env]] - returns[step, env] for step, env in np.argwhere(valid.numpy())
        ]
        gradients = torch.autograd.grad((torch.stack(errors) ** 2).mean(), list(weights.values()))
        norm = sum((g**2).sum() for g in gradients) ** 0.5
        num_clipped += norm > 3
        learning_rate = 2e-3 * (1 - (t - 1) // 2 / ITERATIONS)
        rho_inf = 1999.0
        rho = rho_inf - 2 * t * 0.999**t / (1 - 0.999**t)
        for (x, (mean, square)), g in zip(zip(weights.values(), moments.values()), gradients, strict=True):
            g = g * min(1, 3 / (norm + 1e-6))
            mean.mul_(0.9).add_(0.1 * g)
            square.mul_(0.999).add_(0.001 * g**2)
            if rho > 5:
                rect = ((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho)) ** 0.5
                step = mean / (1 - 0.9**t) / ((square / (1 - 0.999**t)).sqrt() + 1e-8)
                x.data.sub_(learning_rate * rect * step)
    assert num_clipped > 0
    for name, x in recorded.models[4].items():  # after four iterations of two updates
        torch.testing.assert_close(x, weights[name].detach().float(), rtol=0, atol=3e-6)
        assert (x - recorded.models[0][name]).abs().max() > 1e-4


def test_nothing_is_learned_from_a_reset_step(recorded, tmp_path):
    """Other actions and rewards, and other observations before it, leave every weight and every curve as they are."""
    iterations = 5
    spoiled = run_script(recorded.kind, tmp_path, *FLAGS, limits=LIMITS, spoil=True, iterations=iterations)
    rubbish = np.concatenate([rollout.rewards == 1000 for rollout in spoiled.rollouts])
    games = SimpleNamespace(**{name: x[: len(rubbish)] for name, x in vars(recorded.games).items()})
    assert np.array_equal(rubbish, ~games.played)
    assert games.terminations.sum() > 2 and games.truncations.sum() > 2
    for name, x in spoiled.models[-1].items():
        assert torch.equal(x, recorded.models[iterations][name]), name
        assert not torch.equal(x, recorded.models[0][name]), name
    for tag in spoiled.curves.keys() - {"charts/SPS"}:
        same_steps = recorded.curves[tag][: len(spoiled.curves[tag])]
        assert str(spoiled.curves[tag]) == str(same_steps), tag  # as text: NaN equals itself there


# The log


def test_every_game_is_logged_with_its_own_score_truncated_ones_included(recorded):
    """Whole games, not lives; nothing of one game in the score of the next."""
    games, expected = recorded.games, []
    for i in range(NUM_ENVS):
        score = length = 0
        for t, (points, over) in enumerate(zip(games.scores[:, i], games.over[:, i] | games.truncations[:, i])):
            score, length = score + points, length + games.played[t, i]
            if over:
                expected.append((t * NUM_ENVS + i + 1, score, length))
                score = length = 0
    returns, lengths = (recorded.curves[f"charts/episodic_{name}"] for name in ("return", "length"))
    assert sorted(returns) == sorted((step, score) for step, score, _ in expected)
    assert sorted(lengths) == sorted((step, length) for step, _, length in expected)


# A run

TRAIN = ["--no-cuda", "--num-envs", 4, "--num-steps", 8, "--num-minibatches", 2, "--update-epochs", 2]
TRAIN += ["--no-anneal-lr", "--exploration-fraction", 0.5]
TOTAL = ["--total-timesteps", 96]
make_short = functools.partial(envpool.make_gymnasium, max_episode_steps=26)  # the evaluation is over sooner


@pytest.fixture(scope="module", params=ALGORITHMS)
def trained(request, tmp_path_factory):
    """A finished run of three iterations, evaluated."""
    kind = request.param
    run = run_script(kind, tmp_path_factory.mktemp("trained"), *TRAIN, *TOTAL, "--save-model", make=make_short)
    run.kind, run.model = kind, run.run_dir / f"{script_of(kind).stem}.safetensors"
    return run


def test_evaluation_at_the_end_is_repeated_by_the_saved_model(trained, monkeypatch, capsys):
    monkeypatch.setattr(envpool, "make_gymnasium", make_short)
    returns = [value for _, value in trained.curves["eval/episodic_return"]]
    module = ALGORITHMS[trained.kind]
    settings = {"seed": 1_000_001, "device": "cpu"}
    again = evaluate(trained.model, "Breakout-v5", module.make_envs, module.load_policy, **settings)
    assert again.returns == returns and len(returns) == 10 and max(again.lengths) == 26
    with pytest.raises(SystemExit, match="EnvPool cannot be filmed"):
        main([trained.run_dir], cuda=False, capture_video=True)


def test_saved_policy_takes_the_best_actions_and_forgets_where_it_is_told(network, tmp_path):
    save_file(network.network.state_dict(), tmp_path / "model.safetensors")
    policy = ALGORITHMS[network.kind].load_policy(tmp_path / "model.safetensors", ENVS)
    expected = whole_sequence(network, lstm_state=torch.zeros(2, NUM_ENVS, 128)).argmax(-1)
    for step, x in enumerate(network.x.numpy()):
        np.testing.assert_array_equal(policy(x), expected[step])
        if network.kind == "lstm":
            policy.reset(~network.valid[step].numpy())
    if network.kind == "lstm":
        np.testing.assert_array_equal(policy.lstm_state.numpy().any(axis=(0, 2)), network.valid[-1])


def test_resumed_run_goes_on_with_its_updates_and_with_new_games_and_says_so(trained, tmp_path, capsys):
    run_dir = Path(shutil.copytree(trained.run_dir, tmp_path / "runs" / trained.run_dir.name))
    capsys.readouterr()
    resume = ["--resume", f"runs/{run_dir.name}", "--total-timesteps", 160, "--no-save-model"]
    resumed = run_script(trained.kind, tmp_path, *resume)
    assert "episodes start again" in capsys.readouterr().err
    assert [step for step, _ in curves(run_dir)["losses/td_loss"]] == [32, 64, 96, 128, 160]
    saved = load_file(trained.model)
    assert all(torch.equal(x, resumed.models[0][name]) for name, x in saved.items())
    for (step, value), updates in zip(resumed.curves["charts/learning_rate"], (16, 20), strict=True):
        assert value == pytest.approx(2.5e-4 * pqn.radam_rectification(updates)), step  # its warm-up goes on
    first = resumed.rollouts[0]
    assert first.valid[0].all()  # no reset step
    if trained.kind == "lstm":
        assert not first.initial_state.any() and resumed.rollouts[1].initial_state.any()
    random.seed(1)
    at_the_start = {random.getrandbits(30) + i for _ in range(2) for i in range(2)}
    assert not at_the_start & {seed + i for seed in first.seeds for i in range(2)}


@pytest.mark.parametrize("trained", ["lstm"], indirect=True)
def test_copied_out_file_trains_without_the_repository_and_learns_the_same_from_the_same_seed(trained, runner):
    script = Path(shutil.copy(script_of(trained.kind), runner.folder / "mine.py"))
    run_dir = runner.train(*TRAIN, *TOTAL, "--save-model", script=script, modules=MODULES / "without_utils")
    theirs = load_file(run_dir / "mine.safetensors")
    assert all(torch.equal(x, theirs[name]) for name, x in load_file(trained.model).items())


def test_run_with_as_many_reset_steps_as_others_stays_finite(tmp_path):
    """Games of one step: every other step only resets, and minibatches of one step often hold no other."""
    flags = ["--no-cuda", "--num-envs", 2, "--num-steps", 4, "--num-minibatches", 8, "--update-epochs", 1]
    run = run_script("stack", tmp_path, *flags, "--total-timesteps", 32, limits=(1, 1))
    assert all(x.isfinite().all() for x in run.models[-1].values())
    np.testing.assert_array_equal(run.rollouts[-1].valid[:, 0], [True, False, True, False])
    assert any(not minibatch[-1].any() for minibatch in run.minibatches)
    for name in ("td_loss", "q_values", "grad_norm"):
        assert np.isfinite([value for _, value in run.curves[f"losses/{name}"]]).all(), name


class ScriptedPool:
    """A pool of two games that shows the number of its step, with a life lost in step 2 and a time limit in step 5."""

    num_envs, observation_space, action_space, recv = 2, None, None, None

    def reset(self, env_ids=(0, 1)):
        if len(env_ids) == 2:
            self.number = 0
        return np.array([[self.number]] * len(env_ids)), {"env_id": env_ids}

    def step(self, actions):
        self.number += 1
        terminations, truncations = (np.array([self.number == end, False]) for end in (2, 5))
        elapsed = np.array([0, self.number]) if self.number in (3, 6) else np.array([self.number] * 2)
        infos = {"reward": np.zeros(2), "terminated": np.zeros(2, int), "elapsed_step": elapsed}
        return np.array([[self.number]] * 2), np.zeros(2), terminations, truncations, infos

    def close(self):
        pass


def test_recurrent_policy_is_told_to_forget_once_it_has_seen_the_last_observation_of_an_episode():
    """After EnvPool's reset step, not before it; where a game is cut off, there is no reset step."""
    seen = []

    def load_policy(*_):
        def policy(obs):
            return np.zeros(len(obs), int)

        policy.reset = lambda dones: seen.append(dones.tolist())
        return policy

    evaluate("", "", lambda *_: ScriptedPool(), load_policy, episodes=2, max_episode_steps=8)
    ends = [[False, False], [False, False], [True, False], [False, False], [False, False], [True, False]]
    assert seen == [*ends, [False, False], [True, True]]


# Learning


class Lights:
    """Games behind the interface of EnvPool, its reset steps included: which half of the picture is lit?

    After the first step of an episode, a right action earns 1 and a wrong one -1. In single frames only the first one
    shows the light, so that a memory is needed; all later ones are black.
    """

    single_action_space, config = gym.spaces.Discrete(2), {"seed": 0}

    def __init__(self, env_id, num_envs, seed, stack_num=4, **settings):
        self.num_envs, self.frames, self.rng = num_envs, stack_num, np.random.default_rng(seed)
        self.age, self.over = np.zeros(num_envs, np.int32), np.zeros(num_envs, bool)
        self.side, self.last = self.rng.integers(2, size=num_envs), self.rng.integers(2, 6, size=num_envs)

    def observe(self):
        obs = np.zeros((self.num_envs, self.frames, 84, 84), np.uint8)
        for i in range(self.num_envs):
            if self.age[i] == 0 or self.frames == 4:
                obs[i, :, :, 42 * self.side[i] : 42 * self.side[i] + 42] = 255
        return obs

    def reset(self):
        return self.observe(), {}

    def send(self, actions):
        self.actions = actions

    def recv(self):
        is_reset, is_right = self.over, self.actions == self.side
        rewards = np.where(is_right, 1, -1) * (~is_reset & (self.age > 0))
        self.age = np.where(is_reset, 0, self.age + 1).astype(np.int32)
        self.side = np.where(is_reset, self.rng.integers(2, size=self.num_envs), self.side)
        self.last = np.where(is_reset, self.rng.integers(2, 6, size=self.num_envs), self.last)
        self.over = self.age > self.last
        infos = {"reward": rewards, "terminated": self.over.astype(np.int32), "elapsed_step": self.age}
        return self.observe(), rewards.astype(np.float32), self.over, np.zeros_like(self.over), infos


@pytest.mark.slow
@pytest.mark.parametrize("kind", ALGORITHMS)
@pytest.mark.parametrize("seed", [1, 2])
def test_which_half_is_lit_is_learned_and_remembered(kind, seed, tmp_path):
    """Two to five rewards of +1 or -1 an episode: 0 on average for any policy that does not know; 3.5 at best."""
    flags = ["--no-cuda", "--num-steps", 16, "--num-minibatches", 2, "--update-epochs", 2, "--learning-rate", "1e-3"]
    flags += ["--total-timesteps", 4096, "--exploration-fraction", 0.5, "--seed", seed]
    run = run_script(kind, tmp_path, *flags, make=Lights)
    returns = [value for _, value in run.curves["charts/episodic_return"]]
    print(kind, seed, np.mean(returns[:60]), np.mean(returns[-100:]))
    assert abs(np.mean(returns[:60])) < 1.5 and np.mean(returns[-100:]) > 2.5


# Mistakes

MISTAKES = [
    (["--env-id", "BreakoNoFrameskip-v4"], ["no game of EnvPool", "Breakout-v5"]),
    (["--env-id", "CartPole-v1"], ["CartPole-v1", "no Atari game", "Breakout-v5"]),
    (["--capture-video"], ["EnvPool cannot be filmed"]),
    (["--q-lambda", 1.5], ["--q-lambda 1.5", "between 0 and 1"]),
    (["--num-minibatches", 3], ["3 minibatches"]),
]
MISTAKES_OF_LSTM = [
    (["--num-envs", 3, "--num-minibatches", 2], ["3 envs", "2 minibatches of whole envs"]),
    (["--compile"], ["--compile", "minutes"]),
]


@pytest.mark.parametrize(
    "kind, flags, words",
    [(kind, *mistake) for kind in ALGORITHMS for mistake in MISTAKES]
    + [("lstm", *mistake) for mistake in MISTAKES_OF_LSTM],
)
def test_mistake_gets_one_clear_line_and_leaves_nothing_on_disk(kind, flags, words, tmp_path, capfd):
    with pytest.raises(SystemExit) as stop:
        run_script(kind, tmp_path, *flags)
    line, output = stop.value.code, capfd.readouterr()  # Python prints the line, and exits with status 1
    assert isinstance(line, str) and "\n" not in line and output.out == output.err == ""
    assert all(word in line for word in words), line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "kind, modules, words",
    [
        ("stack", "without_envpool", ['pip install "cleanrl[envpool]"']),
        ("lstm", "without_libegl", ["EnvPool needs", "apt-get install libegl1 libopengl0"]),
    ],
)
def test_what_is_not_installed_is_named(runner, kind, modules, words):
    result = runner.run(script_of(kind), modules=MODULES / modules, check=False)
    assert result.returncode == 1 and len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert all(word in result.stderr for word in words), result.stderr
    assert not list(runner.folder.iterdir())


@pytest.mark.slow
def test_compiled_update_learns_the_same_as_the_eager_one(runner):
    losses = []
    for flags in ([], ["--compile"]):
        run_dir = runner.train(*TRAIN, "--total-timesteps", 160, *flags, script=script_of("stack"))
        losses.append([value for _, value in curves(run_dir)["losses/td_loss"]])
    assert losses[0] == pytest.approx(losses[1], rel=1e-2)
