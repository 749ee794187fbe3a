"""pqn.py: lambda returns, RAdam and exploration against oracles, and that it learns, resumes and refuses mistakes."""

import dataclasses
import importlib.util
import runpy
import sys

import numpy as np
import pytest
import torch
from conftest import ROOT, SHORT, Runner, assert_same_run, curves
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cleanrl import dqn, ppo
from cleanrl.pqn import (
    Args,
    QNetwork,
    compute_lambda_returns,
    linear_schedule,
    load_policy,
    make_envs,
    pqn_loss,
    radam_rectification,
)

PQN = ROOT / "cleanrl" / "pqn.py"
MODULES = ROOT / "tests" / "modules"
floats = st.floats(-10, 10, width=32)


def run_script(monkeypatch, folder, *flags) -> dict:
    """Train in this process; returns the variables of the script."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [str(PQN), *map(str, flags)])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    try:
        return runpy.run_path(str(PQN), run_name="__main__")
    finally:
        torch.use_deterministic_algorithms(False)


# Lambda returns


@st.composite
def rollouts(draw):
    shape = draw(st.tuples(st.integers(1, 12), st.integers(1, 3)))
    rewards, next_values = (draw(hnp.arrays(np.float32, shape, elements=floats)) for _ in range(2))
    terminations, truncations = (draw(hnp.arrays(np.bool_, shape)) for _ in range(2))
    return rewards, terminations, truncations, next_values


def naive_lambda_return(rewards, terminations, truncations, next_values, gamma, q_lambda):
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


@settings(deadline=None, max_examples=150)
@given(rollouts(), st.floats(0, 1), st.floats(0, 1))
def test_lambda_returns_are_the_weighted_mean_of_n_step_returns(rollout, gamma, q_lambda):
    returns = compute_lambda_returns(*map(torch.as_tensor, rollout), gamma, q_lambda)
    for idx in range(returns.shape[1]):
        for start in range(len(returns)):
            expected = naive_lambda_return(*(x[start:, idx] for x in rollout), gamma, q_lambda)
            np.testing.assert_allclose(returns[start, idx].item(), expected, rtol=1e-4, atol=1e-3)


def test_lambda_returns_are_those_of_generalized_advantage_estimation():
    torch.manual_seed(1)
    rewards, values = torch.randn(2, 20, 3)
    terminations, truncations = torch.rand(2, 20, 3) < 0.15
    next_values = values.roll(-1, dims=0)
    next_values[-1] = 5.0
    next_values[truncations] = 7.0
    returns = compute_lambda_returns(rewards, terminations, truncations, next_values, 0.9, 0.65)
    _, expected = ppo.compute_gae(rewards, terminations, truncations, values, next_values, 0.9, 0.65)
    torch.testing.assert_close(returns, expected)


def test_nothing_of_an_episode_flows_into_the_one_before_it():
    torch.manual_seed(1)
    rewards, next_values = torch.randn(2, 10, 2)
    ends = torch.zeros(10, 2, dtype=torch.bool)
    ends[4] = True
    never = torch.zeros_like(ends)
    for terminations, truncations in ((ends, never), (never, ends)):
        before = compute_lambda_returns(rewards, terminations, truncations, next_values, 0.9, 0.65)
        later = torch.arange(10)[:, None] > 4
        after = compute_lambda_returns(
            rewards + 100 * later, terminations, truncations, next_values + 100 * later, 0.9, 0.65
        )
        assert torch.equal(before[:5], after[:5]) and (after[5:] > before[5:] + 50).all()
    terminated = compute_lambda_returns(rewards, ends, never, next_values, 0.9, 0.65)
    assert torch.equal(terminated[4], rewards[4])
    truncated = compute_lambda_returns(rewards, never, ends, next_values, 0.9, 0.65)
    torch.testing.assert_close(truncated[4], rewards[4] + 0.9 * next_values[4])


@pytest.mark.parametrize(
    "env_id, value", [("Cut-v0", 1 / (1 - 0.9)), ("Ended-v0", np.mean([1, 1.9, 2.71, 3.439, 4.0951]))]
)
def test_value_of_a_truncated_episode_is_that_of_one_that_goes_on(runner, env_id, value):
    """Reward 1 for ever, seen in episodes of five steps: worth 10 if they are cut off, 2.6 if they end."""
    flags = ["--env-id", f"trap_envs:{env_id}", "--gamma", "0.9", "--q-lambda", "1.0", "--learning-rate", "5e-3"]
    flags += ["--num-steps", "25", "--total-timesteps", "6000", "--no-cuda", "--save-model"]
    run_dir = runner.train(*flags, script=PQN, modules=MODULES)
    sys.path.insert(0, str(MODULES))
    policy = load_policy(next(run_dir.glob("*.safetensors")), make_envs(f"trap_envs:{env_id}", 1, False, ""))
    q_network = policy.__closure__[policy.__code__.co_freevars.index("q_network")].cell_contents
    assert q_network(torch.ones(1, 1)).max().item() == pytest.approx(value, rel=0.05)


# Network, loss and optimizer


def numpy_forward(weights, x):
    """The Q-network in double precision, from its formulas."""
    w1, b1, scale1, shift1, w2, b2, scale2, shift2, w3, b3 = weights
    for w, b, scale, shift in ((w1, b1, scale1, shift1), (w2, b2, scale2, shift2)):
        x = x @ w.T + b
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        x = np.maximum(x * scale + shift, 0)
    return x @ w3.T + b3


def test_network_normalizes_its_layers():
    torch.manual_seed(1)
    network = QNetwork(make_envs("Acrobot-v1", 1, False, ""))
    for name, x in network.named_parameters():
        if x.ndim == 2:
            narrow = x if len(x) < len(x[0]) else x.T
            torch.testing.assert_close(narrow @ narrow.T, 2 * torch.eye(len(narrow)), rtol=0, atol=1e-5)
            torch.nn.init.normal_(x)
        else:
            assert (x == (1 if name in ("network.1.weight", "network.4.weight") else 0)).all(), name
            torch.nn.init.normal_(x)
    assert [len(x) for x in network.parameters()] == [120, 120, 120, 120, 84, 84, 84, 84, 3, 3]
    x = torch.randn(50, 6)
    expected = numpy_forward([p.detach().double().numpy() for p in network.parameters()], x.double().numpy())
    np.testing.assert_allclose(network(x).detach(), expected, rtol=1e-3, atol=1e-3)
    assert (network.get_action(x).numpy() == expected.argmax(-1)).all()


def test_loss_and_gradient_equal_a_naive_version():
    rng = np.random.default_rng(1)
    q, actions, returns = rng.normal(size=(16, 3)), rng.integers(0, 3, 16), rng.normal(size=16)
    expected, gradient = 0.0, np.zeros_like(q)
    for i in range(16):
        expected += (q[i, actions[i]] - returns[i]) ** 2 / 16
        gradient[i, actions[i]] = 2 * (q[i, actions[i]] - returns[i]) / 16
    t_q = torch.tensor(q, requires_grad=True)
    loss, stats = pqn_loss(t_q, torch.tensor(actions), torch.tensor(returns))
    loss.backward()
    np.testing.assert_allclose([loss.item(), stats["td_loss"].item()], expected, rtol=1e-12)
    np.testing.assert_allclose(t_q.grad, gradient, rtol=1e-12)
    np.testing.assert_allclose(stats["q_values"], q[range(16), actions].mean(), rtol=1e-12)


def test_rectified_adam_is_the_radam_of_pytorch_once_that_adapts():
    """PyTorch's takes its first five updates without adapting them; here they are left out."""
    torch.manual_seed(1)
    ours = torch.nn.Parameter(torch.randn(20))
    theirs = torch.nn.Parameter(ours.detach().clone())
    adam, radam = torch.optim.Adam([ours], torch.tensor(0.0), fused=True), torch.optim.RAdam([theirs], 0.0)
    for num_updates in range(1, 301):
        adam.param_groups[0]["lr"].fill_(1e-2 * radam_rectification(num_updates))
        radam.param_groups[0]["lr"] = 0.0 if num_updates <= 5 else 1e-2
        ours.grad = torch.randn(20) * torch.logspace(-2, 2, 20)
        theirs.grad = ours.grad.clone()
        adam.step()
        radam.step()
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    factors = [radam_rectification(num_updates) for num_updates in range(1, 20_000)]
    assert factors[:5] == [0.0] * 5 and 0 < factors[5] < 0.05
    assert all(a < b for a, b in zip(factors[5:], factors[6:])) and 0.999 < factors[-1] < 1


# Runs the script as written on episodes of at most 20 steps, and keeps every minibatch and the weights before it.
RECORD = """
import functools, runpy, sys
import gymnasium as gym, torch
from cleanrl_utils import run
gym.make = functools.partial(gym.make, max_episode_steps=20)
weights, minibatches = [], []
def recorded_accelerate(args, script, act, update, state):
    def recorded_update(*minibatch):
        weights.append([x.detach().clone() for x in state["q_network"].parameters()])
        minibatches.append([x.clone() for x in minibatch])
        return update(*minibatch)
    return act, recorded_update
run.accelerate = recorded_accelerate
sys.argv[:] = sys.argv[1:]
end = runpy.run_path(sys.argv[0], run_name="__main__")
weights.append([x.detach() for x in end["q_network"].parameters()])
names = ["obs", "actions", "rewards", "terminations", "truncations", "final_obs", "next_obs"]
last = {name: end[name] for name in names}
torch.save({"weights": weights, "minibatches": minibatches, **last}, "record.pt")
"""


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """Three iterations of 4 epochs of 4 minibatches."""
    runner = Runner(tmp_path_factory.mktemp("record"))
    flags = ["--no-cuda", "--num-envs", 4, "--num-steps", 32, "--num-minibatches", 4, "--total-timesteps", 384]
    runner.run("-c", RECORD, PQN, *flags, "--learning-rate", 0.02, "--max-grad-norm", 15, "--end-e", 1)
    return torch.load(runner.folder / "record.pt", weights_only=False)


def test_updates_of_the_script_are_those_of_radam_in_double_precision(record):
    """The whole run, with its annealed learning rate and clipped gradients."""
    assert len(record["minibatches"]) == 48
    weights = [x.double().requires_grad_() for x in record["weights"][0]]
    moments = [(torch.zeros_like(x), torch.zeros_like(x)) for x in weights]
    clipped = 0
    for t, (obs, actions, returns) in enumerate(record["minibatches"], 1):
        x = obs.double()
        w1, b1, scale1, shift1, w2, b2, scale2, shift2, w3, b3 = weights
        x = torch.layer_norm(x @ w1.T + b1, [120], scale1, shift1).relu()
        x = torch.layer_norm(x @ w2.T + b2, [84], scale2, shift2).relu()
        q_values = (x @ w3.T + b3)[range(len(x)), actions]
        gradients = torch.autograd.grad(((q_values - returns.double()) ** 2).mean(), weights)
        norm = sum((g**2).sum() for g in gradients) ** 0.5
        clipped += norm > 15
        learning_rate = 0.02 * (1 - (t - 1) // 16 / 3)
        rho_inf = 1999.0
        rho = rho_inf - 2 * t * 0.999**t / (1 - 0.999**t)
        for x, g, (mean, square) in zip(weights, gradients, moments, strict=True):
            g = g * min(1, 15 / (norm + 1e-6))
            mean.mul_(0.9).add_(0.1 * g)
            square.mul_(0.999).add_(0.001 * g**2)
            if rho > 5:
                rect = ((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho)) ** 0.5
                step = mean / (1 - 0.9**t) / ((square / (1 - 0.999**t)).sqrt() + 1e-8)
                x.data.sub_(learning_rate * rect * step)
    assert 0 < clipped < 48, clipped
    for x, expected, start in zip(record["weights"][-1], weights, record["weights"][0], strict=True):
        np.testing.assert_allclose(x, expected.detach(), rtol=0, atol=1e-5)
        assert (x - start).abs().max() > 0.01


def test_targets_of_the_script_bootstrap_from_the_observations_that_really_came_next(record):
    """Those of the last rollout, against the definition, with the weights that were there before its first update."""
    terminations, truncations = record["terminations"], record["truncations"]
    assert terminations.sum() > 1 and truncations.sum() > 1  # else this would test little
    weights = [x.double().numpy() for x in record["weights"][-17]]
    obs = record["obs"].numpy()
    following = np.concatenate([obs[1:], record["next_obs"][None]])
    for (step, idx), final_obs in record["final_obs"].items():
        following[step, idx] = final_obs[0]
    assert (following[truncations] != np.concatenate([obs[1:], record["next_obs"][None]])[truncations]).any(-1).all()
    next_values = numpy_forward(weights, following.astype(np.float64)).max(-1)
    arrays = record["rewards"], terminations, truncations, next_values
    expected = {}
    for step, idx in np.ndindex(32, 4):
        target = naive_lambda_return(*(x[step:, idx] for x in arrays), 0.99, 0.65)
        expected[obs[step, idx].tobytes()] = record["actions"][step, idx], target
    for epoch in range(4):
        seen = set()
        for mb_obs, mb_actions, mb_returns in record["minibatches"][-16:][4 * epoch : 4 * epoch + 4]:
            assert len(mb_obs) == 32
            for x, action, target in zip(mb_obs.numpy(), mb_actions.numpy(), mb_returns.numpy(), strict=True):
                expected_action, expected_target = expected[x.tobytes()]
                assert action == expected_action
                assert target == pytest.approx(expected_target, rel=1e-4, abs=1e-4)
                seen.add(x.tobytes())
        assert seen == expected.keys()  # each epoch goes over the whole rollout


# Exploration


def play(monkeypatch, folder, start_e, end_e):
    """Actions of a rollout, and those that are greedy by the network, which learns nothing."""
    flags = ["--no-cuda", "--start-e", start_e, "--end-e", end_e, "--learning-rate", 0, "--num-steps", 2000]
    flags += ["--num-minibatches", 1, "--update-epochs", 1, "--total-timesteps", 8000, "--env-id", "Acrobot-v1"]
    script = run_script(monkeypatch, folder, *flags)
    return script["actions"], script["q_network"](script["obs"]).argmax(-1).numpy()


def test_each_environment_explores_on_its_own(monkeypatch, tmp_path):
    actions, greedy = play(monkeypatch, tmp_path, 0.6, 0.6)
    differs = actions != greedy
    np.testing.assert_allclose(differs.mean(0), 0.4, atol=0.05)  # of three actions, two are others
    np.testing.assert_allclose(np.corrcoef(differs.T), np.eye(4), atol=0.1)
    others = (actions - greedy)[differs] % 3
    np.testing.assert_allclose(np.mean(others == 1), 0.5, atol=0.05)


def test_exploration_falls_over_the_steps_of_a_run(monkeypatch, tmp_path):
    actions, greedy = play(monkeypatch, tmp_path, 1.0, 0.0)
    differs = (actions != greedy).mean(1)
    assert differs[:100].mean() > 0.5 and 0.2 < differs[450:550].mean() < 0.5
    assert not differs[1000:].any()  # half of the run is over
    assert linear_schedule.__code__.co_code == dqn.linear_schedule.__code__.co_code


# A whole run

TRAINING = [*SHORT, "--no-anneal-lr", "--exploration-fraction", 0.25]


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory):
    return Runner(tmp_path_factory.mktemp("never_stopped")).train(*TRAINING, "--save-model", script=PQN)


def test_resumed_run_equals_one_of_the_same_seed_that_never_stopped(runner, never_stopped):
    """RAdam's warm-up and the random actions go on where they were."""
    flags = [*TRAINING, "--total-timesteps", 640, "--exploration-fraction", 0.5]  # of half the steps
    run_dir = runner.train(*flags, script=PQN)
    resume = ["--resume", run_dir, "--total-timesteps", 1280, "--exploration-fraction", 0.25, "--save-model"]
    result = runner.run(PQN, *resume)
    assert "episodes start again" not in result.stderr
    assert_same_run(never_stopped, run_dir)


def test_same_seed_gives_the_same_run_replayed_or_as_written_and_another_seed_another(runner, never_stopped):
    again = runner.train(*TRAINING, "--save-model", "--accelerate", "off", script=PQN)
    assert_same_run(never_stopped, again)
    other = runner.train(*TRAINING, "--save-model", "--seed", 2, script=PQN)
    with pytest.raises(AssertionError):
        assert_same_run(never_stopped, other)


def test_metrics_are_those_of_the_published_file(never_stopped):
    logged = curves(never_stopped)
    charts = {"charts/episodic_return", "charts/episodic_length", "charts/SPS", "charts/learning_rate"}
    losses = {"losses/td_loss", "losses/q_values", "losses/grad_norm"}
    assert logged.keys() == charts | losses | {"eval/episodic_return"}
    for tag in losses | {"charts/SPS"}:
        assert [step for step, _ in logged[tag]] == list(range(64, 1281, 64)), tag
    first, last = logged["charts/learning_rate"][0][1], logged["charts/learning_rate"][-1][1]
    assert first == pytest.approx(2.5e-4 * radam_rectification(8)) and last > 5 * first  # it warms up


def test_flags_and_defaults_are_those_of_the_published_file():
    published = {
        "exp_name": "pqn", "seed": 1, "torch_deterministic": True, "cuda": True, "track": False,
        "wandb_project_name": "cleanRL", "wandb_entity": None, "capture_video": False, "env_id": "CartPole-v1",
        "total_timesteps": 500000, "learning_rate": 2.5e-4, "num_envs": 4, "num_steps": 128, "num_minibatches": 4,
        "update_epochs": 4, "anneal_lr": True, "gamma": 0.99, "start_e": 1, "end_e": 0.05,
        "exploration_fraction": 0.5, "max_grad_norm": 10.0, "q_lambda": 0.65,
    }  # fmt: skip
    flags = dataclasses.asdict(Args())
    assert published.items() <= flags.items()
    assert flags.keys() - published.keys() <= dataclasses.asdict(ppo.Args()).keys()


def test_every_flag_is_used():
    source = "".join(path.read_text() for path in (PQN, *(ROOT / "cleanrl_utils").rglob("*.py")))
    for field in dataclasses.fields(Args):
        assert f"args.{field.name}" in source, field.name


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--env-id", "Pendulum-v1"], ["Box", "continuous"]),
        (["--q-lambda", "1.5"], ["--q-lambda 1.5", "between 0 and 1"]),
        (["--num-minibatches", "3"], ["3 minibatches"]),
        pytest.param(
            ["--env-id", "Breakout-v5"],
            ["an id of EnvPool, for pqn_atari_envpool.py"],
            marks=pytest.mark.skipif(not importlib.util.find_spec("ale_py"), reason="needs the extra atari"),
        ),
    ],
)
def test_mistake_gets_one_clear_line_and_leaves_nothing_on_disk(runner, flags, words):
    result = runner.run(PQN, *flags, check=False)
    assert result.returncode == 1
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert all(word in result.stderr for word in words), result.stderr
    assert not list(runner.folder.iterdir())


@pytest.mark.slow
def test_compiled_update_learns_the_same_as_the_eager_one(runner):
    eager, compiled = (curves(runner.train(*SHORT, *flags, script=PQN)) for flags in ([], ["--compile"]))
    for (_, a), (_, b) in zip(eager["losses/td_loss"][:4], compiled["losses/td_loss"][:4], strict=True):
        assert a == pytest.approx(b, rel=1e-3)


# Learning


def last_returns(run_dir, episodes=100):
    return np.mean([value for _, value in curves(run_dir)["charts/episodic_return"]][-episodes:])


def test_cartpole_is_learned(runner):
    flags = ["--num-steps", 32, "--learning-rate", "2e-3", "--exploration-fraction", 0.3]
    assert last_returns(runner.train("--no-cuda", "--total-timesteps", 40_000, *flags, script=PQN)) > 150


@pytest.mark.slow
@pytest.mark.parametrize("env_id, score", [("CartPole-v1", 470), ("Acrobot-v1", -100)])
def test_published_scores_are_reached(runner, env_id, score):
    scores = [last_returns(runner.train("--env-id", env_id, "--seed", seed, script=PQN)) for seed in (1, 2, 3)]
    assert np.mean(scores) > score, scores
