"""rainbow_atari.py: noisy and dueling network, n-step and prioritised replay, the loss, what a run promises."""

import csv
import dataclasses
import inspect
import io
import math
import runpy
import sys
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT, curves
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from test_ppo_atari import assert_one_clear_line, has_atari, needs_atari

from cleanrl import c51_atari, dqn_atari, rainbow_atari
from cleanrl.rainbow_atari import Args, NoisyLinear, Priorities, QNetwork, ReplayBuffer, load_policy, rainbow_loss
from cleanrl_utils import checkpoint, run
from cleanrl_utils.checks import find_mistake

SCRIPT = ROOT / "cleanrl" / "rainbow_atari.py"
PIXEL_GAME = ROOT / "tests" / "modules" / "pixel_game.py"
PUBLISHED = ROOT / "tests" / "published_defaults.csv"
SHORT = ["--no-cuda", "--total-timesteps", 200, "--learning-starts", 100, "--buffer-size", 150, "--env-id", "Drift-v0"]
SHORT += ["--batch-size", 4, "--target-network-frequency", 40]
# Flags of the published file that it does not use: exploration is the noise in the network.
DROPPED = {"start_e", "end_e", "exploration_fraction"}

if "Drift-v0" not in gym.registry:
    runpy.run_path(str(PIXEL_GAME))


def run_script(monkeypatch, folder, *flags) -> dict:
    """Train in this process; returns the variables of the script."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, flags)])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    try:
        return runpy.run_path(str(SCRIPT), run_name="__main__")
    finally:
        torch.use_deterministic_algorithms(False)


# Noisy layers


def f(x: np.ndarray) -> np.ndarray:
    return np.sign(x) * np.sqrt(np.abs(x))


def test_noise_on_a_weight_is_the_product_of_those_of_its_input_and_its_output(monkeypatch):
    torch.manual_seed(1)
    layer, x = NoisyLinear(5, 3).double(), torch.randn(4, 5).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    drawn = {5: torch.randn(4, 5).double(), 3: torch.randn(4, 3).double()}
    monkeypatch.setattr(torch, "randn_like", lambda x: drawn[x.shape[-1]])
    outputs = layer(x)
    weight, bias = layer.mean.weight.detach().numpy(), layer.mean.bias.detach().numpy()
    weight_scale, bias_scale = layer.scale.weight.detach().numpy(), layer.scale.bias.detach().numpy()
    for row in range(4):
        e_in, e_out = f(drawn[5][row].numpy()), f(drawn[3][row].numpy())
        noisy_weight = weight + weight_scale * np.outer(e_out, e_in)
        noisy_bias = bias + bias_scale * e_out
        expected = noisy_weight @ x[row].numpy() + noisy_bias
        np.testing.assert_allclose(outputs[row].detach(), expected, rtol=1e-10)


def test_initial_weights_and_scales_are_those_of_the_paper():
    torch.manual_seed(1)
    layer = NoisyLinear(400, 300)
    bound = 1 / math.sqrt(400)
    for means in (layer.mean.weight, layer.mean.bias):
        assert means.abs().max() <= bound and means.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)
    for scales in (layer.scale.weight, layer.scale.bias):
        assert scales.shape in ((300, 400), (300,)) and (scales == 0.5 * bound).all()


def test_moments_of_the_noise():
    """The mean of |e| for a normal e is sqrt(2 / pi): the variance of f(e)."""
    torch.manual_seed(1)
    layer, x = NoisyLinear(20, 10), torch.randn(20)
    torch.nn.init.uniform_(layer.scale.weight, 0.1, 0.3)
    torch.nn.init.uniform_(layer.scale.bias, 0.1, 0.3)
    with torch.no_grad():
        noise = layer(x.expand(100_000, 20)) - layer.mean(x)
        variance = math.sqrt(2 / math.pi)
        inner = variance * (layer.scale.weight**2 @ x**2) + layer.scale.bias**2
    np.testing.assert_allclose(noise.mean(0), np.zeros(10), atol=4 * math.sqrt(variance * inner.max() / 100_000))
    np.testing.assert_allclose(noise.var(0), variance * inner, rtol=0.05)
    correlation = np.corrcoef(noise.T) - np.eye(10)
    assert np.abs(correlation).max() < 0.02  # outputs share the noise of the inputs, but not its sign


def test_every_call_and_every_row_draws_its_own_noise_and_without_training_there_is_none():
    torch.manual_seed(1)
    layer, x = NoisyLinear(5, 3), torch.randn(1, 5).expand(4, 5)
    rows = torch.cat([layer(x), layer(x)]).detach()
    assert len(rows.unique(dim=0)) == 8
    layer.eval()
    assert (layer(x) == F.linear(x, layer.mean.weight, layer.mean.bias)).all()


# The dueling network


@pytest.fixture
def network():
    torch.manual_seed(1)
    envs = SimpleNamespace(single_action_space=gym.spaces.Discrete(4))
    return QNetwork(envs, torch.linspace(-10, 10, 51))


def pixels(*shape):
    return torch.randint(0, 256, (*shape, 4, 84, 84), dtype=torch.uint8)


def naive_logits(network, x) -> torch.Tensor:
    """Of the network without noise, in double precision, action by action."""
    weights = {name: w.double() for name, w in network.named_parameters()}
    x = x.double() / 255
    for layer, stride in ("layer1", 4), ("layer2", 2), ("layer3", 1):
        x = F.conv2d(x, weights[f"{layer}.weight"], weights[f"{layer}.bias"], stride).clamp(min=0)
    x = x.reshape(len(x), -1)
    outputs = {}
    for stream in "value", "advantage":
        hidden = x @ weights[f"{stream}_layer.mean.weight"].T + weights[f"{stream}_layer.mean.bias"]
        hidden = hidden.clamp(min=0)
        outputs[stream] = hidden @ weights[f"{stream}_head.mean.weight"].T + weights[f"{stream}_head.mean.bias"]
    advantages = outputs["advantage"].reshape(len(x), 4, 51)
    mean = sum(advantages[:, action] for action in range(4)) / 4
    return torch.stack([outputs["value"] + advantages[:, action] - mean for action in range(4)], 1)


def test_logits_are_those_of_the_state_plus_what_an_action_has_above_the_average(network):
    x = pixels(3)
    network.eval()
    torch.testing.assert_close(network(x).double(), naive_logits(network, x), rtol=1e-4, atol=1e-5)
    values = naive_logits(network, x).softmax(-1) @ network.atoms.double()
    assert (network.get_action(x) == values.argmax(-1)).all()
    assert (network(x) == network(x.float())).all()  # minibatches are bytes, observations to act on are floats
    network.train()
    assert (network(x) != network(x)).any()
    convolutions = (4 * 8 * 8 + 1) * 32 + (32 * 4 * 4 + 1) * 64 + (64 * 3 * 3 + 1) * 64
    streams = 2 * (3136 + 1) * 512 + (512 + 1) * (51 + 4 * 51)
    assert sum(p.numel() for p in network.parameters()) == convolutions + 2 * streams  # each with its scale of noise


# Priorities


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 900),
    changes=st.lists(st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 1e3)), min_size=1), max_size=8),
)
def test_priorities_are_those_of_a_plain_list_and_none_of_zero_is_ever_drawn(size, changes):
    torch.manual_seed(1)
    priorities, naive = Priorities(size), np.zeros(size)
    for change in changes:
        inds = np.array([i % size for i, _ in change])
        values = np.array([value for _, value in change])
        priorities.set(inds, values)
        for i, value in zip(inds, values):  # of several for one row, the last one counts
            naive[i] = value
    np.testing.assert_array_equal(priorities.get(np.arange(size)), naive)
    np.testing.assert_allclose(priorities.sums.sum(), naive.sum(), rtol=1e-12)
    if naive.max() > 1e-200:
        drawn = priorities.draw(50)
        assert drawn.shape == (50,) and (naive[drawn] > 0).all()


@pytest.mark.parametrize("number", [0.0, 1 - 2**-53])
def test_extreme_random_numbers_draw_rows_that_have_a_priority(monkeypatch, number):
    priorities = Priorities(1000)
    priorities.set(np.array([3, 450, 999]), np.array([0.1, 0.7, 0.3]))
    monkeypatch.setattr(torch, "rand", lambda shape, dtype: torch.full(shape, number, dtype=dtype))
    assert set(priorities.draw(32)) <= {3, 450, 999}


def test_rows_are_drawn_in_proportion_to_their_priorities():
    torch.manual_seed(1)
    priorities, values = Priorities(1000), np.random.default_rng(1).exponential(size=1000) ** 2
    values[::7] = 0
    priorities.set(np.arange(1000), values)
    drawn = np.concatenate([priorities.draw(100) for _ in range(5000)])
    counts = np.bincount(drawn, minlength=1000)
    expected = 500_000 * values / values.sum()
    assert (counts[::7] == 0).all()
    # a count varies by the root of what is expected, or by less, as each part of the sum is drawn from equally often
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected) + 1).all()
    assert np.corrcoef(counts, expected)[0, 1] > 0.999


def test_minibatch_covers_the_whole_sum_of_priorities():
    torch.manual_seed(1)
    priorities = Priorities(1000)
    priorities.set(np.arange(1000), np.ones(1000))
    priorities.set(300, 601.0)  # now its block, the second of five, has as much as the other four together
    for _ in range(50):
        blocks = priorities.draw(32) // 200
        assert (np.bincount(blocks, minlength=5) == [4, 16, 4, 4, 4]).all()


# The replay buffer


def picture(number: int) -> np.ndarray:
    """A frame of four pixels, different for each number."""
    return np.frombuffer(np.uint32(number + 1).tobytes(), np.uint8).reshape(2, 2)


def pictures(numbers: list[list[int]]) -> np.ndarray:
    return np.stack([[picture(x) for x in stack] for stack in numbers])


def small_buffer(size: int, n_step: int, spare_frames: int = 10**9) -> ReplayBuffer:
    """A buffer as it is, but of frames of four pixels, and with room for a few more of them than transitions."""
    buffer = ReplayBuffer(size, 4, 1, n_step, 0.9, "cpu")
    buffer.frames = buffer.frames[: size + spare_frames, :2, :2].clone()
    return buffer


def saved_and_loaded(buffer: ReplayBuffer) -> dict:
    """The buffer's part of a checkpoint, as it comes back from the disk."""
    file = io.BytesIO()
    torch.save(checkpoint.saved_form("buffer", buffer), file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@dataclasses.dataclass
class Step:
    obs: list[int]  # the numbers of its frames
    next_obs: list[int]
    action: int
    reward: float
    end: str
    next_step: "Step | None" = None  # of the same episode
    priority: float = 1.0


class NaiveBuffer:
    """Every single step there ever was, in a list; what a transition of several steps is, is worked out on demand."""

    def __init__(self, num_envs: int, n_step: int):
        self.steps: list[Step] = []
        self.n_step = n_step
        self.num_frames = 0
        self.max_priority = 1.0
        self.last_steps: list[Step | None] = [None] * num_envs  # None: an episode is about to start

    def new_frame(self) -> int:
        self.num_frames += 1
        return self.num_frames - 1

    def step(self, ends: list[str]) -> list[np.ndarray]:
        """All environments make a step, which ends some of their episodes; returns what a script adds to its buffer."""
        new = []
        for idx, end in enumerate(ends):
            last, number = self.last_steps[idx], len(self.steps)
            obs = last.next_obs if last else [self.new_frame()] * 4
            next_obs = [*obs[1:], self.new_frame()]
            step = Step(obs, next_obs, number % 5, number % 7 - 3.0, end, priority=self.max_priority)
            if last:
                last.next_step = step
            self.last_steps[idx] = None if end else step
            self.steps.append(step)
            new.append(step)
        outcomes = [np.array(x) for x in zip(*[(x.action, x.reward, x.end == "terminated") for x in new])]
        truncations = np.array([x.end == "truncated" for x in new])
        return [pictures([x.obs for x in new]), pictures([x.next_obs for x in new]), *outcomes, truncations]

    def start_again(self) -> None:
        """The environments were not restored: their episodes are never ended."""
        self.last_steps = [None] * len(self.last_steps)

    def transition(self, number: int) -> tuple:
        """obs, next_obs, action, reward and discount of up to n_step steps from this one on."""
        steps = [self.steps[number]]
        while len(steps) < self.n_step and steps[-1].next_step:
            steps.append(steps[-1].next_step)
        reward = sum(0.9**i * step.reward for i, step in enumerate(steps))
        discount = 0.0 if steps[-1].end == "terminated" else 0.9 ** len(steps)
        return steps[0].obs, steps[-1].next_obs, steps[0].action, reward, discount

    def numbers(self, size: int) -> list[int]:
        """Of the latest steps; they are in the rows `number % size`."""
        return list(range(max(len(self.steps) - size, 0), len(self.steps)))

    def within_reach(self, size: int, num_frames: int) -> list[int]:
        """Which of the last `size` transitions consist of the last `num_frames` frames."""
        oldest = self.num_frames - num_frames
        return [i for i in self.numbers(size) if min(self.steps[i].obs) >= oldest]


def assert_equal(buffer: ReplayBuffer, naive: NaiveBuffer) -> None:
    """Every transition whose frames are there is what the naive buffer says it is, and no other is drawn."""
    size = len(buffer.rows)
    numbers = naive.within_reach(size, len(buffer.frames))
    inds = np.array(numbers) % size
    obs, next_obs, actions, rewards, discounts, weights = buffer.get(inds, 1.0)
    assert obs.dtype == next_obs.dtype == torch.uint8
    assert {x.dtype for x in (actions, rewards, discounts, weights)} == {torch.float32}
    stacks, next_stacks, *outcomes = map(list, zip(*[naive.transition(i) for i in numbers]))
    np.testing.assert_array_equal(obs, pictures(stacks))
    np.testing.assert_array_equal(next_obs, pictures(next_stacks))
    assert actions.shape == rewards.shape == discounts.shape == (len(inds), 1)
    for got, expected in zip((actions, rewards, discounts), outcomes):
        np.testing.assert_allclose(got[:, 0], expected, rtol=1e-6, atol=1e-6)
    priorities = [naive.steps[i].priority for i in numbers]
    np.testing.assert_array_equal(buffer.priorities.get(inds), priorities)
    assert buffer.max_priority == naive.max_priority
    assert set(buffer.draw(64)) <= set(inds)


steps = st.tuples(*[st.sampled_from(["", "", "", "terminated", "truncated"])] * 3)
patterns = st.lists(
    st.one_of(steps, st.sampled_from(["check", "learn", "copy", "start again"])), min_size=1, max_size=12
)


@settings(max_examples=80, deadline=None)
@given(
    n_step=st.integers(1, 5),
    spare_rows=st.integers(0, 60),
    spare_frames=st.integers(24, 40),  # less would not hold the latest stacks of three environments
    num_envs=st.integers(1, 3),
    what_happens=st.lists(st.tuples(patterns, st.integers(1, 8)), max_size=3),
)
def test_transitions_of_several_steps_and_their_priorities_are_those_of_a_naive_list_of_single_steps(
    n_step, spare_rows, spare_frames, num_envs, what_happens
):
    torch.manual_seed(1)
    size, rng = n_step * num_envs + spare_rows, np.random.default_rng(1)
    buffer, naive = small_buffer(size, n_step, spare_frames), NaiveBuffer(num_envs, n_step)
    buffer.add(*naive.step([""] * num_envs))
    for event in [event for pattern, times in what_happens for event in pattern * times] + ["check"]:
        if event == "copy":  # what resuming does
            saved, buffer = saved_and_loaded(buffer), small_buffer(size, n_step, spare_frames)
            buffer.load_state_dict(saved)
        elif event == "start again":  # what resuming does if environments cannot be restored
            buffer.stacks.clear()
            naive.start_again()
        elif event == "learn":
            inds, new_priorities = buffer.draw(4), rng.exponential(size=4)
            buffer.set_priorities(inds, new_priorities)
            for i, priority in zip(inds, new_priorities):
                number = next(number for number in naive.numbers(size) if number % size == i)
                naive.steps[number].priority = priority
            naive.max_priority = max(naive.max_priority, *new_priorities)
        elif event == "check":
            assert_equal(buffer, naive)
        else:
            buffer.add(*naive.step(event[:num_envs]))
    assert buffer.num_frames == naive.num_frames  # each frame once
    assert buffer.num_added == len(naive.steps)


def test_terminated_episode_keeps_all_its_states_and_ends_their_returns():
    buffer, naive = small_buffer(100, 3), NaiveBuffer(1, 3)
    for end in ["", "", "", "terminated", "", ""]:
        buffer.add(*naive.step([end]))
    rewards = [step.reward for step in naive.steps]
    assert buffer.num_added == 6
    expected = [
        (rewards[0] + 0.9 * rewards[1] + 0.81 * rewards[2], 0.9**3),
        (rewards[1] + 0.9 * rewards[2] + 0.81 * rewards[3], 0),
        (rewards[2] + 0.9 * rewards[3], 0),
        (rewards[3], 0),
        (rewards[4] + 0.9 * rewards[5], 0.9**2),  # the next episode has gone on for two steps so far
        (rewards[5], 0.9),
    ]
    np.testing.assert_allclose(buffer.rows[:6, 9:], expected, rtol=1e-12)


def test_truncated_episode_bootstraps_from_its_final_observation_and_never_from_the_next_episode():
    buffer, naive = small_buffer(100, 3), NaiveBuffer(1, 3)
    for end in ["", "", "truncated", "", "", ""]:
        buffer.add(*naive.step([end]))
    rewards, final = [step.reward for step in naive.steps], naive.steps[2].next_obs
    np.testing.assert_array_equal(buffer.rows[:3, 4:8], [final] * 3)
    np.testing.assert_allclose(buffer.rows[:3, 10], [0.9**3, 0.9**2, 0.9], rtol=1e-12)
    assert buffer.rows[2, 9] == rewards[2]
    assert buffer.rows[3:6, :8].min() > max(final)


def test_transitions_that_have_lost_frames_are_no_longer_drawn_and_the_others_are_in_proportion():
    torch.manual_seed(1)
    buffer, naive = small_buffer(20, 3, spare_frames=8), NaiveBuffer(1, 3)
    for _ in range(60):
        buffer.add(*naive.step(["terminated"]))  # two frames a transition: only some of the last ones are there
    there = naive.within_reach(20, len(buffer.frames))
    assert len(there) == 14
    inds = np.array(there) % 20
    buffer.set_priorities(inds, np.arange(1.0, 15.0))
    counts = np.bincount(np.concatenate([buffer.draw(105) for _ in range(300)]), minlength=20)
    assert counts.sum() == counts[inds].sum()
    np.testing.assert_allclose(counts[inds], 300 * np.arange(1.0, 15.0), rtol=0.2)


def test_importance_weights_are_those_of_the_paper_divided_by_the_largest_one():
    buffer, naive = small_buffer(50, 3), NaiveBuffer(1, 3)
    for _ in range(50):
        buffer.add(*naive.step([""]))
    priorities = np.random.default_rng(1).exponential(size=50)
    buffer.set_priorities(np.arange(50), priorities)
    inds = buffer.draw(8)
    for beta in 0.0, 0.4, 1.0:
        weights = [(50 * priorities[i] / priorities.sum()) ** -beta for i in inds]
        np.testing.assert_allclose(buffer.get(inds, beta)[-1], np.array(weights) / max(weights), rtol=1e-6)


def test_whole_importance_weights_undo_the_priorities():
    """The weighted mean over what is drawn is the mean over all rows."""
    torch.manual_seed(1)
    buffer, naive = small_buffer(50, 1), NaiveBuffer(1, 1)
    for _ in range(50):
        buffer.add(*naive.step([""]))
    buffer.set_priorities(np.arange(50), 4 + buffer.rows[:, 9])  # a large reward, a high priority
    inds = buffer.draw(20_000)
    _, _, _, rewards, _, weights = buffer.get(inds, 1.0)
    mean = buffer.rows[:, 9].mean()
    assert abs((rewards[:, 0] * weights).sum() / weights.sum() - mean) < 0.05
    assert rewards.mean() - mean > 0.5


def test_a_million_transitions_take_less_than_eight_gigabytes():
    buffer = ReplayBuffer(1_000_000, 4, 1, 3, 0.99, "meta")
    own, priorities = vars(buffer).values(), vars(buffer.priorities).values()
    size = sum(x.nbytes for x in (*own, *priorities) if isinstance(x, torch.Tensor | np.ndarray))
    assert 7.4e9 < size < 7.5e9


# The loss


def softmax(x: np.ndarray) -> np.ndarray:
    x = np.exp(x - x.max())
    return x / x.sum()


def test_loss_is_that_of_a_naive_version_of_the_paper():
    rng = np.random.default_rng(1)
    atoms = np.linspace(-3, 3, 7)
    logits, next_logits, target_logits = rng.normal(size=(3, 6, 4, 7)) * 2
    actions = rng.integers(0, 4, 6)
    rewards, weights = rng.normal(size=6) * 2, rng.uniform(0.1, 1, 6)
    discounts = np.array([0.99**3, 0.0, 0.99**2, 0.99**3, 0.99, 1.0])
    rewards[3] = 1 - 0.99**3  # returns that are nearly atoms
    targets, losses, values = np.zeros((6, 7)), [], []
    chosen_otherwise = 0
    for i in range(6):
        best = max(range(4), key=lambda a: softmax(next_logits[i, a]) @ atoms)
        chosen_otherwise += best != max(range(4), key=lambda a: softmax(target_logits[i, a]) @ atoms)
        for probability, atom in zip(softmax(target_logits[i, best]), atoms):
            value = min(max(rewards[i] + discounts[i] * atom, -3), 3)
            for j in range(7):
                targets[i, j] += probability * max(0, 1 - abs(value - atoms[j]))  # the atoms are 1 apart
        predicted = softmax(logits[i, actions[i]])
        losses.append(-sum(targets[i, j] * math.log(predicted[j]) for j in range(7)))
        values.append(predicted @ atoms)
    assert chosen_otherwise > 0
    online = torch.tensor(logits, requires_grad=True)
    columns = [torch.tensor(x)[:, None] for x in (actions, rewards, discounts)]
    loss, of_transitions, stats = rainbow_loss(
        online,
        torch.tensor(next_logits),
        torch.tensor(target_logits),
        *columns,
        torch.tensor(weights),
        torch.tensor(atoms),
    )
    np.testing.assert_allclose(of_transitions, losses, rtol=1e-6)
    np.testing.assert_allclose(loss.item(), np.mean(weights * losses), rtol=1e-6)
    np.testing.assert_allclose([stats["td_loss"], stats["q_values"]], [loss.item(), np.mean(values)], rtol=1e-6)
    loss.backward()
    for i in range(6):  # the gradient of a cross-entropy with softmax: prediction minus target
        expected = np.zeros((4, 7))
        expected[actions[i]] = weights[i] / 6 * (softmax(logits[i, actions[i]]) - targets[i])
        np.testing.assert_allclose(online.grad[i], expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", ["make_env", "make_envs", "linear_schedule", "project_distribution"])
def test_function_is_that_of_c51_atari(name):
    assert inspect.getsource(getattr(rainbow_atari, name)) == inspect.getsource(getattr(c51_atari, name))


def test_target_network_is_updated_as_in_dqn_atari():
    assert inspect.getsource(rainbow_atari.update_target) == inspect.getsource(dqn_atari.update_target)


# The script


def test_flags_and_defaults_are_those_of_the_published_file_without_the_ones_it_does_not_use():
    with open(PUBLISHED) as file:
        rows = {row[1]: row[2] for row in csv.reader(file) if row[0] == SCRIPT.name}
    defaults = dataclasses.asdict(Args())
    assert rows.keys() - defaults.keys() == DROPPED
    for name in rows.keys() - DROPPED - {"exp_name"}:
        assert defaults[name] == eval(rows[name], {"__builtins__": {}}), name


def test_every_flag_is_used():
    source = "".join(path.read_text() for path in (SCRIPT, *(ROOT / "cleanrl_utils").rglob("*.py")))
    for field in dataclasses.fields(Args):
        assert f"args.{field.name}" in source, field.name


@pytest.mark.parametrize(
    "flag, wrong, right",
    [
        ("n_step", [0, -1], [1, 20]),
        ("prioritized_replay_alpha", [-0.1, float("nan")], [0.0, 1.0]),
        ("prioritized_replay_beta", [-0.1, 1.1], [0.0, 1.0]),
        ("prioritized_replay_eps", [0.0, -1e-6], [1e-9]),
    ],
)
def test_flag_out_of_range_is_named_with_its_value(flag, wrong, right):
    for value in wrong:
        assert f"--{flag.replace('_', '-')} {value}: must be" in find_mistake(vars(Args()) | {flag: value})
    for value in right:
        assert find_mistake(vars(Args()) | {flag: value}) is None


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with its model, the variables of its script, and what its environments were asked and answered."""
    if not has_atari:
        pytest.skip("needs cleanrl[atari]")
    steps, step = [], gym.vector.SyncVectorEnv.step

    def recorded_step(self, actions):
        outcome = step(self, actions)
        if len(steps) < 100:  # 200 steps of two environments; then comes the evaluation
            steps.append((np.array(actions), outcome[1].copy(), outcome[2].copy(), outcome[3].copy()))
        return outcome

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(gym.vector.SyncVectorEnv, "step", recorded_step)
        folder = tmp_path_factory.mktemp("rainbow")
        flags = [*SHORT, "--num-envs", 2, "--save-model", "--buffer-size", 1000, "--prioritized-replay-alpha", 0.7]
        variables = run_script(monkeypatch, folder, *flags)
    run_dir = folder / variables["run_dir"]
    return SimpleNamespace(run_dir=run_dir, curves=curves(run_dir), script=variables, steps=steps)


def test_metrics_are_those_of_the_published_file(trained):
    charts = {"charts/episodic_return", "charts/episodic_length", "charts/SPS", "charts/beta"}
    assert trained.curves.keys() == charts | {"losses/td_loss", "losses/q_values", "eval/episodic_return"}
    assert [step for step, _ in trained.curves["losses/td_loss"]] == [200]


def test_importance_weights_grow_linearly_to_their_full_effect(trained):
    np.testing.assert_allclose(trained.curves["charts/beta"], [(100, 0.7), (200, 1.0)], rtol=1e-6)


def test_script_stores_what_its_environments_answered_in_transitions_of_three_steps(trained):
    buffer = trained.script["buffer"]
    assert buffer.num_added == 200
    for number in range(200):
        first, idx = divmod(number, 2)
        reward, discount = 0.0, 1.0
        for _, rewards, terminations, truncations in trained.steps[first : first + 3]:
            reward += discount * rewards[idx]
            discount *= 0.99 * (not terminations[idx])
            if terminations[idx] or truncations[idx]:
                break
        row = buffer.rows[number]
        assert row[8] == trained.steps[first][0][idx]
        np.testing.assert_allclose(row[9:], [reward, discount], rtol=1e-12)


def test_new_priorities_are_the_losses_to_the_power_of_alpha(trained):
    script, buffer = trained.script, trained.script["buffer"]
    inds = np.arange(8)
    minibatch = buffer.get(inds, 0.5)
    torch.manual_seed(1)
    logits, seen = [], []
    networks = {"online": script["q_network"], "target": script["target_network"]}

    def note(module, inputs, outputs):
        seen.append(next(name for name, network in networks.items() if network is module))
        logits.append(outputs.detach())

    hooks = [network.register_forward_hook(note) for network in networks.values()]
    update = getattr(script["update"], "function", script["update"])  # as written
    new_priorities, stats = update(*minibatch)
    for hook in hooks:
        hook.remove()
    assert seen == ["online", "target", "online"]  # double Q-learning: the next observations pass through both
    _, _, actions, rewards, discounts, weights = minibatch
    args = (logits[2], logits[0], logits[1], actions, rewards, discounts, weights, script["atoms"])
    loss, losses, _ = rainbow_loss(*args)
    np.testing.assert_allclose(new_priorities, (losses + 1e-6) ** 0.7, rtol=1e-5)
    np.testing.assert_allclose(stats["td_loss"], loss, rtol=1e-5)
    # what was drawn in the training has lost its first priority, and what was not has kept one that was the largest
    values = buffer.priorities.get(np.arange(200))
    assert len(np.unique(values)) > 20 and values.max() <= buffer.max_priority


def test_policy_is_evaluated_without_noise_and_explores_with_it(trained):
    envs = SimpleNamespace(single_action_space=gym.spaces.Discrete(3))
    model = trained.run_dir / "rainbow_atari.safetensors"
    weights = load_file(model)
    network = QNetwork(envs, weights["atoms"]).eval()
    network.load_state_dict(weights)
    x = pixels(40)
    greedy = load_policy(model, envs)
    np.testing.assert_array_equal(greedy(x.numpy()), network.get_action(x))
    np.testing.assert_array_equal(greedy(x.numpy()), greedy(x.numpy()))
    torch.manual_seed(1)
    exploring = load_policy(model, envs, deterministic=False)
    actions = np.stack([exploring(x.numpy()) for _ in range(5)])
    assert (actions != actions[0]).any()


def assert_same_end(run_a, run_b):
    """Equal curves and equal last checkpoints, to the bit: networks, optimizer, replay buffer with its priorities."""
    a, b = (torch.load(run / "checkpoint.pt", weights_only=False) for run in (run_a, run_b))
    assert a["global_step"] == b["global_step"] == 200 and a["buffer"]["num_added"] > len(a["buffer"]["rows"])
    for name in ("q_network", "target_network", "optimizer", "buffer"):
        torch.testing.assert_close(a[name], b[name], rtol=0, atol=0)
    curves_a, curves_b = curves(run_a), curves(run_b)
    for tag in curves_a.keys() - {"charts/SPS"}:
        assert curves_a[tag] == curves_b[tag], tag


@needs_atari
def test_same_seed_gives_the_same_run_and_so_does_stopping_in_the_midst_of_an_episode(monkeypatch, tmp_path):
    class Stopped(Exception):
        pass

    never_stopped = tmp_path / run_script(monkeypatch, tmp_path, *SHORT, "--exp-name", "a")["run_dir"]
    save_checkpoint = checkpoint.save_checkpoint

    def save_and_stop(run_dir, args, script, writer, state):
        save_checkpoint(run_dir, args, script, writer, state)
        raise Stopped

    monkeypatch.setattr(run, "save_checkpoint", save_and_stop)
    with pytest.raises(Stopped):
        run_script(monkeypatch, tmp_path, *SHORT, "--exp-name", "b", "--checkpoint-frequency", 163)
    monkeypatch.setattr(run, "save_checkpoint", save_checkpoint)
    (stopped,) = tmp_path.glob("runs/*__b__*")
    saved = torch.load(stopped / "checkpoint.pt", weights_only=False)
    assert saved["global_step"] == 163 and saved["buffer"]["stacks"]  # an episode goes on, and its rows still grow
    run_script(monkeypatch, tmp_path, "--resume", stopped)
    assert_same_end(never_stopped, stopped)


@needs_atari
def test_resuming_with_another_number_of_steps_is_refused(monkeypatch, trained):
    with pytest.raises(SystemExit, match="--n-step is 3 there and cannot change"):
        run_script(monkeypatch, trained.run_dir.parents[1], "--resume", trained.run_dir, "--n-step", 5)


@needs_atari
def test_mistake_gets_one_clear_line(runner):
    for flags, words in (
        (["--env-id", "BreakoNoFrameskip-v4"], "no such Atari game"),
        (["--env-id", "Nope"], "no such Atari game; those have ids like"),
        (["--num-envs", "100", "--buffer-size", "200"], "--n-step x --num-envs"),
        (["--n-step", "0"], "--n-step"),
    ):
        assert_one_clear_line(runner.run(SCRIPT, *flags, check=False), words)
    assert not list(runner.folder.iterdir())


@pytest.mark.slow
@needs_atari
def test_direction_of_a_drifting_bar_is_learned(runner):
    flags = ["--no-cuda", "--env-id", "Drift-v0", "--learning-starts", 200, "--buffer-size", 2000, "--gamma", 0.5]
    flags += ["--target-network-frequency", 50, "--train-frequency", 2, "--learning-rate", 5e-4]
    flags += ["--batch-size", 16, "--total-timesteps", 1000]
    runner.run(PIXEL_GAME, SCRIPT, *map(str, flags))
    (run_dir,) = runner.folder.glob("runs/*")
    returns = [value for _, value in curves(run_dir)["charts/episodic_return"]]
    # of 34 to 63 points in a game: a third of them by chance, which the first four are, before learning starts
    assert np.mean(returns[:4]) < 30 and np.mean(returns[-10:]) > 36, (returns[:4], returns[-10:])
