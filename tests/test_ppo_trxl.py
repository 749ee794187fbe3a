"""PPO with a Transformer-XL: attention, window and positions against oracles, a memory that is needed, and its runs."""

import dataclasses
import json
import math
import random
import re
import time
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import ROOT, Runner, assert_same_run, curves
from safetensors.torch import save_file
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from cleanrl import ppo_atari_lstm, ppo_trxl
from cleanrl.ppo_trxl import (
    MAX_POSITIONS,
    Agent,
    Args,
    TransformerLayer,
    load_policy,
    make_envs,
    ppo_loss,
    sinusoidal_encodings,
    visible_memories,
)
from cleanrl_utils.evaluate import evaluate
from cleanrl_utils.restore import restore

TRXL = ROOT / "cleanrl" / "ppo_trxl.py"
LSTM = ROOT / "benchmark" / "ppo_lstm_memory.py"
MODULES = ROOT / "tests" / "modules"
STEPS, ENVS, ACTIONS, OBS = 14, 3, 4, 5
LENGTH, LAYERS, HEADS, DIM = 4, 2, 2, 8  # of the memory and of the transformer
SIZES = {"trxl_memory_length": LENGTH, "trxl_num_layers": LAYERS, "trxl_num_heads": HEADS, "trxl_dim": DIM}
SPACES = {
    "single_action_space": SimpleNamespace(n=ACTIONS),
    "single_observation_space": SimpleNamespace(shape=(OBS,)),
}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """As the script does: on a busy machine two threads wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make_agent(**flags):
    """All its parameters are random, so that none of them can be forgotten without a difference."""
    torch.manual_seed(1)
    agent = Agent(SimpleNamespace(**SPACES), Args(**SIZES | flags))
    for name, x in agent.named_parameters():
        torch.nn.init.normal_(x, mean=float("norm" in name and "weight" in name), std=0.5)
    torch.nn.init.normal_(agent.obs_mean)
    torch.nn.init.uniform_(agent.obs_var, 0.5, 2)
    return agent


@pytest.fixture
def agent():
    return make_agent()


@pytest.fixture
def rollout():
    """Observations, the steps that end an episode, and the position at which the first step finds each episode."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(STEPS, ENVS, OBS, generator=generator)
    dones = torch.zeros(STEPS, ENVS, dtype=torch.bool)
    dones[[0, 2, 6, 7, 13], [1, 0, 0, 0, 2]] = True  # the first step, two in a row, the last step
    return x, dones, torch.tensor([0, 2, 9])


def play(agent, x, dones, position):
    """As in the rollout of the script: act step by step, with a memory that holds noise from before the first step."""
    memory = torch.randn(LENGTH, ENVS, LAYERS, DIM, generator=torch.Generator().manual_seed(2))
    memories, positions, actions = [memory], [], []
    for step in range(len(x)):
        positions.append(position)
        action, memory, position = agent.get_action(x[step], memory, position)
        memory = memory.clone()  # out of inference mode
        memories.append(memory[-1:])
        actions.append(action)
        position = position * ~dones[step]
    return torch.cat(memories), torch.stack(positions), torch.stack(actions).clone(), memory, position


# The oracle: one environment and one step at a time, in NumPy, with a list of what the episode has left behind


def weights(layer):
    return {name: x.detach().double().numpy() for name, x in layer.named_parameters()}


def naive_norm(x, w, name):
    return (x - x.mean()) / np.sqrt(x.var() + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]


def naive_encoding(position, dim):
    """Vaswani et al. 2017, section 3.5, number by number: the sines first, then the cosines."""
    angles = [position / 10_000 ** (2 * i / dim) for i in range(dim // 2)]
    return np.array([math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles])


def naive_layer(layer, x, memories):
    """`memories` is a list of those that are visible, with their encodings, of one environment."""
    w = weights(layer)
    size = len(x) // layer.num_heads
    query = naive_norm(x, w, "norm_x")
    normed = [naive_norm(memory, w, "norm_memory") for memory in memories]
    attended = np.zeros(len(x))
    for head in range(layer.num_heads):
        part = slice(head * size, (head + 1) * size)
        q = w["query.weight"] @ query[part]
        keys = [w["key.weight"] @ memory[part] for memory in normed]
        values = [w["value.weight"] @ memory[part] for memory in normed]
        scores = [math.exp(q @ key / math.sqrt(size)) for key in keys]
        for score, value in zip(scores, values, strict=True):
            attended[part] += score / sum(scores) * value
    x = x + w["attention.weight"] @ attended + w["attention.bias"]
    hidden = w["feed_forward.weight"] @ naive_norm(x, w, "norm_attention") + w["feed_forward.bias"]
    return x + np.maximum(hidden, 0)


def naive_step(agent, x, episode, length, encode, statistics=None):
    """The hidden state of one observation, and what it leaves behind.

    `episode` holds (position, inputs of the layers) for the steps before it, those out of the window included.
    """
    w = weights(agent)
    mean, var = (y.double().numpy() for y in statistics or (agent.obs_mean, agent.obs_var))
    x = np.clip((x - mean) / np.sqrt(var + 1e-8), -10, 10)
    x = np.maximum(w["network.0.weight"] @ x + w["network.0.bias"], 0)
    left_behind = []
    for number, layer in enumerate(agent.layers):
        left_behind.append(x)
        memories = [inputs[number] + encode(position) for position, inputs in episode[-length:]]
        x = naive_layer(layer, x, memories)
    return np.maximum(w["hidden.weight"] @ x + w["hidden.bias"], 0), left_behind


def naive_heads(agent, hidden):
    w = weights(agent)
    logits = w["actor.weight"] @ hidden + w["actor.bias"]
    logprobs = logits - math.log(np.exp(logits).sum())
    return logprobs, (w["critic.weight"] @ hidden + w["critic.bias"]).item()


# The interface


def test_flags_and_defaults_are_those_of_the_published_file():
    published = {
        "exp_name": "ppo_trxl", "seed": 1, "torch_deterministic": True, "cuda": True, "track": False,
        "wandb_project_name": "cleanRL", "wandb_entity": None, "capture_video": False, "save_model": False,
        "init_lr": 2.75e-4, "final_lr": 1e-5, "num_envs": 32, "num_steps": 512, "anneal_steps": 32 * 512 * 10_000,
        "gamma": 0.995, "gae_lambda": 0.95, "num_minibatches": 8, "update_epochs": 3, "norm_adv": False,
        "clip_coef": 0.1, "clip_vloss": True, "init_ent_coef": 1e-4, "final_ent_coef": 1e-6, "vf_coef": 0.5,
        "max_grad_norm": 0.25, "target_kl": None, "trxl_num_layers": 3, "trxl_num_heads": 4, "trxl_dim": 384,
        "trxl_memory_length": 119, "trxl_positional_encoding": "absolute", "reconstruction_coef": 0.0,
        "batch_size": 0, "minibatch_size": 0, "num_iterations": 0,
    }  # fmt: skip
    assert published.items() <= dataclasses.asdict(Args()).items()  # all but the environment and its total_timesteps


def test_advantages_are_those_of_the_parent():
    for name in ("compute_gae", "layer_init", "make_envs"):
        ours, theirs = getattr(ppo_trxl, name).__code__, getattr(ppo_atari_lstm, name).__code__
        assert ours.co_code == theirs.co_code and ours.co_names == theirs.co_names, name


# Positions, window and attention


def test_sinusoidal_encodings_equal_the_formula_number_by_number():
    expected = np.array([naive_encoding(position, 6) for position in range(50)])
    np.testing.assert_allclose(sinusoidal_encodings(50, 6), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("length", [1, 3, 5, 40])
def test_visible_are_the_last_steps_of_the_same_episode(rollout, length):
    _, dones, first = rollout
    positions = torch.zeros(STEPS, ENVS, dtype=torch.int64)
    expected = np.zeros((ENVS, STEPS, length + STEPS - 1), dtype=bool)
    for env in range(ENVS):
        # each memory by the row in which it stands; an episode that began before is as old as the first position says
        episode = list(range(length))[-int(first[env]) :] if first[env] else []
        position = int(first[env])
        for step in range(STEPS):
            positions[step, env] = position
            expected[env, step, episode[-length:]] = True
            episode.append(length + step)
            position += 1
            if dones[step, env]:
                episode, position = [], 0
    visible = visible_memories(positions, length)
    np.testing.assert_array_equal(visible, expected)
    assert not visible[0, 0].any() and visible[0, 7].sum() == 0  # first steps of an episode see nothing


def test_attention_equals_the_naive_one_in_numpy():
    torch.manual_seed(1)
    layer = TransformerLayer(12, num_heads=3)
    for name, x in layer.named_parameters():
        torch.nn.init.normal_(x, mean=float("norm" in name and "weight" in name), std=0.5)
    x, memory = torch.randn(5, 2, 12), torch.randn(9, 2, 12)
    visible = torch.rand(2, 5, 9) < 0.4
    visible[1, 3] = False
    outcome = layer(x, memory, visible)
    for env in range(2):
        for step in range(5):
            seen = [row.double().numpy() for row, is_visible in zip(memory[:, env], visible[env, step]) if is_visible]
            expected = naive_layer(layer, x[step, env].double().numpy(), seen)
            np.testing.assert_allclose(outcome[step, env].detach(), expected, rtol=1e-4, atol=1e-4)


def test_attention_gives_no_gradient_to_what_is_hidden():
    layer = TransformerLayer(8, num_heads=2)
    x, memory = torch.randn(1, 1, 8), torch.randn(4, 1, 8, requires_grad=True)
    layer(x, memory, torch.tensor([[[False, True, False, True]]])).sum().backward()
    assert not memory.grad[[0, 2]].any() and memory.grad[[1, 3]].any(dim=-1).all()
    memory.grad = None
    layer(x, memory, torch.zeros(1, 1, 4, dtype=torch.bool)).sum().backward()
    assert not memory.grad.any() and memory.grad.isfinite().all()


@pytest.mark.parametrize("encoding", ["absolute", "learned", "none"])
def test_whole_rollout_equals_the_step_by_step_reference(rollout, encoding):
    x, dones, _ = rollout
    agent = make_agent(trxl_positional_encoding=encoding)
    encode = {
        "absolute": lambda position: naive_encoding(position, DIM),
        "learned": lambda position: agent.encodings[position].detach().double().numpy(),
        "none": lambda position: 0.0,
    }[encoding]
    memories, positions, actions, *_ = play(agent, x, dones, torch.zeros(ENVS, dtype=torch.int64))
    logprobs, entropy, values, hidden = agent.evaluate_actions(x, memories[:-1], positions, actions)
    for env in range(ENVS):
        episode = []
        for step in range(STEPS):
            expected, left_behind = naive_step(agent, x[step, env].double().numpy(), episode, LENGTH, encode)
            policy, value = naive_heads(agent, expected)
            tolerance = {"rtol": 1e-4, "atol": 1e-4}
            np.testing.assert_allclose(hidden[step, env].detach(), expected, **tolerance)
            np.testing.assert_allclose(memories[LENGTH + step, env], left_behind, **tolerance)
            np.testing.assert_allclose(logprobs[step, env].item(), policy[actions[step, env]], **tolerance)
            np.testing.assert_allclose(entropy[step, env].item(), -(np.exp(policy) * policy).sum(), **tolerance)
            np.testing.assert_allclose(values[step, env].item(), value, **tolerance)
            episode = [] if dones[step, env] else [*episode, (len(episode), left_behind)]


def test_learned_encodings_learn(rollout):
    x, dones, first = rollout
    agent = make_agent(trxl_positional_encoding="learned")
    memories, positions, actions, *_ = play(agent, x, dones, first)
    agent.evaluate_actions(x, memories[:-1], positions, actions)[0].sum().backward()
    is_used = agent.encodings.grad.any(dim=-1)
    assert is_used[:8].all() and not is_used[int(positions.max()) :].any()  # nobody attends to the newest step


def test_positions_start_again_where_the_encodings_end(agent, rollout):
    x, dones, _ = rollout
    dones = torch.zeros_like(dones)
    late = torch.full((ENVS,), 9)
    memories, positions, actions, *_ = play(agent, x, dones, late)
    expected = agent.evaluate_actions(x, memories[:-1], positions, actions)
    later = agent.evaluate_actions(x, memories[:-1], positions + MAX_POSITIONS, actions)
    torch.testing.assert_close(later, expected, rtol=0, atol=0)
    elsewhere = agent.evaluate_actions(x, memories[:-1], positions + 1, actions)
    assert ((elsewhere[0] - expected[0]).abs() > 1e-3).any()


# Acting and learning see the same


def test_logprobs_of_the_update_are_those_of_acting(agent, rollout):
    """The window moves by one step at a time while playing, and is a band of a matrix in the update."""
    x, dones, first = rollout
    memories, positions, actions, memory, position = play(agent, x, dones, first)
    logprobs, _, values, hidden = agent.evaluate_actions(x, memories[:-1], positions, actions)
    for step in range(STEPS):
        window = memories[step : step + LENGTH]
        acted, _ = agent.transformer(agent.get_features(x[step])[None], window, positions[step : step + 1])
        torch.testing.assert_close(hidden[step], acted[0], rtol=1e-5, atol=1e-5)
        value = agent.get_value(x[step], window, positions[step])
        torch.testing.assert_close(values[step], value, rtol=1e-5, atol=1e-5)
        policy = torch.distributions.Categorical(logits=agent.actor(acted[0]))
        torch.testing.assert_close(logprobs[step], policy.log_prob(actions[step]), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(memory, memories[-LENGTH:], rtol=0, atol=0)
    assert position.tolist() == [6, 13, 0]


def test_nothing_of_an_ended_episode_is_visible(agent, rollout):
    x, dones, first = rollout
    memories, positions, actions, *_ = play(agent, x, dones, first)
    before = agent.evaluate_actions(x, memories[:-1], positions, actions)[3]
    disturbed = memories.clone()
    disturbed[: LENGTH + 8, 0] = 1e6  # environment 0 has ended an episode in step 7, and environment 1 did in step 0
    disturbed[: LENGTH + 1, 1] = torch.nan  # not even NaNs get through
    after = agent.evaluate_actions(x, disturbed[:-1].nan_to_num(1e6), positions, actions)[3]
    assert torch.equal(before[8:, 0], after[8:, 0]) and torch.equal(before[1:, 1], after[1:, 1])
    assert torch.equal(before[:, 2], after[:, 2])
    assert (before[4:6, 0] != after[4:6, 0]).any(dim=1).all()  # within an episode it is


def test_window_ends_after_its_length(agent, rollout):
    x, dones, first = rollout
    memories, positions, actions, *_ = play(agent, x, torch.zeros_like(dones), first + LENGTH)
    before = agent.evaluate_actions(x, memories[:-1], positions, actions)[3]
    disturbed = memories.clone()
    disturbed[6] = torch.randn(ENVS, LAYERS, DIM) * 5  # of step 2: steps 3 to 6 see it
    after = agent.evaluate_actions(x, disturbed[:-1], positions, actions)[3]
    changed = (before != after).any(dim=-1)
    assert changed[3:7].all() and not changed[:3].any() and not changed[7:].any()


def test_rollout_in_two_parts_is_one_rollout(agent, rollout):
    x, dones, first = rollout
    memories, positions, actions, *_ = play(agent, x, dones, first)
    whole = agent.evaluate_actions(x, memories[:-1], positions, actions)[3]
    for cut in (3, 5):  # right after an end, and in the middle of an episode
        part = agent.evaluate_actions(x[cut:], memories[cut:-1], positions[cut:], actions[cut:])[3]
        torch.testing.assert_close(part, whole[cut:], rtol=1e-5, atol=1e-5)


def test_actions_are_sampled_from_the_policy_and_the_most_probable_ones_taken_on_demand(agent):
    memory, position = torch.randn(LENGTH, 1, LAYERS, DIM), torch.tensor([3])
    x = torch.randn(1, OBS)
    hidden, _ = agent.transformer(agent.get_features(x)[None], memory, position[None])
    logits = agent.actor(hidden[0, 0])
    many = 20_000
    actions, new_memory, new_position = agent.get_action(
        x.expand(many, -1), memory.expand(-1, many, -1, -1), position.expand(many)
    )
    frequencies = torch.bincount(actions, minlength=ACTIONS) / many
    torch.testing.assert_close(frequencies, logits.softmax(-1), rtol=0, atol=0.015)
    assert new_memory.shape == (LENGTH, many, LAYERS, DIM) and (new_position == 4).all()
    assert agent.get_action(x, memory, position, deterministic=True)[0].item() == logits.argmax()


def test_acting_and_updating_leave_no_value_on_the_host(agent, rollout):
    """So that they can be CUDA graphs: fake tensors have no values, and raise where one is asked for."""
    x, dones, first = rollout
    memories, positions, actions, *_ = play(agent, x, dones, first)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = [mode.from_tensor(tensor) for tensor in (x, memories[:-1], positions, actions)]
        with pytest.raises(DataDependentOutputException):
            fake[0].sum().item()
        action, memory, position = agent.get_action(fake[0][0], fake[1][:LENGTH], fake[2][0])
        assert action.shape == (ENVS,) and memory.shape == (LENGTH, ENVS, LAYERS, DIM) and position.shape == (ENVS,)
        newlogprobs, entropy, newvalues, _ = agent.evaluate_actions(*fake)
        targets = [torch.zeros(STEPS, ENVS) for _ in range(4)]
        loss, stats = ppo_loss(newlogprobs, entropy, newvalues, *targets, torch.tensor(0.1), Args())
        loss.backward()
        assert all(value.shape == () for value in stats.values())


@pytest.mark.parametrize("clip_vloss", [True, False])
def test_loss_equals_the_naive_one(clip_vloss):
    rng = np.random.default_rng(1)
    new, old, entropy, newvalues, values, advantages, returns = rng.normal(0, 0.2, (7, 6, 2))
    tensors = [torch.tensor(x) for x in (new, entropy, newvalues, old, advantages, returns, values)]
    args = Args(clip_vloss=clip_vloss, vf_coef=0.7, clip_coef=0.1)
    loss, stats = ppo_loss(*tensors, torch.tensor(0.3, dtype=torch.float64), args)
    policy_loss = value_loss = 0.0
    for i in np.ndindex(6, 2):
        ratio = math.exp(new[i] - old[i])
        policy_loss -= min(advantages[i] * ratio, advantages[i] * min(max(ratio, 0.9), 1.1)) / 12
        clipped = values[i] + min(max(newvalues[i] - values[i], -0.1), 0.1)
        errors = [(newvalues[i] - returns[i]) ** 2, (clipped - returns[i]) ** 2]
        value_loss += (max(errors) if clip_vloss else errors[0]) / 12
    np.testing.assert_allclose(stats["policy_loss"], policy_loss)
    np.testing.assert_allclose(stats["value_loss"], value_loss)
    np.testing.assert_allclose(loss, policy_loss - 0.3 * entropy.mean() + 0.7 * value_loss)


def test_reconstruction_loss_is_the_cross_entropy_of_the_pixels():
    envs = SimpleNamespace(
        single_action_space=SimpleNamespace(n=2), single_observation_space=SimpleNamespace(shape=(84, 84, 3))
    )
    agent = Agent(envs, Args(**SIZES, reconstruction_coef=0.1))
    x = torch.randint(0, 256, (2, 1, 84, 84, 3), dtype=torch.uint8)
    hidden = torch.randn(2, 1, DIM)
    drawn = agent.decoder(hidden[:, 0]).detach().double().numpy()
    pixels = np.moveaxis(x[:, 0].double().numpy(), -1, 1) / 255
    expected = -(pixels * np.log(drawn) + (1 - pixels) * np.log(1 - drawn)).mean()
    np.testing.assert_allclose(agent.reconstruction_loss(hidden, x).item(), expected, rtol=1e-5)
    features = agent.get_features(x[:, 0])
    torch.testing.assert_close(features, agent.network(x[:, 0].movedim(-1, 1) / 255))
    assert not hasattr(Agent(envs, Args(**SIZES)), "decoder")


# The rollout of the script: memories handed on, the values at its seams, and its minibatches


# Runs the script, and keeps what the environments gave and what it made of it.
RECORD = """
import runpy, sys
import gymnasium as gym, torch
from cleanrl_utils import run
step, reset = gym.vector.SyncVectorEnv.step, gym.vector.SyncVectorEnv.reset
seen, minibatches, statistics = [], [], []
def recorded_step(self, actions):
    obs, rewards, terminations, truncations, infos = step(self, actions)
    final = [infos["final_obs"][i].copy() if truncations[i] else None for i in range(len(truncations))]
    seen.append((obs.copy(), list(actions), terminations.copy(), truncations.copy(), final))
    return obs, rewards, terminations, truncations, infos
def recorded_reset(self, **kwargs):
    obs, info = reset(self, **kwargs)
    seen.append((obs.copy(), None, None, None, None))
    return obs, info
def recorded_accelerate(args, script, act, update, state):
    def recorded_update(*minibatch):
        minibatches.append([x.clone() for x in minibatch])
        statistics.append((state["agent"].obs_mean.clone(), state["agent"].obs_var.clone()))
        return update(*minibatch)
    return act, recorded_update
gym.vector.SyncVectorEnv.step, gym.vector.SyncVectorEnv.reset = recorded_step, recorded_reset
run.accelerate = recorded_accelerate
sys.argv[:] = sys.argv[1:]
end = runpy.run_path(sys.argv[0], run_name="__main__")
names = ["obs", "torch_memory", "positions", "torch_actions"]
names += ["logprobs", "advantages", "returns", "values", "next_values"]
torch.save({"seen": seen, "minibatches": minibatches, "statistics": statistics, "agent": end["agent"].state_dict(),
    "final_obs": end["final_obs"], **{name: end[name].clone() for name in names}}, "record.pt")
"""
SMALL = ["--no-cuda", "--trxl-memory-length", LENGTH, "--trxl-num-layers", LAYERS, "--trxl-num-heads", HEADS]
SMALL += ["--trxl-dim", DIM]


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """Three iterations of four environments that learn nothing (learning rate 0): one policy played all of them."""
    runner = Runner(tmp_path_factory.mktemp("record"))
    flags = ["--env-id", "proof_of_memory:CutProofOfMemory-v0", "--num-envs", 4, "--num-steps", 20]
    flags += ["--num-minibatches", 2, "--update-epochs", 2, "--total-timesteps", 240, "--init-lr", 0, "--final-lr", 0]
    runner.run("-c", RECORD, TRXL, *flags, *SMALL, modules=MODULES)
    (run_dir,) = runner.folder.glob("runs/*")
    return torch.load(runner.folder / "record.pt", weights_only=False) | {"curves": curves(run_dir)}


def replay(record, forgets=True):
    """The whole run once more, from its first step on and one environment at a time, in NumPy.

    What the script should have got as log-probabilities, values and next values of the last rollout, (20, 4).
    """
    spaces = SPACES | {"single_action_space": SimpleNamespace(n=2)}
    spaces |= {"single_observation_space": SimpleNamespace(shape=(3,))}
    agent = Agent(SimpleNamespace(**spaces), Args(**SIZES))
    agent.load_state_dict(record["agent"])
    seen = record["seen"]

    def forward(obs, episode, step):
        encode = lambda position: naive_encoding(position, DIM)  # noqa: E731
        statistics = record["statistics"][step // 20 * 4]  # they change after each iteration, of four minibatches
        hidden, left_behind = naive_step(agent, obs.astype(np.float64), episode, LENGTH, encode, statistics)
        return *naive_heads(agent, hidden), left_behind

    logprobs, values, next_values = np.zeros((3, 60, 4))
    for env in range(4):
        episode = []
        for step in range(60):
            _, actions, terminations, truncations, final_obs = seen[step + 1]
            policy, values[step, env], left_behind = forward(seen[step][0][env], episode, step)
            logprobs[step, env] = policy[actions[env]]
            episode = [*episode, (len(episode), left_behind)]
            next_obs = final_obs[env] if truncations[env] else seen[step + 1][0][env]
            _, next_values[step, env], _ = forward(next_obs, episode, step)
            if forgets and (terminations[env] or truncations[env]):
                episode = []
    return logprobs[-20:], values[-20:], next_values[-20:]


def test_run_computes_what_the_reference_does_from_the_first_step_of_the_run_on(record):
    truncations = np.array([x[3] for x in record["seen"][-20:]])
    assert len(record["final_obs"]) == truncations.sum() > 0 and not truncations[-1].all()  # else it would test little
    assert (record["positions"][0] > 0).any()  # episodes that go on from the rollout before
    logprobs, values, next_values = replay(record)
    tolerance = {"rtol": 1e-4, "atol": 1e-5}
    np.testing.assert_allclose(record["logprobs"], logprobs, **tolerance)
    np.testing.assert_allclose(record["values"], values, **tolerance)
    np.testing.assert_allclose(record["next_values"], next_values, **tolerance)
    assert not np.allclose(record["values"], replay(record, forgets=False)[1], **tolerance)


def test_statistics_are_those_of_all_observations_so_far(record):
    obs = np.array([x[0] for x in record["seen"]], np.float64).reshape(-1, 4, 3)
    for rollouts in (1, 2):
        mean, var = record["statistics"][4 * rollouts]
        so_far = obs[: 20 * rollouts].reshape(-1, 3)
        np.testing.assert_allclose(mean, so_far.mean(0), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(var, so_far.var(0), rtol=1e-4, atol=1e-6)
    assert record["statistics"][0][0].tolist() == [0, 0, 0] and record["statistics"][0][1].tolist() == [1, 1, 1]
    np.testing.assert_allclose(record["agent"]["obs_mean"], obs[:60].reshape(-1, 3).mean(0), rtol=1e-4, atol=1e-6)


def test_ratios_are_one_while_nothing_is_learned(record):
    """In every minibatch of every epoch: its memories are those with which the rollout was evaluated."""
    logged = record["curves"]
    assert len(logged["losses/approx_kl"]) == 3
    assert max(abs(value) for _, value in logged["losses/old_approx_kl"] + logged["losses/clipfrac"]) < 1e-6


def test_minibatches_are_whole_environments(record):
    minibatches = record["minibatches"]
    assert len(minibatches) == 3 * 2 * 2  # iterations, epochs, and minibatches in each of them
    names = ["obs", "torch_memory", "positions", "torch_actions", "logprobs", "advantages", "returns", "values"]
    for epoch in (minibatches[-4:-2], minibatches[-2:]):  # those of the last rollout
        columns = []
        for minibatch in epoch:
            for column in range(2):
                sources = [
                    {env for env in range(4) if torch.equal(part[:, column], record[name][:, env])}
                    for part, name in zip(minibatch, names, strict=True)
                ]
                (env,) = set.intersection(*sources)  # everything of one environment
                columns.append(env)
        assert sorted(columns) == [0, 1, 2, 3]


# Learning


LEARN = ["--no-cuda", "--env-id", "proof_of_memory:ProofOfMemory-v0", "--num-envs", 16, "--num-steps", 32]
LEARN += ["--num-minibatches", 4, "--update-epochs", 4, "--max-grad-norm", 0.5, "--accelerate", "on"]


def final_return(runner, *flags, script=TRXL):
    run_dir = runner.train(*LEARN, *flags, script=script, modules=MODULES)
    returns = [value for _, value in curves(run_dir)["charts/episodic_return"]]
    return np.mean(returns[-200:])


def test_proof_of_memory_is_learned(runner):
    """A walker without a memory gets -0.1 on average, at best."""
    flags = ["--trxl-dim", 32, "--trxl-num-layers", 2, "--trxl-memory-length", 8, "--init-lr", 1e-3]
    assert final_return(runner, *flags, "--total-timesteps", 10240) > 0.7


@pytest.mark.slow
def test_proof_of_memory_is_solved_with_every_seed_and_not_with_a_memory_too_short(runner):
    """0.9 with a memory, be it a transformer or the LSTM; -0.1 at best, on average, where the sign is out of reach."""
    flags = ["--trxl-dim", 32, "--init-lr", 1e-3, "--total-timesteps", 20480]
    for seed in (4, 5, 6):
        solved = final_return(runner, *flags, "--seed", seed, "--trxl-num-layers", 2, "--trxl-memory-length", 8)
        assert solved > 0.85, seed
        too_short = final_return(runner, *flags, "--seed", seed, "--trxl-num-layers", 1, "--trxl-memory-length", 1)
        assert too_short < 0.2, seed
        lstm = ["--learning-rate", 1e-3, "--no-anneal-lr", "--no-norm-adv", "--ent-coef", 1e-4, "--gamma", 0.995]
        lstm += ["--seed", seed, "--total-timesteps", 20480]
        assert final_return(runner, *lstm, script=LSTM) > 0.85, seed


def test_lstm_of_the_comparison_trains_on_the_same_tasks(runner):
    """benchmark/ppo_lstm_memory.py is made from ppo_atari_lstm.py, and must follow its changes."""
    flags = ["--env-id", "proof_of_memory:ProofOfMemory-v0", "--no-cuda", "--num-envs", 2, "--num-steps", 16]
    run_dir = runner.train(*flags, "--num-minibatches", 2, "--total-timesteps", 64, script=LSTM, modules=MODULES)
    assert [step for step, _ in curves(run_dir)["losses/value_loss"]] == [32, 64]
    assert "ppo_lstm_memory" in run_dir.name


# The trained policy


def test_policy_keeps_a_memory_and_forgets_where_it_is_told(agent, rollout, tmp_path):
    x, dones, _ = rollout
    path = tmp_path / "model.safetensors"
    save_file(agent.state_dict(), path, {"args": json.dumps(dataclasses.asdict(Args(**SIZES)))})
    envs = SimpleNamespace(**SPACES, num_envs=ENVS)
    policy = load_policy(path, envs)
    actions = []
    for obs, done in zip(x.numpy(), dones.numpy(), strict=True):
        actions.append(policy(obs))
        policy.reset(done)
    memories, positions, some, memory, position = play(agent, x, dones, torch.zeros(ENVS, dtype=torch.int64))
    hidden = agent.evaluate_actions(x, memories[:-1], positions, some)[3]
    assert isinstance(actions[0], np.ndarray)
    np.testing.assert_array_equal(actions, agent.actor(hidden).argmax(-1))
    torch.testing.assert_close(policy.memory.clone(), memory, rtol=1e-5, atol=1e-5)
    assert policy.position.tolist() == position.tolist() == [6, 13, 0]
    again = load_policy(path, envs)  # a policy of its own, that has seen nothing
    np.testing.assert_array_equal(again(x[0].numpy()), actions[0])
    assert policy.position.tolist() == [6, 13, 0]


# Repeatable, resumable, evaluated


TINY = [*SMALL, "--num-envs", 2, "--num-steps", 16, "--num-minibatches", 2, "--total-timesteps", 320, "--save-model"]


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory):
    pytest.importorskip("minigrid")
    runner = Runner(tmp_path_factory.mktemp("never_stopped"))
    return runner.train(*TINY, "--anneal-steps", 160, script=TRXL)


def test_resumed_run_equals_one_of_the_same_seed_that_never_stopped(runner, never_stopped):
    flags = [*TINY, "--anneal-steps", 160, "--exp-name", "killed", "--checkpoint-frequency", 32]
    process = runner.start(TRXL, *flags)
    checkpoint = runner.wait_for("runs/*killed*/checkpoint.pt", process)
    time.sleep(0.1)
    process.kill()
    process.communicate()
    saved = torch.load(checkpoint, weights_only=False)
    assert saved["global_step"] < 320 and saved["memory"].any() and saved["position"].any()
    result = runner.run(TRXL, "--resume", checkpoint.parent)
    assert "episodes start again" not in result.stderr
    assert_same_run(never_stopped, checkpoint.parent)


@pytest.mark.parametrize(
    "flag, value",
    [
        ("--trxl-dim", 16),
        ("--trxl-num-heads", 1),
        ("--trxl-num-layers", 5),
        ("--trxl-memory-length", 3),
        ("--trxl-positional-encoding", "none"),
    ],
)
def test_transformer_cannot_change_when_a_run_is_resumed(runner, never_stopped, flag, value):
    flags = ["--resume", never_stopped, "--total-timesteps", 640, flag, value]
    result = runner.run(TRXL, *flags, check=False)
    assert result.returncode == 1 and len(result.stderr.splitlines()) == 1, result.stderr
    assert f"{flag} is " in result.stderr and "there and cannot change" in result.stderr


def test_where_episodes_start_again_their_memories_are_forgotten():
    envs = make_envs("CartPole-v1", 2, False, "")
    next_obs, _ = envs.reset(seed=1)
    random_states = {"random": random.getstate(), "numpy_random": np.random.get_state()}
    random_states |= {"torch_random": torch.get_rng_state(), "cuda_random": []}
    checkpoint = {"envs": None, "args": {"seed": 1}, "global_step": 64, "next_obs": next_obs, **random_states}
    checkpoint |= {"memory": torch.ones(LENGTH, 2, LAYERS, DIM), "position": torch.tensor([3, 7])}
    state = {"global_step": 0, "next_obs": next_obs.copy(), "envs": envs}
    state |= {"memory": torch.zeros(LENGTH, 2, LAYERS, DIM), "position": torch.zeros(2, dtype=torch.int64)}
    restore(checkpoint, state)  # without a snapshot of the environments
    envs.close()
    assert state["global_step"] == 64 and state["position"].tolist() == [0, 0] and not state["memory"].any()


def test_metrics_are_those_of_the_published_file_and_episodes_are_in_charts(never_stopped):
    """The first rollouts end no episode of MiniGrid, which once was an error."""
    losses = "value_loss policy_loss loss entropy old_approx_kl approx_kl clipfrac explained_variance grad_norm"
    charts = "learning_rate entropy_coefficient SPS value_mean advantage_mean"
    tags = {f"losses/{name}" for name in losses.split()} | {f"charts/{name}" for name in charts.split()}
    logged = curves(never_stopped)
    for tag in tags:
        assert [step for step, _ in logged[tag]] == list(range(32, 321, 32)), tag
    assert {"charts/episodic_return", "charts/episodic_length"} <= logged.keys()
    assert logged["charts/episodic_return"][0][0] > 32


def test_learning_rate_and_entropy_coefficient_fall_over_anneal_steps_and_stay(never_stopped):
    logged = curves(never_stopped)
    remaining = [max(1 - step / 160, 0) for step in range(0, 320, 32)]
    for tag, first, last in (("learning_rate", 2.75e-4, 1e-5), ("entropy_coefficient", 1e-4, 1e-6)):
        expected = [last + x * (first - last) for x in remaining]
        np.testing.assert_allclose([value for _, value in logged[f"charts/{tag}"]], expected, rtol=1e-5)


def test_evaluation_after_training_is_repeated_by_the_saved_model(never_stopped):
    logged = [value for _, value in curves(never_stopped)["eval/episodic_return"]]
    model = never_stopped / "ppo_trxl.safetensors"
    again = evaluate(model, "MiniGrid-MemoryS7-v0", make_envs, load_policy, seed=1_000_001, device="cpu")
    assert len(logged) == 10 and again.returns == logged


def test_exported_policy_remembers_as_the_original_does(never_stopped, tmp_path):
    pytest.importorskip("onnxruntime")
    from cleanrl_utils.export import export

    path, description = export(never_stopped, tmp_path / "policy.onnx")
    assert path.exists() and "next_state" in description and "next_state2" in description


@pytest.mark.parametrize("env_id", ["MiniGrid-MemoryS7-v0", "minigrid:MiniGrid-MemoryS7-v0"])
def test_minigrid_is_seen_as_zeros_and_ones_of_the_fields_ahead(env_id):
    pytest.importorskip("minigrid")
    envs = make_envs(env_id, 2, False, "")
    obs, _ = envs.reset(seed=1)
    image = envs.envs[0].unwrapped.gen_obs()["image"]  # object (of 11), color (of 6) and state (of 3) of each field
    expected = np.concatenate([np.eye(size)[image[..., kind]] for kind, size in enumerate((11, 6, 3))], axis=-1)
    assert obs.dtype == np.uint8
    np.testing.assert_array_equal(obs[0].reshape(7, 7, 20), expected)
    envs.close()


# Pictures, and several actions at once


# An environment with pictures and two branches of actions, in the place of memory-gym's.
PICTURES = """
import gymnasium as gym, numpy as np
class Pictures(gym.Env):
    observation_space, action_space = gym.spaces.Box(0, 255, (84, 84, 3), np.uint8), gym.spaces.MultiDiscrete([2, 3])
    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observation_space.sample(), {}
    def step(self, action):
        assert self.action_space.contains(action), action
        self.steps += 1
        return self.observation_space.sample(), float(action.sum()), self.steps == 5, False, {}
gym.register("Pictures-v0", Pictures)
"""


def test_pictures_are_reconstructed_and_branches_of_actions_combined(runner):
    (runner.folder / "pictures.py").write_text(PICTURES)
    flags = [*SMALL, "--env-id", "pictures:Pictures-v0", "--num-envs", 2, "--num-steps", 8, "--num-minibatches", 1]
    flags += ["--total-timesteps", 32, "--reconstruction-coef", 0.1, "--accelerate", "on"]
    run_dir = runner.train(*flags, script=TRXL, modules=runner.folder)
    logged = curves(run_dir)
    assert [step for step, _ in logged["losses/reconstruction_loss"]] == [16, 32]
    assert all(0 < value < 3 for _, value in logged["losses/reconstruction_loss"])
    assert max(value for _, value in logged["charts/episodic_return"]) <= 5 * 3


def test_combined_actions_reach_every_branch():
    sizes = [2, 3]

    class Branches(gym.Env):
        observation_space, action_space = gym.spaces.Box(0, 1, (1,)), gym.spaces.MultiDiscrete(sizes)
        seen = []

        def reset(self, seed=None, options=None):
            return np.zeros(1, np.float32), {}

        def step(self, action):
            self.seen.append(tuple(action.tolist()))
            return np.zeros(1, np.float32), 0.0, False, False, {}

    gym.register("Branches-v0", Branches)
    env = ppo_trxl.make_env("Branches-v0", 0, False, "")()
    assert env.action_space.n == 6
    env.reset()
    for action in range(6):
        env.step(action)
    assert Branches.seen == [(a, b) for a in range(2) for b in range(3)]


def test_memory_gym_runs_where_it_is_installed(runner):
    pytest.importorskip("memory_gym")
    flags = [*SMALL, "--env-id", "MortarMayhem-Grid-v0", "--num-envs", 2, "--num-steps", 8, "--num-minibatches", 1]
    run_dir = runner.train(*flags, "--total-timesteps", 16, script=TRXL)
    assert (run_dir / "checkpoint.pt").exists()


# Mistakes


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--num-envs", "3", "--num-minibatches", "2"], ["3 envs", "2 minibatches of whole envs"]),
        (["--trxl-dim", "30"], ["--trxl-dim 30", "multiple of 8"]),
        (["--trxl-memory-length", "0"], ["--trxl-memory-length 0", "at least 1"]),
        (["--trxl-memory-length", "2000"], ["--trxl-memory-length 2000", "at most 1024"]),
        (["--anneal-steps", "0"], ["--anneal-steps 0", "at least 1"]),
        (["--init-lr", "-1"], ["--init-lr -1", "at least 0"]),
        (["--reconstruction-coef", "0.1"], ["--reconstruction-coef", "84x84", "MiniGrid-MemoryS7-v0"]),
        (["--env-id", "MiniGrid-MemoryS8-v0"], ["MiniGrid-MemoryS8-v0"]),
        (["--env-id", "Pendulum-v1"], ["Pendulum-v1", "discrete"]),
    ],
)
def test_mistake_gets_one_clear_line_and_leaves_nothing_on_disk(runner, flags, words):
    pytest.importorskip("minigrid")
    result = runner.run(TRXL, *flags, check=False)
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    assert result.returncode == 1 and len(lines) == 1, result.stderr
    assert all(word in lines[0] for word in words), result.stderr
    assert not list(runner.folder.iterdir())


@pytest.mark.parametrize(
    "module, env_id, words",
    [
        ("minigrid", "MiniGrid-MemoryS7-v0", ["cleanrl[memory]"]),
        ("memory_gym", "MortarMayhem-Grid-v0", ["memory-gym==1.0.2", "--no-deps"]),
    ],
)
def test_missing_package_is_named_with_the_command_that_installs_it(runner, module, env_id, words):
    (runner.folder / f"{module}.py").write_text(f"raise ModuleNotFoundError(\"No module named '{module}'\")")
    result = runner.run(TRXL, "--env-id", env_id, modules=runner.folder, check=False)
    assert result.returncode == 1 and re.search(re.escape(words[0]), result.stderr), result.stderr
    assert all(word in result.stderr for word in words) and "Traceback" not in result.stderr
