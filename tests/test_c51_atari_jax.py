"""c51_atari_jax.py: it computes what c51_atari.py computes, with the buffer and the games of dqn_atari_jax.py."""

import ast
import dataclasses
import importlib.util
import runpy
import sys
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import ROOT, assert_same_run, curves
from test_ppo_atari import has_atari

if not importlib.util.find_spec("flax"):
    pytest.skip("the extra jax is not installed", allow_module_level=True)
if not has_atari:
    pytest.skip("needs cleanrl[atari]", allow_module_level=True)

import jax
from test_dqn_atari_jax import make_minibatch, to_pytorch

from cleanrl import c51_atari, c51_atari_jax
from cleanrl_utils import run

SCRIPT = ROOT / "cleanrl" / "c51_atari_jax.py"
PIXEL_GAME = ROOT / "tests" / "modules" / "pixel_game.py"
SHORT = ["--no-cuda", "--total-timesteps", "200", "--learning-starts", "100", "--buffer-size", "150"]
SHORT += ["--batch-size", "4", "--env-id", "Drift-v0", "--target-network-frequency", "50", "--n-atoms", "21"]
SHORT += ["--exploration-fraction", "0.5", "--num-envs", "2", "--v-min", "-3", "--v-max", "6"]
ATOMS = np.linspace(-3, 6, 21, dtype=np.float32)

if "Drift-v0" not in gym.registry:
    runpy.run_path(str(PIXEL_GAME))


def train(monkeypatch, folder, *flags) -> dict:
    """Train in this process; returns the variables of the script."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, flags)])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    return runpy.run_path(str(SCRIPT), run_name="__main__")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run to its end, with a model."""
    folder = tmp_path_factory.mktemp("c51_atari_jax")
    with pytest.MonkeyPatch.context() as monkeypatch:
        variables = train(monkeypatch, folder, *SHORT, "--save-model")
    return SimpleNamespace(**variables | {"run_dir": folder / variables["run_dir"]})


def twin_of(params) -> c51_atari.QNetwork:
    """The network of c51_atari.py with the weights of this one."""
    envs = SimpleNamespace(single_action_space=gym.spaces.Discrete(3))
    network = c51_atari.QNetwork(envs, torch.from_numpy(ATOMS))
    for name, layer in params["params"].items():
        getattr(network, name).weight.data = to_pytorch(name, layer["kernel"])
        getattr(network, name).bias.data = torch.tensor(np.array(layer["bias"]))
    return network


def definitions(name) -> dict[str, str]:
    """The functions and classes of a file, without its comments."""
    tree = ast.parse((ROOT / "cleanrl" / f"{name}.py").read_text())
    return {x.name: ast.unparse(x) for x in tree.body if isinstance(x, ast.ClassDef | ast.FunctionDef)}


def test_buffer_and_games_are_those_of_dqn_atari_jax_and_the_loss_is_that_of_c51_jax():
    """Tested there."""
    ours = definitions("c51_atari_jax")
    for name in ("ReplayBuffer", "make_env", "make_envs"):
        assert ours[name] == definitions("dqn_atari_jax")[name]
    for name in ("project_distribution", "c51_loss", "load_policy"):
        assert ours[name] == definitions("c51_jax")[name]


def test_losses_and_updates_are_those_of_the_twin_in_pytorch(finished):
    """From minibatches of bytes; the atoms, Adam with its large epsilon, and the target network included."""
    rng = np.random.default_rng(1)
    params, target_params = jax.tree.map(np.array, finished.train_state[:2])
    head = target_params["params"]["head"]
    head["kernel"] = head["kernel"][:, ::-1].copy()  # another network than the one that learns
    twin, target_twin = twin_of(params), twin_of(target_params)
    state = c51_atari_jax.TrainState(params, target_params, finished.optimizer.init(params))
    state = jax.tree.map(jax.numpy.array, state)  # a copy: an update takes the memory of what it is given
    optimizer = torch.optim.Adam(twin.parameters(), 2.5e-4, eps=0.01 / 4)
    for _ in range(3):
        minibatch = make_minibatch(rng)
        state, stats = finished.update(state, minibatch)
        obs, next_obs, *outcomes = map(torch.from_numpy, minibatch)
        with torch.no_grad():
            next_logits = target_twin(next_obs)
        optimizer.zero_grad()
        loss, twin_stats = c51_atari.c51_loss(twin(obs), next_logits, *outcomes, 0.99, twin.atoms)
        loss.backward()
        optimizer.step()
        assert {name: float(x) for name, x in stats.items()} == pytest.approx(
            {name: x.item() for name, x in twin_stats.items()}, rel=1e-4, abs=1e-4
        )
    for name, layer in state.params["params"].items():
        start = to_pytorch(name, params["params"][name]["kernel"])
        ours, theirs = to_pytorch(name, layer["kernel"]), getattr(twin, name).weight.detach()
        moved = (theirs - start).abs().max()
        assert moved > 1e-6
        assert (ours - theirs).abs().max() < 0.01 * moved  # the large epsilon keeps tiny gradients tiny
    state = finished.update_target(state)
    assert jax.tree.all(jax.tree.map(lambda x, y: (x == y).all(), state.params, state.target_params))


def test_metrics_and_evaluation(finished):
    logged = curves(finished.run_dir)
    names = {"charts/episodic_return", "charts/episodic_length", "charts/SPS", "losses/loss", "losses/q_values"}
    assert logged.keys() == names | {"eval/episodic_return"}
    assert [step for step, _ in logged["losses/loss"]] == [200]
    assert len(logged["eval/episodic_return"]) == 10


def test_saved_policy_is_the_greedy_one_with_the_atoms_of_its_training(finished):
    envs = c51_atari_jax.make_envs("Drift-v0", 1, False, "")
    policy = c51_atari_jax.load_policy(finished.run_dir / "c51_atari_jax.safetensors", envs)
    obs = make_minibatch(np.random.default_rng(4), 2)[0]
    expected = twin_of(finished.train_state.params).get_action(torch.tensor(obs))
    assert (policy(obs) == expected.numpy()).all()


@pytest.mark.slow
def test_interrupted_and_resumed_run_equals_one_that_never_stopped(finished, monkeypatch, tmp_path):
    save_checkpoint = run.save_checkpoint

    def save_and_stop(*args, **kwargs):
        save_checkpoint(*args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "save_checkpoint", save_and_stop)
    with pytest.raises(KeyboardInterrupt):
        train(monkeypatch, tmp_path, *SHORT, "--save-model", "--checkpoint-frequency", 180)
    monkeypatch.setattr(run, "save_checkpoint", save_checkpoint)
    (stopped,) = tmp_path.glob("runs/*")
    resumed = train(monkeypatch, tmp_path, "--resume", stopped)
    assert_same_run(finished.run_dir, stopped)
    leaves, leaves_resumed = map(jax.tree.leaves, (finished.train_state, resumed["train_state"]))
    assert all((x == y).all() for x, y in zip(leaves, leaves_resumed, strict=True))


def test_defaults_are_those_of_the_twin_and_every_flag_is_used():
    ours, theirs = (dataclasses.asdict(module.Args()) for module in (c51_atari_jax, c51_atari))
    assert theirs.items() - ours.items() == {
        ("exp_name", "c51_atari"),
        ("torch_deterministic", True),
        ("compile", False),
        ("accelerate", "auto"),
    }
    source = "".join(path.read_text() for path in (SCRIPT, *(ROOT / "cleanrl_utils").rglob("*.py")))
    assert all(f"args.{name}" in source for name in ours)


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--env-id", "CartPole-v1"], ["no Atari game"]),
        (["--v-max", "-10"], ["--v-min -10.0: must be less than --v-max -10.0"]),
        (["--total-timesteps", "80000"], ["--learning-starts 80000"]),
    ],
)
def test_mistake_gets_one_clear_line_and_leaves_nothing_on_disk(monkeypatch, tmp_path, flags, words):
    with pytest.raises(SystemExit) as mistake:
        train(monkeypatch, tmp_path, *flags)
    line = mistake.value.code  # a text: Python prints it and exits with 1
    assert isinstance(line, str) and "\n" not in line and all(word in line for word in words), line
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_direction_of_a_drifting_bar_is_learned(runner):
    flags = ["--no-cuda", "--env-id", "Drift-v0", "--learning-starts", 200, "--buffer-size", 2000, "--gamma", 0.5]
    flags += ["--target-network-frequency", 50, "--batch-size", 32, "--train-frequency", 2, "--learning-rate", 5e-4]
    flags += ["--exploration-fraction", 0.5, "--total-timesteps", 2500]
    runner.run(PIXEL_GAME, SCRIPT, *map(str, flags))
    (run_dir,) = runner.folder.glob("runs/*")
    returns = [value for _, value in curves(run_dir)["charts/episodic_return"]]
    # of 34 to 63 points in a game: a third of them by chance, which the first four are, before learning starts
    assert np.mean(returns[:4]) < 30 and np.mean(returns[-10:]) > 36, (returns[:4], returns[-10:])
