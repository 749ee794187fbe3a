"""dqn.py: its loss, its replay buffer, how many updates it makes, and that it learns, resumes and refuses mistakes."""

import dataclasses
import pickle
import runpy
import signal
import sys

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import ROOT, assert_same_run, curves
from hypothesis import given, settings
from hypothesis import strategies as st

from cleanrl.dqn import Args, QNetwork, ReplayBuffer, dqn_loss, linear_schedule, make_env, make_envs, update_target

DQN = ROOT / "cleanrl" / "dqn.py"
SHORT = ["--no-cuda", "--total-timesteps", "1200", "--learning-starts", "200", "--buffer-size", "500"]


class Count(gym.Env):
    """Observed are episode and step: what follows what is plain to see. Odd episodes terminate, even ones truncate.

    All steps of an episode return the same array, which changes. Actions are counted from 5, and are the rewards.
    """

    observation_space, action_space = gym.spaces.Box(0, np.inf, (2,)), gym.spaces.Discrete(3, start=5)
    episode = -1

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.length = self.episode + 1, self.np_random.integers(1, 9)
        self.observation = np.array([self.episode, 0], dtype=np.float32)
        return self.observation, {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.observation[1] += 1
        over = self.observation[1] == self.length
        return self.observation, float(action), over and self.episode % 2 == 1, over and self.episode % 2 == 0, {}


gym.register("Count-v0", Count)


def run_script(monkeypatch, folder, *flags) -> dict:
    """Train in this process; returns the variables of the script."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [str(DQN), *map(str, flags)])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    try:
        return runpy.run_path(str(DQN), run_name="__main__")
    finally:
        torch.use_deterministic_algorithms(False)


def test_loss_and_gradient_equal_a_naive_version():
    rng = np.random.default_rng(1)
    q, next_q = rng.normal(size=(2, 16, 3))
    actions, rewards, terminations = rng.integers(0, 3, 16), rng.normal(size=16), rng.integers(0, 2, 16)
    expected, gradient = 0.0, np.zeros_like(q)
    for i in range(16):
        target = rewards[i] + (0 if terminations[i] else 0.9 * max(next_q[i]))
        expected += (q[i, actions[i]] - target) ** 2 / 16
        gradient[i, actions[i]] = 2 * (q[i, actions[i]] - target) / 16
    t_q = torch.tensor(q, requires_grad=True)
    columns = (torch.tensor(x)[:, None] for x in (actions, rewards, terminations))
    loss, stats = dqn_loss(t_q, torch.tensor(next_q), *columns, 0.9)
    loss.backward()
    np.testing.assert_allclose(loss.item(), expected, rtol=1e-12)
    np.testing.assert_allclose(t_q.grad, gradient, rtol=1e-12)
    np.testing.assert_allclose(stats["q_values"], q[range(16), actions].mean(), rtol=1e-12)


def test_greedy_actions_are_those_of_the_network():
    envs = make_envs("CartPole-v1", 2, False, "")
    network, x = QNetwork(envs), torch.randn(50, 4)
    assert (network.get_action(x) == network(x).argmax(-1)).all()
    assert [layer.out_features for layer in network.children()] == [120, 84, 2]
    hidden = (x @ network.layer1.weight.T + network.layer1.bias).clamp(min=0)
    hidden = (hidden @ network.layer2.weight.T + network.layer2.bias).clamp(min=0)
    torch.testing.assert_close(network(x), hidden @ network.head.weight.T + network.head.bias)
    assert make_env("CartPole-v1", 0, False, "")().action_space.n == 2


def test_exploration_falls_linearly_and_then_stays():
    assert [linear_schedule(1, 0.2, 100, step) for step in (0, 50, 100, 1000)] == [
        1,
        0.6,
        pytest.approx(0.2),
        pytest.approx(0.2),
    ]


def transitions(first: int, num_envs: int) -> list[np.ndarray]:
    """A step of all environments as a script adds it; each number is there only once."""
    numbers = first + np.arange(num_envs) * 1.0
    obs, next_obs = numbers[:, None] + [0.1, 0.2], numbers[:, None] + [0.3, 0.4]
    return [obs.astype(np.float32), next_obs.astype(np.float32), numbers.astype(int), numbers + 0.5, numbers % 2 == 1]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 20), st.integers(1, 4), st.lists(st.sampled_from(["add", "sample", "copy"]), max_size=60))
def test_buffer_holds_the_last_transitions_also_when_it_is_saved_and_restored(size, num_envs, what_happens):
    torch.manual_seed(1)
    buffer, naive = ReplayBuffer(size, 2, 1, "cpu"), []
    for event in [*what_happens, "sample"]:
        if event == "add":
            step = transitions(len(naive), num_envs)
            buffer.add(*step)
            for x in step:
                x[:] = 0  # what the environments do later must not matter
            naive += np.column_stack(transitions(len(naive), num_envs)).tolist()
        elif event == "copy":  # what resuming does
            saved = pickle.loads(pickle.dumps(buffer.state_dict()))
            assert len(saved["rows"]) == min(size, len(naive))  # only what was stored
            buffer = ReplayBuffer(size, 2, 1, "cpu")
            buffer.load_state_dict(saved)
        elif naive:
            last = np.array(naive[-size:])
            minibatch = buffer.sample(40 * size)
            assert [x.shape[1] for x in minibatch] == [2, 2, 1, 1, 1]
            assert all(x.dtype == torch.float32 for x in minibatch)
            drawn = torch.cat(minibatch, -1).numpy()
            order = (drawn[:, 4] - last[0, 4]).astype(int)  # the action is the number of the transition
            assert set(order) == set(range(len(last)))
            np.testing.assert_allclose(drawn, last[order], rtol=1e-6)
    assert buffer.num_added == len(naive)


def test_restored_buffer_draws_and_overwrites_the_same_rows():
    buffer = ReplayBuffer(7, 2, 1, "cpu")
    for step in range(5):
        buffer.add(*transitions(2 * step, 2))
    restored = ReplayBuffer(7, 2, 1, "cpu")
    restored.load_state_dict(pickle.loads(pickle.dumps(buffer.state_dict())))
    drawn = []
    for other in (buffer, restored):
        torch.manual_seed(1)
        minibatches = [torch.cat(other.sample(20), -1)]
        other.add(*transitions(10, 2))
        minibatches.append(torch.cat(other.sample(20), -1))
        drawn.append(torch.stack(minibatches))
    assert (drawn[0] == drawn[1]).all() and (drawn[0][1][:, 4] > 9).any()


@pytest.mark.parametrize("num_envs", [1, 3])
def test_stored_transitions_stay_within_their_episode(monkeypatch, tmp_path, num_envs):
    flags = [*SHORT, "--num-envs", num_envs, "--env-id", "Count-v0", "--buffer-size", 5000]
    buffer = run_script(monkeypatch, tmp_path, *flags)["buffer"]
    rows = buffer.rows[: buffer.num_added]
    assert len(rows) == 1200
    obs, next_obs, actions, rewards, terminations = np.split(rows, np.cumsum(buffer.widths)[:-1], axis=1)
    assert (next_obs[:, 0] == obs[:, 0]).all() and (next_obs[:, 1] == obs[:, 1] + 1).all()
    assert set(actions.flatten()) == {0, 1, 2} and (rewards == actions + 5).all()  # the environment counts from 5
    for idx in range(num_envs):
        episodes, ends = obs[idx::num_envs, 0], terminations[idx::num_envs, 0]
        last = np.flatnonzero(np.diff(episodes))  # the last step of each episode
        assert len(last) > 50
        assert (ends[last] == episodes[last] % 2).all() and ends.sum() == ends[last].sum() + ends[-1]


@pytest.mark.parametrize("num_envs, frequency", [(1, 10), (4, 10), (3, 7), (16, 4)])
def test_updates_per_step_do_not_depend_on_the_number_of_environments(monkeypatch, tmp_path, num_envs, frequency):
    steps = []
    step = torch.optim.Adam.step
    monkeypatch.setattr(torch.optim.Adam, "step", lambda self: (steps.append(1), step(self)))
    flags = [*SHORT, "--accelerate", "off", "--num-envs", num_envs, "--train-frequency", frequency]
    variables = run_script(monkeypatch, tmp_path, *flags)
    assert variables["global_step"] == 1200 // num_envs * num_envs
    assert abs(len(steps) - (variables["global_step"] - 200) / frequency) <= 1 + num_envs / frequency


def test_update_moves_every_weight_of_the_target_network_by_the_share_tau():
    torch.manual_seed(1)
    envs = make_envs("CartPole-v1", 1, False, "")
    q_network, target_network = QNetwork(envs), QNetwork(envs)
    before = [x.detach().clone() for x in target_network.parameters()]
    update_target(target_network, q_network, 0.3)
    for old, x, target in zip(before, q_network.parameters(), target_network.parameters(), strict=True):
        torch.testing.assert_close(target.detach(), 0.7 * old + 0.3 * x.detach())
    update_target(target_network, q_network, 1.0)
    for x, target in zip(q_network.parameters(), target_network.parameters(), strict=True):
        assert (x == target).all()


def test_update_of_the_script_equals_numpy_in_double_precision(monkeypatch, tmp_path):
    """Targets come from the target network, gradients reach the other one only, and each update has its own."""
    flags = [*SHORT, "--accelerate", "off", "--target-network-frequency", 1100]
    script = run_script(monkeypatch, tmp_path, *flags)
    q_network, target_network = script["q_network"], script["target_network"]
    torch.nn.init.normal_(target_network.head.weight)
    minibatch = script["buffer"].sample(64)
    obs, next_obs, actions, rewards, terminations = (x.double().numpy() for x in minibatch)

    def forward(network, x):
        w1, b1, w2, b2, w3, b3 = (p.detach().double().numpy() for p in network.parameters())
        hidden = np.maximum(np.maximum(x @ w1.T + b1, 0) @ w2.T + b2, 0)
        return hidden, hidden @ w3.T + b3

    hidden, q_values = forward(q_network, obs)
    targets = rewards[:, 0] + 0.99 * (1 - terminations[:, 0]) * forward(target_network, next_obs)[1].max(1)
    chosen = q_values[np.arange(64), actions[:, 0].astype(int)]
    gradient = np.zeros_like(q_values)
    gradient[np.arange(64), actions[:, 0].astype(int)] = 2 * (chosen - targets) / 64
    for _ in range(2):  # gradients do not add up
        weights = [x.detach().clone() for x in q_network.parameters()]
        stats = script["update"](*minibatch)
        grads = q_network.head.weight.grad.clone()
        assert any((x != old).any() for x, old in zip(q_network.parameters(), weights))
        for x, old in zip(q_network.parameters(), weights):
            x.data.copy_(old)
        assert stats["td_loss"].item() == pytest.approx(((chosen - targets) ** 2).mean(), rel=1e-4)
        assert stats["q_values"].item() == pytest.approx(chosen.mean(), rel=1e-4)
        np.testing.assert_allclose(grads, gradient.T @ hidden, rtol=1e-3, atol=1e-3)
    assert all(x.grad is None for x in target_network.parameters())


def test_target_network_is_copied_or_moved(monkeypatch, tmp_path):
    variables = run_script(monkeypatch, tmp_path, *SHORT, "--target-network-frequency", 1200)
    for x, target in zip(variables["q_network"].parameters(), variables["target_network"].parameters()):
        assert (x == target).all()  # copied in the last step, after its update
    variables = run_script(
        monkeypatch, tmp_path, *SHORT, "--target-network-frequency", 1200, "--tau", 0.5, "--exp-name", "moved"
    )
    for x, target in zip(variables["q_network"].parameters(), variables["target_network"].parameters()):
        assert (x != target).any()


def test_metrics_and_model(runner):
    run_dir = runner.train(*SHORT, "--save-model", script=DQN)
    logged = curves(run_dir)
    names = {"charts/episodic_return", "charts/episodic_length", "charts/SPS", "losses/td_loss", "losses/q_values"}
    assert logged.keys() == names | {"eval/episodic_return"}
    assert [step for step, _ in logged["losses/td_loss"]] == list(range(300, 1201, 100))
    result = runner.run("-m", "cleanrl_utils.evaluate", run_dir)
    assert "10 episodes" in result.stdout


@pytest.mark.parametrize("num_envs", ["1", "3"])
def test_killed_and_resumed_run_equals_one_that_never_stopped(runner, num_envs):
    flags = [
        *SHORT,
        "--num-envs",
        num_envs,
        "--total-timesteps",
        "6000",
        "--checkpoint-frequency",
        "500",
        "--save-model",
    ]
    never_stopped = runner.train(*flags, script=DQN)
    process = runner.start(DQN, *flags, "--exp-name", "killed")
    checkpoint = runner.wait_for("runs/*killed*/checkpoint.pt", process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert torch.load(checkpoint, weights_only=False)["global_step"] < 6000
    runner.run(DQN, "--resume", checkpoint.parent)
    assert_same_run(never_stopped, checkpoint.parent)


@pytest.mark.slow
def test_compiled_update_learns_the_same_as_the_eager_one(runner):
    eager, compiled = (curves(runner.train(*SHORT, *flags, script=DQN)) for flags in ([], ["--compile"]))
    pairs = zip(eager["losses/td_loss"][:4], compiled["losses/td_loss"][:4], strict=True)
    for (_, a), (_, b) in pairs:
        assert a == pytest.approx(b, rel=1e-3)


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--env-id", "Pendulum-v1"], ["Box", "continuous"]),
        (["--env-id", "Nope-v0"], ["Nope"]),
        (["--total-timesteps", "10000"], ["--learning-starts 10000"]),
        (["--train-frequency", "0"], ["at least 1"]),
        (["--num-envs", "0"], ["at least 1"]),
    ],
)
def test_mistake_gets_one_clear_line_and_leaves_nothing_on_disk(runner, flags, words):
    result = runner.run(DQN, *flags, check=False)
    assert result.returncode != 0
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert all(word in result.stderr for word in words), result.stderr
    assert not list(runner.folder.iterdir())


def test_every_flag_is_used():
    source = "".join(path.read_text() for path in (DQN, *(ROOT / "cleanrl_utils").rglob("*.py")))
    for field in dataclasses.fields(Args):
        assert f"args.{field.name}" in source, field.name


def test_cartpole_is_learned(runner):
    run_dir = runner.train("--no-cuda", "--total-timesteps", "60000", script=DQN)
    returns = [value for _, value in curves(run_dir)["charts/episodic_return"]]
    assert np.mean(returns[-50:]) > 120, np.mean(returns[-50:])
