"""PPO with an LSTM: the five details against oracles, a memory that is needed, and what a run promises."""

import dataclasses
import functools
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

from cleanrl import ppo_atari, ppo_atari_lstm
from cleanrl.ppo_atari_lstm import Agent, Args, load_policy, make_envs, ppo_loss
from cleanrl_utils.evaluate import evaluate

for needed in ("ale_py", "cv2", "stable_baselines3"):
    pytest.importorskip(needed)

LSTM = ROOT / "cleanrl" / "ppo_atari_lstm.py"
STEPS, ENVS, ACTIONS = 12, 3, 4


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """As the script does: on a busy machine two threads wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def agent():
    torch.manual_seed(1)
    agent = Agent(SimpleNamespace(single_action_space=SimpleNamespace(n=ACTIONS)))
    torch.nn.init.normal_(agent.actor.weight)  # as it starts, the policy is next to uniform whatever the state
    for layer in (agent.lstm_x, agent.lstm_h):
        torch.nn.init.normal_(layer.bias, std=0.5)
    return agent


@pytest.fixture
def rollout():
    """Observations, the state before the first of them, the steps that ended an episode, and actions."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(0, 256, (STEPS, ENVS, 1, 84, 84), generator=generator, dtype=torch.uint8)
    state = torch.randn(2, ENVS, 128, generator=generator)
    dones = torch.zeros(STEPS, ENVS, dtype=torch.bool)
    dones[[0, 4, 5, 11], [1, 0, 0, 2]] = True  # the first step, two in a row, the last step
    return x, state, dones, torch.randint(0, ACTIONS, (STEPS, ENVS), generator=generator)


def hidden_states(agent, x, state, dones):
    """The hidden state of the LSTM in each step, as policy and value function get to see it."""
    critic, agent.critic = agent.critic, torch.nn.Identity()
    hidden = agent.evaluate_actions(x, state, dones, torch.zeros_like(dones, dtype=torch.int64))[2]
    agent.critic = critic
    return hidden


def features_of(agent, x):
    """What the LSTM gets to see of the observations."""
    return agent.network(x.flatten(0, -4) / 255).unflatten(0, x.shape[:-3])


def reference_lstm(agent: Agent) -> torch.nn.LSTM:
    lstm = torch.nn.LSTM(512, 128)
    names = {"weight_ih_l0": agent.lstm_x.weight, "weight_hh_l0": agent.lstm_h.weight}
    names |= {"bias_ih_l0": agent.lstm_x.bias, "bias_hh_l0": agent.lstm_h.bias}
    lstm.load_state_dict({name: x.detach().clone() for name, x in names.items()})
    return lstm


def naive_hidden_states(lstm, features, state, dones):
    """PyTorch's own LSTM, one environment and one step at a time."""
    hidden = torch.zeros(*dones.shape, 128)
    for env in range(len(dones[0])):
        h, c = state[0, env].reshape(1, 1, 128), state[1, env].reshape(1, 1, 128)
        for step in range(len(features)):
            _, (h, c) = lstm(features[step, env].reshape(1, 1, 512), (h, c))
            hidden[step, env] = h.flatten()
            if dones[step, env]:
                h, c = torch.zeros_like(h), torch.zeros_like(c)
    return hidden


# The interface


def test_flags_and_defaults_are_those_of_the_published_file():
    published = {
        "exp_name": "ppo_atari_lstm", "seed": 1, "torch_deterministic": True, "cuda": True, "track": False,
        "wandb_project_name": "cleanRL", "wandb_entity": None, "capture_video": False,
        "env_id": "BreakoutNoFrameskip-v4", "total_timesteps": 10_000_000, "learning_rate": 2.5e-4, "num_envs": 8,
        "num_steps": 128, "anneal_lr": True, "gamma": 0.99, "gae_lambda": 0.95, "num_minibatches": 4,
        "update_epochs": 4, "norm_adv": True, "clip_coef": 0.1, "clip_vloss": True, "ent_coef": 0.01, "vf_coef": 0.5,
        "max_grad_norm": 0.5, "target_kl": None, "batch_size": 0, "minibatch_size": 0, "num_iterations": 0,
    }  # fmt: skip
    assert published.items() <= dataclasses.asdict(Args()).items()


def test_every_detail_is_numbered_in_the_comments():
    assert set(re.findall(r"LSTM detail (\d)", LSTM.read_text())) == set("12345")


def test_loss_and_advantages_are_those_of_the_parent():
    for name in ("ppo_loss", "compute_gae", "layer_init", "make_envs"):
        ours, theirs = getattr(ppo_atari_lstm, name).__code__, getattr(ppo_atari, name).__code__
        assert ours.co_code == theirs.co_code and ours.co_names == theirs.co_names, name


def test_network_sees_one_frame():
    envs = make_envs("PongNoFrameskip-v4", 2, False, "")
    assert envs.single_observation_space.shape == (1, 84, 84) and envs.single_observation_space.dtype == np.uint8
    assert Agent(envs).actor.in_features == 128
    envs.close()


# Details 1 to 3: initialization, the recurrence and its resets


def test_lstm_starts_orthogonal_with_biases_zero():
    agent = Agent(SimpleNamespace(single_action_space=SimpleNamespace(n=ACTIONS)))
    w_x, w_h = agent.lstm_x.weight, agent.lstm_h.weight
    torch.testing.assert_close(w_x @ w_x.T, torch.eye(512), rtol=0, atol=1e-5)
    torch.testing.assert_close(w_h.T @ w_h, torch.eye(128), rtol=0, atol=1e-5)
    assert not agent.lstm_x.bias.any() and not agent.lstm_h.bias.any()


def test_hidden_states_and_gradients_equal_those_of_pytorchs_lstm(agent, rollout):
    x, state, dones, _ = rollout
    hidden = hidden_states(agent, x, state, dones)
    lstm = reference_lstm(agent)
    expected = naive_hidden_states(lstm, features_of(agent, x).detach(), state, dones)
    torch.testing.assert_close(hidden, expected, rtol=1e-5, atol=1e-5)
    weights = torch.randn(hidden.shape)
    (hidden * weights).sum().backward()
    (expected * weights).sum().backward()
    for ours, name in ((agent.lstm_x, "ih"), (agent.lstm_h, "hh")):
        for kind in ("weight", "bias"):
            theirs = getattr(lstm, f"{kind}_{name}_l0")
            torch.testing.assert_close(getattr(ours, kind).grad, theirs.grad, rtol=1e-4, atol=1e-4)
    assert agent.network[0].weight.grad.any()


def test_one_step_equals_the_formulas_in_numpy(agent):
    features, state = torch.randn(ENVS, 512), torch.randn(2, ENVS, 128)
    layers = (agent.lstm_x, agent.lstm_h)
    w_x, b_x, w_h, b_h = (x.detach().double().numpy() for layer in layers for x in layer.parameters())
    h, c = state.double().numpy()
    gates = features.double().numpy() @ w_x.T + b_x + h @ w_h.T + b_h
    i, f, g, o = (gates[:, 128 * k : 128 * (k + 1)] for k in range(4))
    c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
    h = np.tanh(c) / (1 + np.exp(-o))
    np.testing.assert_allclose(agent.lstm(agent.lstm_x(features), state).detach(), [h, c], rtol=1e-4, atol=1e-5)


def test_nothing_is_remembered_beyond_the_end_of_an_episode(agent, rollout):
    x, state, dones, _ = rollout
    before = hidden_states(agent, x, state, dones).detach()
    x[:5, 0] = 255 - x[:5, 0]  # environment 0 ends an episode in step 4, and environment 1 did in step 0
    x[0, 1] = 255 - x[0, 1]
    after = hidden_states(agent, x, state * -1, dones).detach()
    assert torch.equal(before[5:, 0], after[5:, 0]) and torch.equal(before[1:, 1], after[1:, 1])
    assert (before[:, 2] != after[:, 2]).any(dim=1).all()  # it goes on to the last step
    assert (before[4, 0] != after[4, 0]).any()  # and the state in which an episode ends is that of the episode


# Detail 5: the states are rebuilt


def play(agent, x, state, dones):
    """As in the rollout of the script: act step by step, and reset after the steps that end an episode."""
    states, actions = [], []
    for step in range(len(x)):
        action, state = agent.get_action(x[step], state)
        states.append(state)
        actions.append(action)
        state = state * ~dones[step].unsqueeze(-1)
    return torch.stack(states), torch.stack(actions), state


def test_rebuilt_states_are_those_of_acting(agent, rollout):
    x, state, dones, _ = rollout
    acted, actions, _ = play(agent, x, state, dones)
    actions = actions.clone()  # out of inference mode
    logprobs, entropy, values = agent.evaluate_actions(x, state, dones, actions)
    rebuilt = hidden_states(agent, x, state, dones)
    torch.testing.assert_close(rebuilt, acted[:, 0].clone(), rtol=1e-5, atol=1e-5)
    policy = torch.distributions.Categorical(logits=agent.actor(acted[:, 0].clone()))
    torch.testing.assert_close(logprobs, policy.log_prob(actions), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(entropy, policy.entropy(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(values, agent.critic(acted[:, 0].clone()).squeeze(-1), rtol=1e-4, atol=1e-5)
    forgetful = agent.evaluate_actions(x, state, torch.zeros_like(dones), actions)
    assert ((forgetful[0] - logprobs).abs() > 0.01).any()  # without the resets, the comparison above would fail


def test_rollout_in_two_parts_is_one_rollout(agent, rollout):
    x, state, dones, _ = rollout
    whole = hidden_states(agent, x, state, dones)
    for cut in (5, 7):  # right after an end, and in the middle of an episode
        _, _, handed_on = play(agent, x[:cut], state, dones[:cut])
        rest = hidden_states(agent, x[cut:], handed_on, dones[cut:])
        torch.testing.assert_close(rest, whole[cut:], rtol=1e-5, atol=1e-5)


def test_actions_are_sampled_from_the_policy_and_the_most_probable_ones_taken_on_demand(agent, rollout):
    x, state, _, _ = rollout
    x, state = x[0, :1], state[:, :1]
    logits = agent.actor(hidden_states(agent, x[None], state, torch.zeros(1, 1, dtype=torch.bool))[0, 0])
    gates = agent.get_features(x).detach()
    agent.get_features = lambda x: x  # 50,000 times the same picture
    actions, states = agent.get_action(gates.expand(50_000, -1), state.expand(-1, 50_000, -1))
    frequencies = torch.bincount(actions, minlength=ACTIONS) / len(actions)
    torch.testing.assert_close(frequencies, logits.softmax(-1), rtol=0, atol=0.01)
    assert states.shape == (2, 50_000, 128)
    assert agent.get_action(gates, state, deterministic=True)[0].item() == logits.argmax()


def test_acting_and_updating_leave_no_value_on_the_host(agent, rollout):
    """So that they can be CUDA graphs: fake tensors have no values, and raise where one is asked for."""
    x, state, dones, actions = rollout
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = [mode.from_tensor(tensor) for tensor in (x, state, dones, actions)]
        with pytest.raises(DataDependentOutputException):
            fake[0].sum().item()
        action, new_state = agent.get_action(fake[0][0], fake[1])
        assert action.shape == (ENVS,) and new_state.shape == state.shape and new_state.dtype == state.dtype
        newlogprobs, entropy, newvalues = agent.evaluate_actions(*fake)
        targets = [torch.zeros(STEPS, ENVS) for _ in range(4)]
        loss, stats = ppo_loss(newlogprobs, entropy, newvalues, *targets, Args())
        loss.backward()
        assert all(value.shape == () for value in stats.values())


# Details 2, 3, 4 and 5 and truncation, in a run of the script


# Runs the script with games of at most 120 frames, and keeps what the environments gave and what it made of it.
RECORD = """
import functools, runpy, sys
import gymnasium as gym, torch
from cleanrl_utils import run
gym.make = functools.partial(gym.make, max_episode_steps=120)
step, reset = gym.vector.SyncVectorEnv.step, gym.vector.SyncVectorEnv.reset
seen, minibatches = [], []
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
        return update(*minibatch)
    return act, recorded_update
gym.vector.SyncVectorEnv.step, gym.vector.SyncVectorEnv.reset = recorded_step, recorded_reset
run.accelerate = recorded_accelerate
sys.argv[:] = sys.argv[1:]
end = runpy.run_path(sys.argv[0], run_name="__main__")
names = ["obs", "initial_state", "torch_dones", "torch_actions"]
names += ["logprobs", "advantages", "returns", "values", "next_values"]
torch.save({"seen": seen, "minibatches": minibatches, "agent": end["agent"].state_dict(),
    "final_obs": end["final_obs"], **{name: end[name] for name in names}}, "record.pt")
"""


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """Three iterations of four environments that learn nothing (learning rate 0): one policy played all of them."""
    runner = Runner(tmp_path_factory.mktemp("record"))
    flags = ["--no-cuda", "--num-envs", 4, "--num-steps", 40, "--num-minibatches", 2, "--total-timesteps", 480]
    runner.run("-c", RECORD, LSTM, *flags, "--learning-rate", 0, "--update-epochs", 2)
    (run_dir,) = runner.folder.glob("runs/*")
    return torch.load(runner.folder / "record.pt", weights_only=False) | {"curves": curves(run_dir)}


def replay(record, resets=True):
    """The whole run once more with PyTorch's LSTM, from zero and one environment at a time.

    What the script should have got as log-probabilities, values and next values of the last rollout, (40, 4).
    """
    agent = Agent(SimpleNamespace(single_action_space=SimpleNamespace(n=4)))
    agent.load_state_dict(record["agent"])
    lstm, seen = reference_lstm(agent), record["seen"]

    def forward(features, h, c):
        _, (h, c) = lstm(features.reshape(1, 1, 512), (h, c))
        return agent.actor(h).log_softmax(-1).flatten(), agent.critic(h).item(), h, c

    logprobs, values, next_values = np.zeros((3, 120, 4))
    with torch.no_grad():
        features = features_of(agent, torch.as_tensor(np.stack([x[0] for x in seen])))
        for env in range(4):
            h, c = torch.zeros(2, 1, 1, 128)
            for step in range(120):
                _, actions, terminations, truncations, final_obs = seen[step + 1]
                policy, values[step, env], h, c = forward(features[step, env], h, c)
                logprobs[step, env] = policy[actions[env]]
                if truncations[env]:
                    final_features = features_of(agent, torch.as_tensor(final_obs[env])[None])
                    _, next_values[step, env], _, _ = forward(final_features, h, c)
                elif not terminations[env]:
                    _, next_values[step, env], _, _ = forward(features[step + 1, env], h, c)
                if resets and (terminations[env] or truncations[env]):
                    h, c = torch.zeros(2, 1, 1, 128)
    return logprobs[-40:], values[-40:], next_values[-40:]


def test_run_computes_what_pytorchs_lstm_does_from_the_first_step_of_the_run_on(record):
    terminations, truncations = (np.array([x[k] for x in record["seen"][-40:]]) for k in (2, 3))
    assert terminations.any() and len(record["final_obs"]) == truncations.sum() > 0  # else this would test little
    assert record["torch_dones"].numpy().tolist() == (terminations | truncations).tolist()
    logprobs, values, next_values = replay(record)
    tolerance = {"rtol": 1e-4, "atol": 1e-6}
    np.testing.assert_allclose(record["logprobs"], logprobs, **tolerance)
    np.testing.assert_allclose(record["values"], values, **tolerance)
    np.testing.assert_allclose(record["next_values"].numpy()[~terminations], next_values[~terminations], **tolerance)
    assert not np.allclose(record["values"], replay(record, resets=False)[1], **tolerance)
    assert record["initial_state"].any()  # handed on from the rollout before


def test_ratios_are_one_while_nothing_is_learned(record):
    """In every minibatch of every epoch: its states are rebuilt as they were when the rollout was evaluated."""
    logged = record["curves"]
    assert len(logged["losses/approx_kl"]) == 3
    assert max(abs(value) for _, value in logged["losses/old_approx_kl"] + logged["losses/clipfrac"]) < 1e-6


def test_minibatches_are_whole_environments(record):
    minibatches = record["minibatches"]
    assert len(minibatches) == 3 * 2 * 2  # iterations, epochs, and minibatches in each of them
    epochs = minibatches[-4:-2], minibatches[-2:]  # those of the last rollout
    names = ["obs", "initial_state", "torch_dones", "torch_actions", "logprobs", "advantages", "returns", "values"]
    for epoch in epochs:
        columns = []
        for minibatch in epoch:
            for column in range(2):
                assert minibatch[0].shape[:2] == (40, 2)
                parts = [x[:, column] for x in minibatch]
                sources = [
                    [env for env in range(4) if torch.equal(part, record[name][:, env])]
                    for part, name in zip(parts, names, strict=True)
                ]
                (env,) = set.intersection(*(set(source) for source in sources))  # everything of one environment
                columns.append(env)
        assert sorted(columns) == [0, 1, 2, 3]


# Learning


# Runs the script on a task in place of a game: which half was lit in the first picture? All later ones are black.
MEMORY = """
import runpy, sys
from types import ModuleType, SimpleNamespace
import gymnasium as gym, numpy as np
class Memory(gym.Env):
    observation_space, action_space = gym.spaces.Box(0, 255, (84, 84), np.uint8), gym.spaces.Discrete(2)
    ale = SimpleNamespace(lives=lambda: 0)
    def get_action_meanings(self):
        return ["LEFT", "RIGHT"]
    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.step_number, self.side, self.last_step = 0, self.np_random.integers(2), self.np_random.integers(2, 6)
        picture = np.zeros((84, 84), np.uint8)
        picture[:, :42] = 255 * (self.side == 0)
        picture[:, 42:] = 255 * (self.side == 1)
        return picture, {}
    def step(self, action):
        reward = 0 if self.step_number == 0 else 1 if action == self.side else -1
        self.step_number += 1
        return np.zeros((84, 84), np.uint8), reward, self.step_number > self.last_step, False, {}
gym.register("Memory-v0", lambda **kwargs: Memory())
gym.wrappers.AtariPreprocessing = lambda env: env
sys.modules["ale_py"] = ModuleType("ale_py")
sys.argv[:] = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
def test_memory_is_learned(runner):
    """Two to five rewards of +1 or -1 an episode: 0 on average without a memory, whatever the policy; 3.5 with one."""
    flags = ["--no-cuda", "--env-id", "Memory-v0", "--num-steps", 16, "--num-minibatches", 1, "--update-epochs", 2]
    runner.run("-c", MEMORY, LSTM, *flags, "--learning-rate", "2e-3", "--total-timesteps", 4096)
    (run_dir,) = runner.folder.glob("runs/*")
    returns = [value for _, value in curves(run_dir)["charts/episodic_return"]]
    assert abs(np.mean(returns[:60])) < 1.5 and np.mean(returns[-100:]) > 2.5


# The trained policy


def test_policy_keeps_a_state_and_forgets_where_it_is_told(agent, rollout, tmp_path):
    x, _, dones, _ = rollout
    save_file(agent.state_dict(), tmp_path / "model.safetensors")
    envs = SimpleNamespace(single_action_space=SimpleNamespace(n=ACTIONS), num_envs=ENVS)
    policy = load_policy(tmp_path / "model.safetensors", envs)
    actions = []
    for obs, done in zip(x.numpy(), dones.numpy(), strict=True):
        actions.append(policy(obs))
        policy.reset(done)
    acted, _, handed_on = play(agent, x, torch.zeros(2, ENVS, 128), dones)
    assert isinstance(actions[0], np.ndarray)
    np.testing.assert_array_equal(actions, agent.actor(acted[:, 0]).argmax(-1))
    torch.testing.assert_close(policy.lstm_state.clone(), handed_on, rtol=1e-5, atol=1e-5)
    assert not policy.lstm_state[:, 2].any() and policy.lstm_state[:, :2].any()
    again = load_policy(tmp_path / "model.safetensors", envs)  # a policy of its own, that has seen nothing
    np.testing.assert_array_equal(again(x[0].numpy()), actions[0])


# Repeatable, resumable, evaluated


# Runs the script with games of at most 300 frames: the evaluation is over sooner.
SHORT_GAMES = """
import functools, runpy, sys
import gymnasium as gym
gym.make = functools.partial(gym.make, max_episode_steps=300)
sys.argv[:] = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
TINY = ["--no-cuda", "--num-envs", "2", "--num-steps", "16", "--num-minibatches", "2", "--total-timesteps", "320"]
TINY += ["--save-model"]


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory):
    runner = Runner(tmp_path_factory.mktemp("never_stopped"))
    runner.run("-c", SHORT_GAMES, LSTM, *TINY)
    return next(runner.folder.glob("runs/*"))


def test_resumed_run_equals_one_of_the_same_seed_that_never_stopped(runner, never_stopped):
    process = runner.start("-c", SHORT_GAMES, LSTM, *TINY, "--exp-name", "killed", "--checkpoint-frequency", "32")
    checkpoint = runner.wait_for("runs/*killed*/checkpoint.pt", process)
    time.sleep(0.2)
    process.kill()
    process.communicate()
    assert torch.load(checkpoint, weights_only=False)["global_step"] < 320
    result = runner.run("-c", SHORT_GAMES, LSTM, "--resume", checkpoint.parent)
    assert "episodes start again" not in result.stderr
    assert_same_run(never_stopped, checkpoint.parent)


def test_metrics_are_those_of_the_published_file(never_stopped):
    losses = "value_loss policy_loss entropy old_approx_kl approx_kl clipfrac explained_variance"
    published = {f"losses/{name}" for name in losses.split()}
    published |= {f"charts/{name}" for name in ["learning_rate", "SPS"]}
    logged = curves(never_stopped)
    for tag in published:
        assert [step for step, _ in logged[tag]] == list(range(32, 321, 32)), tag
    assert {"charts/episodic_return", "charts/episodic_length"} <= logged.keys()
    assert min(value for _, value in logged["losses/grad_norm"]) > 0


def test_evaluation_after_training_is_repeated_by_the_saved_model(never_stopped, monkeypatch):
    monkeypatch.setattr(gym, "make", functools.partial(gym.make, max_episode_steps=300))
    logged = [value for _, value in curves(never_stopped)["eval/episodic_return"]]
    model = never_stopped / "ppo_atari_lstm.safetensors"
    again = evaluate(model, "BreakoutNoFrameskip-v4", make_envs, load_policy, seed=1_000_001, device="cpu")
    assert len(logged) == 10 and again.returns == logged


# Mistakes


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--num-envs", "3", "--num-minibatches", "2"], ["3 envs", "2 minibatches of whole envs"]),
        (["--compile"], ["--compile", "minutes"]),
        (["--env-id", "BreakoNoFrameskip-v4"], ["no such Atari game"]),
        (["--env-id", "CartPole-v1"], ["no Atari game"]),
    ],
)
def test_mistake_gets_one_clear_line_and_leaves_nothing_on_disk(runner, flags, words):
    result = runner.run(LSTM, *flags, check=False)
    lines = [line for line in result.stderr.splitlines() if line.strip() and not re.match(r"A\.L\.E|\[Powered", line)]
    assert result.returncode != 0 and len(lines) == 1, result.stderr
    assert all(word in lines[0] for word in words), result.stderr
    assert not list(runner.folder.iterdir())
