"""c51.py: its projection and its loss, and that it learns, resumes and refuses mistakes."""

import dataclasses
import runpy
import signal
import sys

import numpy as np
import pytest
import torch
from conftest import ROOT, assert_same_run, curves
from hypothesis import given, settings
from hypothesis import strategies as st

from cleanrl.c51 import Args, QNetwork, c51_loss, load_policy, make_env, make_envs, project_distribution

C51 = ROOT / "cleanrl" / "c51.py"
SHORT = ["--no-cuda", "--total-timesteps", "1200", "--learning-starts", "200", "--buffer-size", "500"]


def run_script(monkeypatch, folder, *flags) -> dict:
    """Train in this process; returns the variables of the script."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [str(C51), *map(str, flags)])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    try:
        return runpy.run_path(str(C51), run_name="__main__")
    finally:
        torch.use_deterministic_algorithms(False)


def naive_projection(pmf, returns, atoms):
    """Equation 7 of Bellemare et al. (2017), one atom and one return at a time."""
    projected, spacing = [0.0] * len(atoms), (atoms[-1] - atoms[0]) / (len(atoms) - 1)
    for i, atom in enumerate(atoms):
        for probability, value in zip(pmf, returns):
            distance = abs(min(max(value, atoms[0]), atoms[-1]) - atom) / spacing
            projected[i] += probability * max(1 - distance, 0)
    return projected


def softmax(x):
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def batch_of_transitions(rng, size=32):
    """Logits of two networks, and actions, rewards and terminations; some rewards move the atoms onto each other."""
    logits, next_logits = rng.normal(size=(2, size, 3, 11)) * 2
    rewards = np.where(rng.random(size) < 0.5, rng.integers(-12, 13, size), rng.normal(size=size) * 5)
    return logits, next_logits, rng.integers(0, 3, size), rewards, rng.random(size) < 0.3


def naive_loss(logits, next_logits, actions, rewards, terminations, gamma, atoms):
    """Loss, gradient of the logits and mean value of the actions taken."""
    loss, gradient, values = 0.0, np.zeros_like(logits), []
    for i, action in enumerate(actions):
        next_pmfs = softmax(next_logits[i])
        best = max(range(len(next_pmfs)), key=lambda a: sum(next_pmfs[a] * atoms))
        returns = [rewards[i] if terminations[i] else rewards[i] + gamma * atom for atom in atoms]
        target, pmf = np.array(naive_projection(next_pmfs[best], returns, atoms)), softmax(logits[i, action])
        loss -= sum(target * np.log(pmf)) / len(actions)
        gradient[i, action] = (pmf - target) / len(actions)
        values.append(sum(pmf * atoms))
    return loss, gradient, np.mean(values)


# The projection


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 60), st.floats(-100, 100), st.floats(0.1, 200), st.integers(0, 10**6))
def test_projection_equals_a_naive_loop(n_atoms, v_min, width, seed):
    rng, atoms = np.random.default_rng(seed), np.linspace(v_min, v_min + width, n_atoms)
    pmfs = softmax(rng.normal(size=(8, n_atoms)) * 2)
    returns = v_min + width * rng.normal(0.5, 1, (8, n_atoms))  # many of them beyond the ends
    returns[0], returns[1], returns[2] = atoms, rng.choice(atoms, n_atoms), atoms + width / (n_atoms - 1)
    returns[3], returns[4] = atoms[-1], atoms[0]
    projected = project_distribution(*map(torch.tensor, (pmfs, returns, atoms))).numpy()
    expected = [naive_projection(*row, atoms) for row in zip(pmfs, returns)]
    np.testing.assert_allclose(projected, expected, atol=1e-9)  # places are rounded: the width counts, not the mass
    assert projected.min() >= 0
    np.testing.assert_allclose(projected.sum(1), 1, rtol=1e-12)
    inside = returns.clip(atoms[0], atoms[-1])
    np.testing.assert_allclose(projected @ atoms, (pmfs * inside).sum(1), atol=1e-9)


def test_projection_keeps_all_mass_of_returns_that_are_atoms():
    torch.manual_seed(1)
    atoms = torch.linspace(-100, 100, 101)
    pmfs = torch.randn(16, 101).softmax(-1)
    assert (project_distribution(pmfs, atoms.expand(16, -1), atoms) == pmfs).all()
    shifted = project_distribution(pmfs, atoms + torch.full((16, 1), 6.0), atoms)  # by three atoms
    assert (shifted[:, :3] == 0).all() and (shifted[:, 3:-1] == pmfs[:, :-4]).all()
    torch.testing.assert_close(shifted[:, -1], pmfs[:, -4:].sum(1))


@pytest.mark.parametrize(
    "value, where", [(-1e9, {0: 1}), (-10, {0: 1}), (10, {4: 1}), (np.inf, {4: 1}), (6, {3: 0.8, 4: 0.2})]
)
def test_one_certain_return_goes_to_its_neighbours_or_to_the_end(value, where):
    """As at a termination, where the reward is the return."""
    atoms, pmfs = torch.linspace(-10, 10, 5), torch.tensor([[0.1, 0.2, 0.3, 0.25, 0.15]])
    expected = torch.zeros(1, 5)
    for atom, probability in where.items():
        expected[0, atom] = probability
    torch.testing.assert_close(project_distribution(pmfs, torch.full((1, 5), float(value)), atoms), expected)


@pytest.mark.parametrize("n_atoms, v_min, v_max", [(51, -10, 10), (101, -100, 100), (7, -0.1, 0.3), (1001, 0, 1)])
def test_single_precision_loses_no_mass_and_makes_none_negative(n_atoms, v_min, v_max):
    torch.manual_seed(1)
    atoms, pmfs = torch.linspace(v_min, v_max, n_atoms), torch.randn(256, n_atoms).softmax(-1)
    returns = torch.randn(256, 1) * (v_max - v_min) / 4 + 0.99 * atoms
    returns[:64] = atoms
    projected = project_distribution(pmfs, returns, atoms)
    torch.testing.assert_close(projected.sum(1), torch.ones(256), rtol=0, atol=2e-6)
    assert projected.min() >= 0
    torch.testing.assert_close(projected[:64], pmfs[:64], rtol=0, atol=2e-6)


def test_nan_as_a_reward_reaches_the_loss_instead_of_an_index():
    projected = project_distribution(torch.full((1, 3), 1 / 3), torch.full((1, 3), np.nan), torch.linspace(-1, 1, 3))
    assert projected.isnan().any()


# The loss and the network


def test_loss_and_gradient_equal_a_naive_version():
    batch, atoms = batch_of_transitions(np.random.default_rng(1)), np.linspace(-10, 10, 11)
    logits, *others = (torch.tensor(x) for x in batch)
    logits.requires_grad_()
    next_logits, *columns = others[0], *(x.double()[:, None] for x in others[1:])
    loss, stats = c51_loss(logits, next_logits, *columns, 0.9, torch.tensor(atoms))
    loss.backward()
    expected, gradient, value = naive_loss(*batch, 0.9, atoms)
    assert loss.item() == stats["loss"].item() == pytest.approx(expected, rel=1e-12)
    assert stats["q_values"].item() == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(logits.grad, gradient, atol=1e-14)


def test_loss_is_the_published_one():
    rng, atoms = np.random.default_rng(2), torch.linspace(-10, 10, 11)
    logits, *others = (torch.tensor(x, dtype=torch.float32) for x in batch_of_transitions(rng))
    others[1] = others[1].long()
    next_pmfs = others[0].softmax(-1)[range(32), (others[0].softmax(-1) @ atoms).argmax(-1)]
    target = project_distribution(next_pmfs, others[2][:, None] + 0.9 * atoms * (1 - others[3][:, None]), atoms)
    pmfs = logits.softmax(-1)[range(32), others[1]]
    assert pmfs.min() > 1e-5 and pmfs.max() < 1 - 1e-5
    published = -(target * pmfs.clamp(1e-5, 1 - 1e-5).log()).sum(-1).mean()
    columns = (x[:, None] for x in others[1:])
    torch.testing.assert_close(c51_loss(logits, others[0], *columns, 0.9, atoms)[0], published)


def test_probability_below_the_clamp_costs_no_more_and_has_no_gradient():
    """As published: a prediction that is certain and wrong is left to the other samples."""
    logits = torch.tensor([[[0.0, -60.0, 0.0]]], requires_grad=True)
    next_logits, zero = torch.zeros(1, 1, 3), torch.zeros(1, 1)
    loss, _ = c51_loss(logits, next_logits, zero, zero, zero + 1, 0.9, torch.linspace(-1, 1, 3))
    loss.backward()
    torch.testing.assert_close(logits.grad, torch.zeros(1, 1, 3))
    assert loss.item() == pytest.approx(-np.log(1e-5), rel=1e-5)


def test_greedy_action_has_the_highest_mean_return():
    envs = make_envs("CartPole-v1", 2, False, "")
    torch.manual_seed(1)
    network, x = QNetwork(envs, torch.linspace(-3, 1, 5)), torch.randn(50, 4)
    torch.nn.init.normal_(network.head.weight, std=0.1)
    assert network.atoms.tolist() == [-3, -2, -1, 0, 1]
    assert network(x).shape == (50, 2, 5)
    values = softmax(network(x).detach().numpy()) @ [-3, -2, -1, 0, 1]
    assert (network.get_action(x).numpy() == values.argmax(1)).all() and len(set(values.argmax(1))) == 2
    assert [layer.out_features for layer in network.children()] == [120, 84, 2 * 5]
    assert make_env("CartPole-v1", 0, False, "")().action_space.n == 2


# The script


def test_update_of_the_script_equals_numpy_in_double_precision(monkeypatch, tmp_path):
    """The greedy action is the target network's, targets come from it, gradients reach the other one only."""
    support = ["--n-atoms", 11, "--v-min", -10, "--v-max", 30]
    flags = [*SHORT, *support, "--accelerate", "off", "--target-network-frequency", 1100]
    script = run_script(monkeypatch, tmp_path, *flags)
    q_network, target_network, buffer = script["q_network"], script["target_network"], script["buffer"]
    rng, atoms = np.random.default_rng(1), np.linspace(-10, 30, 11)
    for network in (q_network, target_network):  # far from each other: they often disagree about the best action
        torch.nn.init.normal_(network.head.weight, std=0.1)
    minibatch = buffer.sample(64)
    minibatch[-1].copy_(torch.tensor(rng.random((64, 1)) < 0.3))
    obs, next_obs, actions, rewards, terminations = (x.double().numpy() for x in minibatch)

    def forward(network, x):
        w1, b1, w2, b2, w3, b3 = (p.detach().double().numpy() for p in network.parameters())
        hidden = np.maximum(np.maximum(x @ w1.T + b1, 0) @ w2.T + b2, 0)
        return hidden, (hidden @ w3.T + b3).reshape(len(x), 2, 11)

    hidden, logits = forward(q_network, obs)
    next_logits = forward(target_network, next_obs)[1]
    disagree = (softmax(next_logits) @ atoms).argmax(1) != (softmax(forward(q_network, next_obs)[1]) @ atoms).argmax(1)
    assert disagree.sum() > 5
    outcomes = actions[:, 0].astype(int), rewards[:, 0], terminations[:, 0]
    loss, gradient, value = naive_loss(logits, next_logits, *outcomes, 0.99, atoms)

    stats = script["update"](*minibatch)
    assert stats["loss"].item() == pytest.approx(loss, rel=1e-5)
    assert stats["q_values"].item() == pytest.approx(value, rel=1e-5)
    np.testing.assert_allclose(q_network.head.weight.grad, gradient.reshape(64, -1).T @ hidden, atol=1e-5)
    assert all(parameter.grad is None for parameter in target_network.parameters())
    assert script["optimizer"].param_groups[0]["eps"] == 0.01 / 128


def test_target_network_is_copied(monkeypatch, tmp_path):
    for frequency, equal in ((1200, True), (1300, False)):  # in the last step, after its update; never
        flags = [*SHORT, "--target-network-frequency", frequency, "--exp-name", frequency]
        script = run_script(monkeypatch, tmp_path, *flags)
        pairs = zip(script["q_network"].parameters(), script["target_network"].parameters())
        assert all((x == target).all() for x, target in pairs) == equal


def test_seed_decides_every_bit(monkeypatch, tmp_path):
    runs = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        flags = [*SHORT, "--total-timesteps", 600, "--num-envs", 2, "--seed", seed, "--exp-name", name]
        script = run_script(monkeypatch, tmp_path, *flags)
        runs.append((script["q_network"].state_dict(), curves(tmp_path / script["run_dir"])["losses/loss"]))
    (model_a, loss_a), (model_b, loss_b), (_, loss_c) = runs
    assert all((model_a[name] == model_b[name]).all() for name in model_a)
    assert loss_a == loss_b != loss_c


def test_metrics_and_model(runner):
    run_dir = runner.train(*SHORT, "--save-model", "--n-atoms", "21", "--v-min", "0", "--v-max", "90", script=C51)
    logged = curves(run_dir)
    names = {"charts/episodic_return", "charts/episodic_length", "charts/SPS", "losses/loss", "losses/q_values"}
    assert logged.keys() == names | {"eval/episodic_return"}
    assert [step for step, _ in logged["losses/loss"]] == list(range(300, 1201, 100))
    assert all(0 < value < 90 for _, value in logged["losses/q_values"])
    result = runner.run("-m", "cleanrl_utils.evaluate", run_dir)
    assert "10 episodes" in result.stdout
    envs = make_envs("CartPole-v1", 3, False, "")
    policy = load_policy(run_dir / "c51.safetensors", envs)  # the atoms are the model's, not the defaults
    assert policy(envs.reset(seed=1)[0]).shape == (3,)


def test_killed_and_resumed_run_equals_one_that_never_stopped(runner):
    flags = [*SHORT, "--num-envs", "2", "--total-timesteps", "3000", "--checkpoint-frequency", "500", "--save-model"]
    never_stopped = runner.train(*flags, script=C51)
    process = runner.start(C51, *flags, "--exp-name", "killed")
    checkpoint = runner.wait_for("runs/*killed*/checkpoint.pt", process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert torch.load(checkpoint, weights_only=False)["global_step"] < 3000
    runner.run(C51, "--resume", checkpoint.parent)
    assert_same_run(never_stopped, checkpoint.parent)


@pytest.mark.slow
def test_compiled_update_learns_the_same_as_the_eager_one(runner):
    eager, compiled = (curves(runner.train(*SHORT, *flags, script=C51)) for flags in ([], ["--compile"]))
    for name in ("losses/loss", "losses/q_values"):
        for (_, a), (_, b) in zip(eager[name][:4], compiled[name][:4], strict=True):
            assert a == pytest.approx(b, rel=1e-3)


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--n-atoms", "1"], ["--n-atoms 1: must be at least 2"]),
        (["--v-min", "5", "--v-max", "5"], ["--v-min 5.0: must be less than --v-max 5.0"]),
        (["--v-min", "101"], ["--v-min 101.0: must be less than --v-max 100.0"]),
        (["--v-max", "nan"], ["--v-max nan: must be a finite number"]),
        (["--v-max", "inf"], ["--v-max inf: must be a finite number"]),
        (["--env-id", "Pendulum-v1"], ["Box", "continuous"]),
        (["--total-timesteps", "10000"], ["--learning-starts 10000"]),
    ],
)
def test_mistake_gets_one_clear_line_and_leaves_nothing_on_disk(monkeypatch, tmp_path, flags, words):
    with pytest.raises(SystemExit) as mistake:
        run_script(monkeypatch, tmp_path, *flags)
    line = mistake.value.code  # a text: Python prints it and exits with 1
    assert isinstance(line, str) and "\n" not in line and all(word in line for word in words), line
    assert not list(tmp_path.iterdir())


def test_flags_are_those_published_and_every_one_is_used():
    published = {"learning_rate": 2.5e-4, "num_envs": 1, "n_atoms": 101, "v_min": -100, "v_max": 100, "gamma": 0.99}
    published |= {
        "buffer_size": 10_000,
        "target_network_frequency": 500,
        "batch_size": 128,
        "start_e": 1,
        "end_e": 0.05,
    }
    published |= {"exploration_fraction": 0.5, "learning_starts": 10_000, "train_frequency": 10}
    published |= {"env_id": "CartPole-v1", "total_timesteps": 500_000}
    assert vars(Args()).items() >= published.items() and not hasattr(Args(), "tau")
    source = "".join(path.read_text() for path in (C51, *(ROOT / "cleanrl_utils").rglob("*.py")))
    for field in dataclasses.fields(Args):
        assert f"args.{field.name}" in source, field.name


def last_returns(run_dir, episodes):
    return np.mean([value for _, value in curves(run_dir)["charts/episodic_return"]][-episodes:])


def test_cartpole_is_learned(runner):
    hurry = ["--learning-starts", "1000", "--exploration-fraction", "0.3", "--train-frequency", "4"]
    flags = ["--no-cuda", "--total-timesteps", "18000", *hurry, "--target-network-frequency", "200"]
    score = last_returns(runner.train(*flags, script=C51), 50)
    assert score > 80, score  # a random policy: about 22


@pytest.mark.slow
@pytest.mark.parametrize("env_id, published", [("CartPole-v1", 481.2 - 20.5), ("Acrobot-v1", -87.7 - 5.5)])
def test_published_score_is_reached(runner, env_id, published):
    score = last_returns(runner.train("--no-cuda", "--env-id", env_id, script=C51), 100)
    assert score > published, score
