"""c51_atari.py and sac_atari.py: sums over actions, the buffer of dqn_atari.py, and what a run promises."""

import ast
import csv
import dataclasses
import runpy
import sys

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import ROOT, curves
from test_ppo_atari import assert_one_clear_line, needs_atari

from cleanrl import c51_atari, dqn_atari, sac_atari

PIXEL_GAME = ROOT / "tests" / "modules" / "pixel_game.py"
PUBLISHED = ROOT / "tests" / "published_defaults.csv"
SHORT = ["--no-cuda", "--total-timesteps", 240, "--learning-starts", 100, "--buffer-size", 150, "--env-id", "Drift-v0"]
SHORT += ["--batch-size", 8]
SAC_NETWORKS = ("actor", "qf1", "qf2", "qf1_target", "qf2_target", "log_alpha")
files = pytest.mark.parametrize("module", [c51_atari, sac_atari], ids=lambda module: module.__name__)

if "Drift-v0" not in gym.registry:
    runpy.run_path(str(PIXEL_GAME))


def script_of(module):
    return ROOT / f"{module.__name__.replace('.', '/')}.py"


def run_script(monkeypatch, folder, module, *flags) -> dict:
    """Train in this process; returns the variables of the script."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [str(script_of(module)), *map(str, flags)])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    try:
        return runpy.run_path(str(script_of(module)), run_name="__main__")
    finally:
        torch.use_deterministic_algorithms(False)


# What they share with others


@files
def test_flags_and_defaults_are_those_of_the_published_file(module):
    with open(PUBLISHED) as file:
        rows = {row[1]: row[2] for row in csv.reader(file) if row[0] == script_of(module).name}
    defaults = dataclasses.asdict(module.Args())
    assert len(rows) > 20
    for name, text in rows.items():
        if name == "exp_name":
            continue
        published = eval(text, {"__builtins__": {}, "int": int})
        assert defaults[name] == published, name


@files
def test_replay_buffer_and_games_are_those_of_dqn_atari(module):
    """Tested there."""

    def definitions(other):
        tree = ast.parse(script_of(other).read_text())
        return {x.name: ast.unparse(x) for x in tree.body if isinstance(x, ast.ClassDef | ast.FunctionDef)}

    for name in ("ReplayBuffer", "make_env", "make_envs"):
        assert definitions(module)[name] == definitions(dqn_atari)[name]


# The losses of SAC


def distribution(logits):
    """Probabilities and their logarithms, one row after the other."""
    exps = np.exp(logits - logits.max(1, keepdims=True))
    probs = exps / exps.sum(1, keepdims=True)
    return probs, np.log(probs)


def doubled_sac(monkeypatch, folder, *flags) -> dict:
    """A script that has run, with networks in double precision that are far from each other, and new optimizers."""
    script = run_script(monkeypatch, folder, sac_atari, *SHORT, "--accelerate", "off", *flags)
    torch.manual_seed(1)
    for name in ("actor", "qf1", "qf2", "qf1_target", "qf2_target"):
        script[name].double()
        torch.nn.init.normal_(script[name].network[-1].weight, std=0.1)
    for name in ("q_optimizer", "actor_optimizer"):
        script[name].state.clear()
    return script


def random_minibatch():
    """Every second transition ends its episode."""
    obs, next_obs = torch.randint(0, 256, (2, 8, 4, 84, 84)).double()
    actions, rewards = torch.randint(0, 3, (8, 1)).double(), torch.randn(8, 1).double()
    terminations = torch.tensor([0.0, 1.0]).repeat(4)[:, None].double()
    return obs, next_obs, actions, rewards, terminations


def outputs(network, obs) -> np.ndarray:
    with torch.no_grad():
        return network.network(obs / 255).numpy()


@needs_atari
def test_losses_of_policy_and_temperature_are_sums_over_actions_and_means_over_the_batch(monkeypatch, tmp_path):
    script = doubled_sac(monkeypatch, tmp_path, "--q-lr", 0)  # the critics stay as they are
    script["log_alpha"].data.fill_(-0.7)
    minibatch, alpha, target_entropy = random_minibatch(), np.exp(np.float32(-0.7)), 0.89 * np.log(3)
    logits = outputs(script["actor"], minibatch[0])
    both = [outputs(script[name], minibatch[0]) for name in ("qf1", "qf2")]
    probs, logprobs = distribution(logits)
    actor_loss = alpha_loss = 0.0
    for i in range(8):
        for a in range(3):
            value = min(both[0][i, a], both[1][i, a])
            actor_loss += probs[i, a] * (alpha * logprobs[i, a] - value) / 8
            alpha_loss -= probs[i, a] * alpha * (logprobs[i, a] + target_entropy) / 8
    stats = script["update"](*minibatch)
    np.testing.assert_allclose(stats["actor_loss"], actor_loss, rtol=1e-6)
    np.testing.assert_allclose(stats["alpha_loss"], alpha_loss, rtol=1e-6)
    np.testing.assert_allclose(stats["alpha"], alpha, rtol=1e-6)
    # d/d logit_k of sum_a p_a f_a = p_k (f_k - sum_a p_a f_a), f depending on log p as well: its part sums to zero
    f = alpha * logprobs - np.minimum(*both)
    gradient = probs * (f - (probs * f).sum(1, keepdims=True)) / 8
    np.testing.assert_allclose(script["actor"].network[-1].bias.grad, gradient.sum(0), rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(script["log_alpha"].grad, alpha_loss, rtol=1e-6)  # alpha = exp(log_alpha)


@needs_atari
def test_temperature_that_is_not_tuned_has_no_loss(monkeypatch, tmp_path):
    script = run_script(monkeypatch, tmp_path, sac_atari, *SHORT, "--no-autotune", "--accelerate", "off")
    stats = script["update"](*script["buffer"].sample(8))
    assert "alpha_loss" not in stats and stats["alpha"].item() == pytest.approx(0.2)
    assert script["log_alpha"].grad is None


@needs_atari
def test_target_of_the_critics_is_the_expectation_over_actions(monkeypatch, tmp_path):
    script = doubled_sac(monkeypatch, tmp_path)
    minibatch = random_minibatch()
    obs, next_obs, actions, rewards, terminations = minibatch
    probs, logprobs = distribution(outputs(script["actor"], next_obs))
    both = [outputs(script[name], next_obs) for name in ("qf1_target", "qf2_target")]
    values = [outputs(script[name], obs) for name in ("qf1", "qf2")]
    alpha = np.exp(script["log_alpha"].item())
    losses = np.zeros(2)
    for i in range(8):
        next_value = sum(probs[i, a] * (min(both[0][i, a], both[1][i, a]) - alpha * logprobs[i, a]) for a in range(3))
        target = rewards[i, 0].item() + 0.99 * (1 - terminations[i, 0].item()) * next_value
        losses += [(q[i, int(actions[i, 0])] - target) ** 2 / 8 for q in values]
    stats = script["update"](*minibatch)
    np.testing.assert_allclose([stats["qf1_loss"], stats["qf2_loss"]], losses, rtol=1e-6)
    targets = [x for name in ("qf1_target", "qf2_target") for x in script[name].parameters()]
    assert all(x.grad is None for x in targets)


def test_actions_are_drawn_with_the_probabilities_of_the_policy():
    class Fixed(sac_atari.Actor):
        def __init__(self):
            torch.nn.Module.__init__(self)

        def forward(self, x):
            return torch.tensor([0.1, 0.2, 0.7]).log().expand(len(x), 3)

    torch.manual_seed(1)
    drawn = Fixed().get_action(torch.zeros(20_000, 1))
    np.testing.assert_allclose(drawn.bincount() / 20_000, [0.1, 0.2, 0.7], atol=0.012)
    assert (Fixed().get_action(torch.zeros(50, 1), deterministic=True) == 2).all()


# A run


@needs_atari
@files
def test_model_is_saved_and_evaluated_and_the_same_seed_gives_the_same_run(monkeypatch, tmp_path, module):
    def train(name, *flags):
        flags = [*SHORT, "--num-envs", 2, "--exp-name", name, "--checkpoint-frequency", 150, *flags]
        return tmp_path / run_script(monkeypatch, tmp_path, module, *flags)["run_dir"]

    first, same, other = train("first", "--save-model"), train("same"), train("other", "--seed", 2)
    assert len(curves(first)["eval/episodic_return"]) == 10
    a, b = (torch.load(run_dir / "checkpoint.pt", weights_only=False) for run_dir in (first, same))
    assert a["buffer"]["num_added"] == 240
    learned = ("q_network", "target_network") if module is c51_atari else SAC_NETWORKS
    for part in (*learned, "buffer"):
        torch.testing.assert_close(a[part], b[part], rtol=0, atol=0)
    losses = [tag for tag in curves(first) if tag.startswith("losses/")]
    expected = {"loss", "q_values"} if module is c51_atari else {"qf1_values", "qf2_values", "qf1_loss", "qf2_loss"}
    expected |= set() if module is c51_atari else {"qf_loss", "actor_loss", "alpha", "alpha_loss"}
    assert {tag.removeprefix("losses/") for tag in losses} == expected
    for tag in losses:
        assert curves(first)[tag] == curves(same)[tag] != curves(other)[tag]


@needs_atari
@files
def test_resumed_run_equals_one_that_never_stopped(monkeypatch, tmp_path, module):
    never_stopped = run_script(monkeypatch, tmp_path, module, *SHORT)["run_dir"]
    half = [*SHORT, "--exp-name", "half", "--total-timesteps", 170, "--checkpoint-frequency", 170]
    if module is c51_atari:  # whose exploration depends on the length of the run
        half += ["--exploration-fraction", 24 / 170]
    stopped = run_script(monkeypatch, tmp_path, module, *half)["run_dir"]
    fraction = ["--exploration-fraction", 0.1] if module is c51_atari else []
    run_script(monkeypatch, tmp_path, module, "--resume", stopped, "--total-timesteps", 240, *fraction)
    a, b = (torch.load(f"{run_dir}/checkpoint.pt", weights_only=False) for run_dir in (never_stopped, stopped))
    assert a["global_step"] == b["global_step"] == 240
    for part in a.keys() & {"q_network", "target_network", "optimizer", "q_optimizer", *SAC_NETWORKS, "buffer"}:
        torch.testing.assert_close(a[part], b[part], rtol=0, atol=0)


@needs_atari
@files
def test_mistake_gets_one_clear_line(runner, module):
    for flags, words in (
        (["--env-id", "BreakoNoFrameskip-v4"], "no such Atari game"),
        (["--env-id", "CartPole-v1"], "no Atari game"),
        (["--batch-size", "0"], "--batch-size"),
    ):
        assert_one_clear_line(runner.run(script_of(module), *flags, check=False), words)
    assert not list(runner.folder.iterdir())


@pytest.mark.slow
@needs_atari
@files
def test_direction_of_a_drifting_bar_is_learned(runner, module):
    flags = ["--no-cuda", "--env-id", "Drift-v0", "--learning-starts", 200, "--buffer-size", 2000, "--gamma", 0.5]
    flags += ["--target-network-frequency", 50, "--batch-size", 32]
    if module is c51_atari:
        flags += ["--train-frequency", 2, "--learning-rate", 5e-4, "--exploration-fraction", 0.5]
        flags += ["--total-timesteps", 2500]
    else:  # a temperature that is learned starts at 1 and takes longer than this to fall: actions would stay random
        flags += ["--update-frequency", 2, "--no-autotune", "--alpha", 0.1, "--total-timesteps", 1500]
    runner.run(PIXEL_GAME, script_of(module), *map(str, flags))
    (run_dir,) = runner.folder.glob("runs/*")
    returns = [value for _, value in curves(run_dir)["charts/episodic_return"]]
    # of 34 to 63 points in a game: a third of them by chance, which the first four are, before learning starts
    assert np.mean(returns[:4]) < 30 and np.mean(returns[-10:]) > 36, (returns[:4], returns[-10:])
