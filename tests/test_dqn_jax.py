"""dqn_jax.py: it computes what dqn.py computes, and learns, resumes and refuses mistakes like it."""

import dataclasses
import importlib.util
import runpy
import shutil
import signal
import sys

import numpy as np
import pytest
import torch
from conftest import ROOT, Runner, assert_same_run, curves

if not importlib.util.find_spec("flax"):
    pytest.skip("the extra jax is not installed", allow_module_level=True)

import jax

from cleanrl import dqn, dqn_jax
from cleanrl_utils import backend

DQN = ROOT / "cleanrl" / "dqn_jax.py"
SHORT = ["--no-cuda", "--total-timesteps", "1200", "--learning-starts", "200", "--buffer-size", "500"]


def twin_of(params) -> dqn.QNetwork:
    """The network of dqn.py with the weights of this one."""
    envs = dqn.make_envs("CartPole-v1", 1, False, "")
    network = dqn.QNetwork(envs)
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
        rng.standard_normal((size, 1)),
        rng.random((size, 1)) < 0.3,
    ]
    return [x.astype(np.float32) for x in columns]


@pytest.fixture
def script(monkeypatch, tmp_path):
    """Train in this process; returns the variables of the script."""

    def train(*flags) -> dict:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [str(DQN), *map(str, flags)])
        monkeypatch.setattr(sys, "excepthook", sys.excepthook)
        return runpy.run_path(str(DQN), run_name="__main__")

    return train


def test_loss_and_gradients_are_those_of_the_twin_in_pytorch():
    minibatch = make_minibatch(np.random.default_rng(1))
    obs, next_obs, *outcomes = map(jax.numpy.asarray, minibatch)
    network = dqn_jax.QNetwork(2)
    params, target_params = (network.init(jax.random.key(seed), obs) for seed in (1, 2))

    def loss_of(params):
        return dqn_jax.dqn_loss(network.apply(params, obs), network.apply(target_params, next_obs), *outcomes, 0.9)

    (loss, stats), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)
    twin, target_twin = twin_of(params), twin_of(target_params)
    obs, next_obs, *outcomes = map(torch.from_numpy, minibatch)
    with torch.no_grad():
        next_q_values = target_twin(next_obs)
    twin_loss, twin_stats = dqn.dqn_loss(twin(obs), next_q_values, *outcomes, 0.9)
    twin_loss.backward()
    assert float(loss) == pytest.approx(twin_loss.item(), rel=1e-5)
    assert {name: float(x) for name, x in stats.items()} == pytest.approx(
        {name: x.item() for name, x in twin_stats.items()}, rel=1e-5
    )
    for name, layer in gradients["params"].items():
        np.testing.assert_allclose(layer["kernel"].T, getattr(twin, name).weight.grad, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(layer["bias"], getattr(twin, name).bias.grad, rtol=1e-4, atol=1e-6)


def test_updates_of_the_script_end_where_those_of_the_twin_end(script):
    """Adam, its epsilon and the target network included."""
    variables = script(*SHORT, "--target-network-frequency", 1200)
    state = variables["train_state"]
    state = state._replace(optimizer_state=variables["optimizer"].init(state.params))
    twin, target_twin = twin_of(state.params), twin_of(state.target_params)
    optimizer = torch.optim.Adam(twin.parameters(), 2.5e-4)
    rng = np.random.default_rng(2)
    for _ in range(20):
        minibatch = make_minibatch(rng)
        state, _ = variables["update"](state, np.concatenate(minibatch, axis=1))
        obs, next_obs, *outcomes = map(torch.from_numpy, minibatch)
        with torch.no_grad():
            next_q_values = target_twin(next_obs)
        optimizer.zero_grad()
        dqn.dqn_loss(twin(obs), next_q_values, *outcomes, 0.99)[0].backward()
        optimizer.step()
    for name, layer in state.params["params"].items():
        np.testing.assert_allclose(layer["kernel"].T, getattr(twin, name).weight.detach(), rtol=1e-3, atol=2e-5)
    state = variables["update_target"](state)  # with tau = 1
    assert jax.tree.all(jax.tree.map(lambda x, y: (x == y).all(), state.params, state.target_params))


def test_target_network_moves_by_the_share_tau(script):
    variables = script(*SHORT, "--tau", 0.25, "--target-network-frequency", 1100)
    state = variables["train_state"]
    expected = jax.tree.map(lambda x, y: 0.25 * x + 0.75 * y, state.params, state.target_params)
    moved = variables["update_target"](state).target_params
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-7), moved, expected)


def test_buffer_is_that_of_the_twin():
    rng = np.random.default_rng(3)
    ours, theirs = dqn_jax.ReplayBuffer(20, 4, 1), dqn.ReplayBuffer(20, 4, 1, torch.device("cpu"))
    for _ in range(17):
        obs, next_obs = rng.standard_normal((2, 3, 4))
        row = obs, next_obs, rng.integers(0, 2, 3), rng.standard_normal(3), rng.random(3) < 0.3
        ours.add(*row)
        theirs.add(*row)
    assert (ours.rows == theirs.rows.astype(np.float32)).all() and ours.num_added == theirs.num_added
    assert {tuple(row) for row in ours.sample(500)} == {tuple(row) for row in ours.rows}
    restored = dqn_jax.ReplayBuffer(20, 4, 1)
    restored.load_state_dict(ours.state_dict())
    assert (restored.rows == ours.rows).all() and restored.num_added == ours.num_added


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a short run."""
    return Runner(tmp_path_factory.mktemp("trained")).train(*SHORT, "--save-model", script=DQN)


def test_metrics_and_model(runner, trained):
    logged = curves(trained)
    names = {"charts/episodic_return", "charts/episodic_length", "charts/SPS", "losses/td_loss", "losses/q_values"}
    assert logged.keys() == names | {"eval/episodic_return"}
    assert [step for step, _ in logged["losses/td_loss"]] == list(range(300, 1201, 100))
    before = [value for _, value in logged["eval/episodic_return"]]
    again = runner.run("-m", "cleanrl_utils.evaluate", trained, "--seed", 1)
    assert "10 episodes" in again.stdout and len(before) == 10


def test_saved_policy_is_the_greedy_one(trained):
    envs = dqn_jax.make_envs("CartPole-v1", 1, False, "")
    policy = dqn_jax.load_policy(trained / "dqn_jax.safetensors", envs)
    obs = np.random.default_rng(4).standard_normal((50, 4))
    params = dqn_jax.unflatten_dict(dqn_jax.load_file(trained / "dqn_jax.safetensors"), sep=".")
    with torch.no_grad():
        expected = twin_of(params)(torch.tensor(obs, dtype=torch.float32)).argmax(-1)
    assert (policy(obs) == expected.numpy()).all()


@pytest.mark.parametrize("num_envs", ["1", pytest.param("3", marks=pytest.mark.slow)])
def test_killed_and_resumed_run_equals_one_that_never_stopped(runner, num_envs):
    flags = [*SHORT, "--num-envs", num_envs, "--total-timesteps", "6000"]
    flags += ["--checkpoint-frequency", "500", "--save-model"]
    never_stopped = runner.train(*flags, script=DQN)
    process = runner.start(DQN, *flags, "--exp-name", "killed")
    checkpoint = runner.wait_for("runs/*killed*/checkpoint.pt", process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert backend.load(checkpoint)["global_step"] < 6000
    runner.run(DQN, "--resume", checkpoint.parent)
    assert_same_run(never_stopped, checkpoint.parent)


@pytest.mark.parametrize("kernel, words", [(None, "layer2"), (np.zeros((7, 84), np.float32), "(7,)")])
def test_model_of_another_network_does_not_load(runner, trained, kernel, words):
    run_dir = shutil.copytree(trained, runner.folder / trained.name)
    model = run_dir / "dqn_jax.safetensors"
    tensors = dqn_jax.load_file(model)
    del tensors["params.layer2.kernel"]
    if kernel is not None:
        tensors["params.layer2.kernel"] = kernel
    dqn_jax.save_file(tensors, model)
    result = runner.run("-m", "cleanrl_utils.evaluate", run_dir, check=False)
    assert result.returncode == 1 and "does not load" in result.stderr and words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--env-id", "Pendulum-v1"], ["Box", "continuous"]),
        (["--total-timesteps", "10000"], ["--learning-starts 10000"]),
        (["--buffer-size", "10000000000000"], ["--buffer-size", "fit"]),
    ],
)
def test_mistake_gets_one_clear_line_and_leaves_nothing_on_disk(runner, flags, words):
    result = runner.run(DQN, *flags, check=False)
    assert result.returncode != 0
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert all(word in result.stderr for word in words), result.stderr
    assert not list(runner.folder.iterdir())


def test_missing_jax_and_missing_platform_are_named(runner, monkeypatch):
    (runner.folder / "jax.py").write_text("raise ImportError(\"No module named 'jax'\")")
    result = runner.run(DQN, modules=runner.folder, check=False)
    assert result.returncode == 1 and 'pip install "cleanrl[jax]"' in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    (runner.folder / "jax.py").unlink()
    platforms = ["tpu", "cuda"]  # for cuda without a GPU, JAX's own error has no words
    if jax.default_backend() == "gpu":
        platforms.remove("cuda")
    for platform in platforms:
        monkeypatch.setenv("JAX_PLATFORMS", platform)
        process = runner.start(DQN, *SHORT[1:])
        _, said = process.communicate()
        assert process.returncode == 1 and platform in said
        assert len(said.strip().splitlines()) == 1, said


@pytest.mark.parametrize(
    "line, edit",
    [
        ('apply_layer(layers["layer2"], x).clip(0)', 'jnp.tanh(apply_layer(layers["layer2"], x))'),
        ("optax.adam(args.learning_rate)", "optax.adamw(args.learning_rate, weight_decay=0.01)"),
    ],
)
def test_edited_copy_trains(runner, line, edit):
    source = DQN.read_text()
    assert source.count(line) == 1
    (runner.folder / "mine.py").write_text(source.replace(line, edit))
    assert len(curves(runner.train(*SHORT, script="mine.py"))["losses/td_loss"]) == 10


def test_every_flag_is_used():
    source = "".join(path.read_text() for path in (DQN, *(ROOT / "cleanrl_utils").rglob("*.py")))
    for field in dataclasses.fields(dqn_jax.Args):
        assert f"args.{field.name}" in source, field.name


@pytest.mark.slow
def test_cartpole_is_learned(runner):
    run_dir = runner.train("--no-cuda", "--total-timesteps", "60000", script=DQN)
    returns = [value for _, value in curves(run_dir)["charts/episodic_return"]]
    assert np.mean(returns[-50:]) > 120, np.mean(returns[-50:])


def test_network_computes_in_numpy_what_it_computes_in_jax(script):
    """It acts in NumPy, with the parameters of the latest update, and learns in JAX."""
    variables = script(*SHORT)
    params = variables["acting_params"]
    assert all(isinstance(x, np.ndarray) for x in jax.tree.leaves(params))
    jax.tree.map(np.testing.assert_array_equal, params, variables["train_state"].params)
    obs = np.random.default_rng(5).standard_normal((50, 4)).astype(np.float32)
    network = variables["q_network"]
    q_values = network.apply(params, obs)
    assert isinstance(q_values, np.ndarray)  # no function of JAX is in it, which would take longer than all else
    np.testing.assert_allclose(q_values, jax.jit(network.apply)(params, obs), rtol=1e-4, atol=1e-5)
    assert (variables["act"](params, obs) == q_values.argmax(-1)).all()


def test_actions_are_random_with_epsilon_1_and_greedy_with_epsilon_0(script):
    """The network does not learn in these steps."""
    flags = ["--no-cuda", "--total-timesteps", "2000", "--learning-starts", "1999", "--num-envs", "2"]
    actions = script(*flags, "--end-e", 1)["buffer"].rows[:2000, 8]
    assert 0.45 < actions.mean() < 0.55
    buffer = script(*flags, "--start-e", 0, "--end-e", 0, "--exp-name", "greedy")["buffer"]
    network = dqn_jax.QNetwork(2)
    params = network.init(jax.random.key(1), np.zeros((1, 4)))
    q_values = np.asarray(network.apply(params, buffer.rows[:2000, :4].astype(np.float32)))
    is_clear = np.abs(q_values[:, 0] - q_values[:, 1]) > 1e-5
    assert is_clear.mean() > 0.9
    assert (buffer.rows[:2000, 8] == q_values.argmax(-1))[is_clear].all()


@pytest.mark.parametrize("name", ["dqn_jax", "c51_jax"])
def test_plain_layers_start_as_those_of_pytorch(name):
    file = importlib.import_module(f"cleanrl.{name}")
    params = file.init_layer(jax.random.key(1), 100, 400)
    check_layer(params)
    x = np.random.default_rng(1).normal(size=(2, 100)).astype(np.float32)
    np.testing.assert_allclose(file.apply_layer(params, x), x @ params["kernel"] + params["bias"], rtol=1e-4, atol=1e-5)


def check_layer(params):
    """Weights and biases are uniform within one over the root of the number of inputs, biases as well."""
    theirs = torch.nn.Linear(100, 400)
    for ours, their in [(params["kernel"], theirs.weight), (params["bias"], theirs.bias)]:
        ours, their = np.asarray(ours), their.detach().numpy()
        assert np.abs(ours).max() <= 0.1 and abs(ours.mean()) < 0.01
        np.testing.assert_allclose(ours.std(), their.std(), rtol=0.1)


@pytest.mark.parametrize("name", ["ddpg_continuous_action_jax", "sac_continuous_action_jax"])
def test_layers_of_flax_start_as_those_of_pytorch(name):
    layer = importlib.import_module(f"cleanrl.{name}").Dense(400)
    params = layer.init(jax.random.key(1), np.zeros((2, 100), np.float32))["params"]
    check_layer(params)
    x = np.random.default_rng(1).normal(size=(2, 100)).astype(np.float32)
    np.testing.assert_allclose(
        layer.apply({"params": params}, x), x @ params["kernel"] + params["bias"], rtol=1e-4, atol=1e-5
    )
