"""c51_jax.py: it computes what c51.py computes, and learns, resumes and refuses mistakes like it."""

import dataclasses
import importlib.util
import runpy
import signal
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ROOT, assert_same_run, curves

if not importlib.util.find_spec("flax"):
    pytest.skip("the extra jax is not installed", allow_module_level=True)

import jax

from cleanrl import c51, c51_jax
from cleanrl_utils import run

C51 = ROOT / "cleanrl" / "c51_jax.py"
SHORT = ["--no-cuda", "--total-timesteps", "900", "--learning-starts", "200", "--buffer-size", "500"]
SHORT += ["--target-network-frequency", "300", "--n-atoms", "21", "--v-min", "-30", "--v-max", "90"]


def train(monkeypatch, folder, *flags) -> dict:
    """Train in this process; returns the variables of the script."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [str(C51), *map(str, flags)])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    return runpy.run_path(str(C51), run_name="__main__")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run to its end, with a model."""
    folder = tmp_path_factory.mktemp("c51_jax")
    with pytest.MonkeyPatch.context() as monkeypatch:
        variables = train(monkeypatch, folder, *SHORT, "--num-envs", 2, "--save-model")
    return SimpleNamespace(**variables | {"run_dir": folder / variables["run_dir"]})


def twin_of(params, atoms) -> c51.QNetwork:
    """The network of c51.py with the weights of this one."""
    envs = c51.make_envs("CartPole-v1", 1, False, "")
    network = c51.QNetwork(envs, torch.tensor(np.array(atoms)))
    for name, layer in params["params"].items():
        getattr(network, name).weight.data = torch.tensor(np.array(layer["kernel"]).T)
        getattr(network, name).bias.data = torch.tensor(np.array(layer["bias"]))
    return network


def make_minibatch(rng, size=64):
    """Arrays of a minibatch, of float32, as both buffers give them."""
    obs, next_obs = rng.standard_normal((2, size, 4))
    columns = [
        obs,
        next_obs,
        rng.integers(0, 2, (size, 1)),
        rng.standard_normal((size, 1)) * 30,  # some returns lie beyond the atoms
        rng.random((size, 1)) < 0.3,
    ]
    return [x.astype(np.float32) for x in columns]


# Against the twin in PyTorch


def test_projection_is_that_of_the_twin_at_atoms_between_them_and_beyond_the_ends():
    rng = np.random.default_rng(1)
    atoms = np.linspace(-10, 10, 11, dtype=np.float32)
    pmfs = rng.dirichlet(np.ones(11), 8).astype(np.float32)
    returns = rng.normal(0, 12, (8, 11)).astype(np.float32)
    returns[0], returns[1], returns[2], returns[3, 0] = atoms, 10, -10, np.inf
    projected = jax.jit(c51_jax.project_distribution)(pmfs, returns, atoms)
    expected = c51.project_distribution(*map(torch.from_numpy, (pmfs, returns, atoms)))
    np.testing.assert_allclose(projected, expected, atol=1e-6)
    np.testing.assert_allclose(projected.sum(1), 1, atol=1e-6)
    np.testing.assert_array_equal(projected[0], pmfs[0])  # a return that is an atom gives it everything
    returns[4, 2] = np.nan  # reaches the loss, where it is found
    assert np.isnan(jax.jit(c51_jax.project_distribution)(pmfs, returns, atoms)).any()


def test_loss_and_gradients_are_those_of_the_twin_in_pytorch():
    minibatch = make_minibatch(np.random.default_rng(1))
    obs, next_obs, *outcomes = map(jax.numpy.asarray, minibatch)
    atoms = np.linspace(-20, 60, 21, dtype=np.float32)
    network = c51_jax.QNetwork(2, 21)
    init = jax.jit(network.init)
    params, target_params = (init(jax.random.key(seed), obs) for seed in (1, 2))

    def loss_of(params):
        logits, next_logits = network.apply(params, obs), network.apply(target_params, next_obs)
        return c51_jax.c51_loss(logits, next_logits, *outcomes, 0.9, atoms)

    (loss, stats), gradients = jax.jit(jax.value_and_grad(loss_of, has_aux=True))(params)
    twin, target_twin = twin_of(params, atoms), twin_of(target_params, atoms)
    obs, next_obs, *outcomes = map(torch.from_numpy, minibatch)
    with torch.no_grad():
        next_logits = target_twin(next_obs)
    twin_loss, twin_stats = c51.c51_loss(twin(obs), next_logits, *outcomes, 0.9, torch.from_numpy(atoms))
    twin_loss.backward()
    assert float(loss) == pytest.approx(twin_loss.item(), rel=1e-5)
    assert {name: float(x) for name, x in stats.items()} == pytest.approx(
        {name: x.item() for name, x in twin_stats.items()}, rel=1e-5
    )
    for name, layer in gradients["params"].items():
        assert np.abs(layer["kernel"]).max() > 1e-3
        np.testing.assert_allclose(layer["kernel"].T, getattr(twin, name).weight.grad, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(layer["bias"], getattr(twin, name).bias.grad, rtol=1e-4, atol=1e-6)


def test_updates_of_the_script_end_where_those_of_the_twin_end(finished):
    """The atoms, Adam with its large epsilon, and the target network included."""
    params, target_params = jax.tree.map(np.array, finished.train_state[:2])
    target_params["params"]["head"]["kernel"] = target_params["params"]["head"]["kernel"][:, ::-1].copy()
    atoms = np.linspace(-30, 90, 21)
    twin, target_twin = twin_of(params, atoms.astype(np.float32)), twin_of(target_params, atoms.astype(np.float32))
    state = c51_jax.TrainState(params, target_params, finished.optimizer.init(params))
    state = jax.tree.map(jax.numpy.array, state)  # a copy: an update takes the memory of what it is given
    optimizer = torch.optim.Adam(twin.parameters(), 2.5e-4, eps=0.01 / 128)
    rng = np.random.default_rng(2)
    for _ in range(20):
        minibatch = make_minibatch(rng, 128)
        state, _ = finished.update(state, np.concatenate(minibatch, axis=1))
        obs, next_obs, *outcomes = map(torch.from_numpy, minibatch)
        with torch.no_grad():
            next_logits = target_twin(next_obs)
        optimizer.zero_grad()
        c51.c51_loss(twin(obs), next_logits, *outcomes, 0.99, twin.atoms)[0].backward()
        optimizer.step()
    for name, layer in state.params["params"].items():
        moved = np.abs(layer["kernel"] - params["params"][name]["kernel"]).max()
        assert moved > 1e-3
        np.testing.assert_allclose(layer["kernel"].T, getattr(twin, name).weight.detach(), rtol=1e-3, atol=3e-5)
    state = finished.update_target(state)
    assert jax.tree.all(jax.tree.map(lambda x, y: (x == y).all(), state.params, state.target_params))
    state, _ = finished.update(
        state, np.concatenate(minibatch, axis=1)
    )  # which needs two copies: it takes the memory of both
    assert not (state.params["params"]["head"]["kernel"] == state.target_params["params"]["head"]["kernel"]).all()


# A run


def test_metrics_and_evaluation(finished):
    logged = curves(finished.run_dir)
    names = {"charts/episodic_return", "charts/episodic_length", "charts/SPS", "losses/loss", "losses/q_values"}
    assert logged.keys() == names | {"eval/episodic_return"}
    assert [step for step, _ in logged["losses/loss"]] == list(range(300, 901, 100))
    assert all(-30 < value < 90 for _, value in logged["losses/q_values"])
    assert len(logged["eval/episodic_return"]) == 10


def test_saved_policy_is_the_greedy_one_with_the_atoms_of_its_training(finished):
    envs = c51_jax.make_envs("CartPole-v1", 1, False, "")
    policy = c51_jax.load_policy(finished.run_dir / "c51_jax.safetensors", envs)
    obs = np.random.default_rng(4).standard_normal((50, 4))
    twin = twin_of(finished.train_state.params, np.linspace(-30, 90, 21, dtype=np.float32))
    expected = twin.get_action(torch.tensor(obs, dtype=torch.float32))
    assert (policy(obs) == expected.numpy()).all() and len(set(policy(obs))) == 2


def test_it_acts_in_numpy_as_it_would_in_jax(finished):
    params = finished.acting_params
    jax.tree.map(np.testing.assert_array_equal, params, finished.train_state.params)
    obs = np.random.default_rng(5).standard_normal((50, 4)).astype(np.float32)
    logits = finished.q_network.apply(params, obs)
    actions = c51_jax.get_action(logits, finished.atoms)
    assert isinstance(actions, np.ndarray)  # no function of JAX is in it, which would take longer than all else
    q_values = jax.nn.softmax(jax.jit(finished.q_network.apply)(params, obs)) @ finished.atoms
    assert (actions == q_values.argmax(-1)).all() and (finished.act(params, obs) == actions).all()


def test_interrupted_and_resumed_run_equals_one_that_never_stopped(finished, monkeypatch, tmp_path):
    save_checkpoint = run.save_checkpoint

    def save_and_stop(*args, **kwargs):
        save_checkpoint(*args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "save_checkpoint", save_and_stop)
    with pytest.raises(KeyboardInterrupt):
        train(monkeypatch, tmp_path, *SHORT, "--num-envs", 2, "--save-model", "--checkpoint-frequency", 450)
    monkeypatch.setattr(run, "save_checkpoint", save_checkpoint)
    (stopped,) = tmp_path.glob("runs/*")
    resumed = train(monkeypatch, tmp_path, "--resume", stopped)
    assert resumed["logged_step"] == 900
    assert_same_run(finished.run_dir, stopped)
    leaves, leaves_resumed = map(jax.tree.leaves, (finished.train_state, resumed["train_state"]))
    assert all((x == y).all() for x, y in zip(leaves, leaves_resumed, strict=True))


@pytest.mark.slow
def test_killed_and_resumed_run_equals_one_that_never_stopped(runner):
    flags = [*SHORT, "--num-envs", "3", "--total-timesteps", "6000", "--checkpoint-frequency", "500", "--save-model"]
    never_stopped = runner.train(*flags, script=C51)
    process = runner.start(C51, *flags, "--exp-name", "killed")
    checkpoint = runner.wait_for("runs/*killed*/checkpoint.pt", process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    runner.run(C51, "--resume", checkpoint.parent)
    assert_same_run(never_stopped, checkpoint.parent)
    again = runner.run("-m", "cleanrl_utils.evaluate", checkpoint.parent)
    assert "10 episodes" in again.stdout


# Flags and mistakes


def test_defaults_are_those_of_the_twin_and_every_flag_is_used():
    ours, theirs = (dataclasses.asdict(module.Args()) for module in (c51_jax, c51))
    assert theirs.items() - ours.items() == {
        ("exp_name", "c51"),
        ("torch_deterministic", True),
        ("compile", False),
        ("accelerate", "auto"),
    }
    source = "".join(path.read_text() for path in (C51, *(ROOT / "cleanrl_utils").rglob("*.py")))
    assert all(f"args.{name}" in source for name in ours)


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--n-atoms", "1"], ["--n-atoms 1: must be at least 2"]),
        (["--v-min", "101"], ["--v-min 101.0: must be less than --v-max 100.0"]),
        (["--env-id", "Pendulum-v1"], ["Box", "continuous"]),
        (["--total-timesteps", "10000"], ["--learning-starts 10000"]),
        (["--buffer-size", "10000000000000"], ["--buffer-size", "fit"]),
    ],
)
def test_mistake_gets_one_clear_line_and_leaves_nothing_on_disk(monkeypatch, tmp_path, flags, words):
    with pytest.raises(SystemExit) as mistake:
        train(monkeypatch, tmp_path, *flags)
    line = mistake.value.code  # a text: Python prints it and exits with 1
    assert isinstance(line, str) and "\n" not in line and all(word in line for word in words), line
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_loss_that_is_not_finite_stops_the_run_and_is_named(monkeypatch, tmp_path):
    with pytest.raises(FloatingPointError, match="loss is not finite at global_step=300"):
        train(monkeypatch, tmp_path, *SHORT, "--learning-rate", 1e38)


@pytest.mark.slow
def test_cartpole_is_learned(runner):
    hurry = ["--learning-starts", "1000", "--exploration-fraction", "0.3", "--train-frequency", "4"]
    flags = ["--no-cuda", "--total-timesteps", "18000", *hurry, "--target-network-frequency", "200"]
    returns = [value for _, value in curves(runner.train(*flags, script=C51))["charts/episodic_return"]]
    assert np.mean(returns[-50:]) > 80, np.mean(returns[-50:])  # a random policy: about 22
