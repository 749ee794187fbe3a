"""Policy and update give the same numbers in NumPy and as CUDA graphs. What is about the latter needs a GPU."""

import importlib
import os
from copy import deepcopy
from functools import partial
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from cleanrl import ppo, ppo_atari
from cleanrl_utils import accelerate as accelerate_module
from cleanrl_utils.accelerate import (
    MAX_RECORDINGS,
    NUMPY,
    WARMUP,
    accelerate,
    aten,
    bare_env_step,
    bare_step,
    bare_zero_grad,
    graphed,
    in_numpy,
    own_memory,
    recorded,
    wholes,
)

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CALLS = WARMUP + 7  # as it is, captured, replayed


@pytest.fixture(autouse=True)
def deterministic(monkeypatch):
    """As the scripts set it: then graphs and single kernels agree to the bit, or nearly so."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ":4096:8"))
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def make_agent(module, device="cuda"):
    torch.manual_seed(1)
    spaces = {"single_observation_space": gym.spaces.Box(-1, 1, (4,)), "single_action_space": gym.spaces.Discrete(4)}
    agent = module.Agent(SimpleNamespace(**spaces)).to(device)
    head = agent.actor if isinstance(agent.actor, nn.Linear) else agent.actor[-1]
    nn.init.normal_(head.weight, std=0.3)  # a policy far from uniform: an error in its input changes the actions
    return agent


def make_obs(module, *shape):
    if module is ppo_atari:
        return torch.randint(0, 256, (*shape, 4, 84, 84), dtype=torch.uint8, device="cuda")
    return torch.randn(*shape, 4, device="cuda")


def make_minibatches(module, sizes):
    torch.manual_seed(2)
    for size in sizes:
        targets = torch.randn(4, size, device="cuda") * 0.1  # logprobs, advantages, returns, values
        targets[0] -= 1.4  # about log 1/4: some ratios get clipped, and some do not
        yield make_obs(module, size), torch.randint(0, 4, (size,), device="cuda"), *targets


def make_update(module, agent):
    """The update of the script, and its learning rate: a tensor."""
    args, lr = module.Args(), torch.tensor(0.0, device="cuda")
    optimizer = torch.optim.Adam(agent.parameters(), lr, eps=1e-5, fused=True, capturable=True)

    def update(mb_obs, mb_actions, *mb_targets):
        optimizer.zero_grad()
        _, newlogprobs, entropy, newvalues = agent.get_action_and_value(mb_obs, mb_actions)
        loss, stats = module.ppo_loss(newlogprobs, entropy, newvalues, *mb_targets, args)
        loss.backward()
        stats = stats | {"grad_norm": nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)}
        optimizer.step()
        return stats

    return update, lr


def learn(module, sizes, wrap):
    """Parameters and statistics after an update on each minibatch, the learning rate falling meanwhile."""
    agent = make_agent(module)
    update, lr = make_update(module, agent)
    update, stats = wrap(update), []
    for i, minibatch in enumerate(make_minibatches(module, sizes)):
        lr.fill_(1e-3 * (1 - i / len(sizes)))
        stats.append(update(*minibatch))
    return dict(agent.named_parameters()), stats


def as_it_is(function):
    return function


modules = pytest.mark.parametrize("module", [ppo, ppo_atari], ids=lambda module: module.__name__)


# The policy


@needs_cuda
@modules
def test_graphed_policy_takes_the_same_actions_from_the_same_seed(module):
    agent, obs, actions = make_agent(module), make_obs(module, CALLS, 16), []
    for act in (agent.get_action, graphed(agent.get_action)):
        torch.manual_seed(3)
        actions.append(torch.stack([act(x) for x in obs]))
    assert (actions[0] == actions[1]).all()
    assert len(actions[0].unique()) == 4 and (actions[0][0] != actions[0][-1]).any()


@needs_cuda
@modules
def test_random_numbers_of_a_graphed_policy_continue_from_a_saved_state(module):
    agent, x = make_agent(module), make_obs(module, 64)
    act = graphed(agent.get_action)
    for _ in range(CALLS):
        act(x)
    state = torch.cuda.get_rng_state()
    # going on; back to the state; a process that resumes and begins with calls that are not replayed; without graphs
    futures = []
    for policy in (act, act, graphed(agent.get_action), agent.get_action):
        torch.cuda.set_rng_state(state)
        futures.append(torch.stack([policy(x) for _ in range(CALLS)]))
    for future in futures[1:]:
        assert (future == futures[0]).all()
    assert any((future != futures[0][0]).any() for future in futures[0][1:])  # new numbers at every call


@needs_cuda
def test_graphed_and_other_random_numbers_take_turns():
    """As in a script: actions from a graph, permutations without one."""
    agent, x, results = make_agent(ppo), make_obs(ppo, 64), []
    for act in (agent.get_action, graphed(agent.get_action)):
        torch.manual_seed(3)
        results.append([y for _ in range(CALLS) for y in (act(x), torch.randperm(64, device="cuda"))])
    assert all((a == b).all() for a, b in zip(*results, strict=True))


# The update


@needs_cuda
@modules
def test_graphed_updates_lead_to_the_same_parameters(module):
    sizes = [64] * CALLS
    (eager, eager_stats), (replayed, replayed_stats) = (learn(module, sizes, wrap) for wrap in (as_it_is, graphed))
    start = dict(make_agent(module).named_parameters())
    for name, parameter in eager.items():
        torch.testing.assert_close(replayed[name], parameter, rtol=1e-4, atol=1e-5)
        assert (parameter - start[name]).abs().max() > 5e-4  # they have moved far, compared with the tolerance
    for a, b in zip(eager_stats, replayed_stats, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            torch.testing.assert_close(b[name], a[name], rtol=1e-4, atol=1e-5)


@needs_cuda
def test_learning_rate_of_a_replayed_update_is_the_one_of_its_call():
    agent = make_agent(ppo)
    update, lr = make_update(ppo, agent)
    update = graphed(update)
    (minibatch,) = make_minibatches(ppo, [64])
    for rate in [1e-3] * CALLS + [0.0, 1e-3]:
        before = [p.detach().clone() for p in agent.parameters()]
        lr.fill_(rate)
        update(*minibatch)
        moved = any((p != old).any() for p, old in zip(agent.parameters(), before, strict=True))
        assert moved == (rate > 0)


@needs_cuda
@modules
def test_inputs_of_another_shape_get_a_graph_of_their_own(module):
    sizes = [64, 32] * CALLS + [64] * 2 + [32] * 2
    (eager, _), (replayed, _) = (learn(module, sizes, wrap) for wrap in (as_it_is, graphed))
    for name, parameter in eager.items():
        torch.testing.assert_close(replayed[name], parameter, rtol=1e-4, atol=1e-5)


# The wrapper itself


@needs_cuda
def test_constants_beside_tensors_get_a_graph_each():
    def function(x, scale, twice):
        return x * scale * (2 if twice else 1)

    replay, x = graphed(function), torch.ones(2, device="cuda")
    for _ in range(CALLS):
        for scale, twice in ((0.0, False), (3.0, False), (3.0, True)):
            assert replay(x, scale, twice).tolist() == [scale * (1 + twice)] * 2


@needs_cuda
def test_outputs_are_not_overwritten_by_later_calls():
    double = graphed(lambda x: {"twice": 2 * x, "nested": (x + 1, [x - 1])})
    outputs = [double(torch.full((3,), float(i), device="cuda")) for i in range(CALLS)]
    for i, output in enumerate(outputs):
        assert output["twice"].tolist() == [2 * i] * 3
        assert output["nested"][0].tolist() == [i + 1] * 3 and output["nested"][1][0].tolist() == [i - 1] * 3


@needs_cuda
def test_inputs_are_neither_kept_nor_changed():
    square = graphed(lambda x: x.mul_(x))  # a function that writes into its input
    for _ in range(CALLS):
        square(torch.ones(2, device="cuda"))
    x = torch.full((2,), 3.0, device="cuda")
    assert square(x).tolist() == [9, 9] and x.tolist() == [3, 3]
    x.fill_(4)
    assert square(x).tolist() == [16, 16]


@needs_cuda
def test_function_is_called_to_warm_up_and_capture_and_never_again():
    calls = []

    def function(x):
        calls.append(x.shape)
        return x + 1

    replay = graphed(function)
    for size in [2] * CALLS + [5] * CALLS + [2] * CALLS:
        assert replay(torch.zeros(size, device="cuda")).tolist() == [1] * size
    assert calls == [(2,)] * (WARMUP + 1) + [(5,)] * (WARMUP + 1)


# Without a GPU, or without being asked


def act(): ...
def backward(): ...
def update(): ...


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_functions_stay_as_they_are_if_that_is_asked_for(device):
    args = ppo.Args(cudagraphs=False)
    assert accelerate(args, torch.device(device), act, backward, update) == (act, backward, update)


def test_on_the_cpu_policy_and_backward_pass_become_recordings():
    faster = accelerate(ppo.Args(), torch.device("cpu"), act, backward, update)
    assert faster[0] is not act and faster[1] is not backward and faster[2] is update


def test_cuda_graphs_are_the_default_and_compiling_is_not():
    for module in (ppo, ppo_atari):
        assert module.Args().cudagraphs and not module.Args().compile


@needs_cuda
def test_on_the_gpu_policy_and_update_become_graphs():
    faster = accelerate(ppo.Args(), torch.device("cuda"), act, backward, update)
    assert faster[0] is not act and faster[1] is backward and faster[2] is not update


# The policy in NumPy

BOX = gym.spaces.Box(np.array([-1, -2, 0]), np.array([1, 3, 5]), dtype=np.float32)
POLICIES = {
    "ppo": ("Agent", gym.spaces.Discrete(3), ()),
    "ppo_continuous_action": ("Agent", BOX, ()),
    "rpo_continuous_action": ("Agent", BOX, ()),
    "dqn": ("QNetwork", gym.spaces.Discrete(3), ()),
    "c51": ("QNetwork", gym.spaces.Discrete(3), ()),
    "ddpg_continuous_action": ("Actor", BOX, (0.1,)),
    "td3_continuous_action": ("Actor", BOX, (0.1,)),
    "sac_continuous_action": ("Actor", BOX, (1.0,)),
}
policies = pytest.mark.parametrize("name", POLICIES)


def make_policy(name):
    class_name, action_space, constants = POLICIES[name]
    torch.manual_seed(1)
    spaces = {"single_observation_space": gym.spaces.Box(-1, 1, (7,)), "single_action_space": action_space}
    policy = getattr(importlib.import_module(f"cleanrl.{name}"), class_name)(SimpleNamespace(**spaces))
    for x in policy.parameters():
        nn.init.normal_(x, std=0.1)  # biases that are not zero, too
    return policy, constants


def actions_of(act, obs, constants):
    torch.manual_seed(2)
    return torch.stack([act(x, *constants).clone() for x in obs])


@policies
@pytest.mark.parametrize("num_envs", [1, 5])
def test_policy_in_numpy_takes_the_same_actions_with_the_same_random_numbers(name, num_envs):
    policy, constants = make_policy(name)
    obs = torch.randn(50, num_envs, 7)
    expected, actions = (actions_of(act, obs, constants) for act in (policy.get_action, in_numpy(policy.get_action)))
    assert actions.dtype == expected.dtype and len(actions.unique()) > 1
    torch.testing.assert_close(actions, expected, rtol=1e-5, atol=1e-5)


@policies
def test_policy_in_numpy_follows_its_parameters(name):
    policy, constants = make_policy(name)
    obs, act = torch.randn(50, 1, 7), in_numpy(policy.get_action)
    before = actions_of(act, obs, constants)
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.3, fused=True)
    sum((x**2).sum() for x in policy.parameters()).backward()
    optimizer.step()
    for buffer in policy.buffers():  # such as the statistics of observations
        buffer.mul_(1.5)
    after = actions_of(act, obs, constants)
    assert (after != before).any()
    torch.testing.assert_close(after, actions_of(policy.get_action, obs, constants), rtol=1e-5, atol=1e-5)
    other = make_policy(name)[0]
    policy.load_state_dict(other.state_dict())  # as on --resume
    torch.testing.assert_close(actions_of(act, obs, constants), before, rtol=1e-5, atol=1e-5)


@policies
def test_policy_in_numpy_is_translated_whole(name):
    """Otherwise the test above would compare PyTorch with itself."""
    policy, constants = make_policy(name)
    act = in_numpy(policy.get_action)
    act(torch.randn(1, 7), *constants)
    policy.get_action = policy.forward = None
    for layer in policy.modules():
        layer.forward = None
    act(torch.randn(1, 7), *constants)


def test_policy_with_an_unknown_operation_stays_in_pytorch():
    def act(x):
        return x.cumsum(-1)

    assert aten.cumsum.default not in NUMPY
    x = torch.randn(2, 3)
    assert (in_numpy(act)(x) == x.cumsum(-1)).all()


weight = nn.Parameter(torch.randn(3, 4))


@pytest.mark.parametrize(
    "act",
    [
        lambda x: x.chunk(2, 0)[1] * x.chunk(2, -1)[0].sum(),  # not a known operation: as it is
        lambda x: torch.cat(x.split(3, 0)),
        lambda x: x.split(3, 0)[1] - x.split(2, 1)[1].split(3)[0].exp()[:, :1],
        lambda x: x.clamp(min=0.3).add(x, alpha=2) + x.clamp(max=-0.2),
        lambda x: torch.sub(x, x.exp(), alpha=3),
        lambda x: x.clamp(min=0.3) * x.clamp(max=-0.2) + x.select(0, -1),
        lambda x: x + weight.select(1, 2)[0] * weight.select(0, 1),
        lambda x: (x * weight[:, 1].exp()[1]).argmax(0),
        lambda x: x.argmax(),
        lambda x: x.argmax(-1, True),
    ],
)
def test_whatever_a_changed_policy_does_gives_the_same_actions(act):
    in_numpy_ = in_numpy(act)
    for _ in range(3):
        x = torch.randn(6, 4)
        torch.testing.assert_close(torch.as_tensor(in_numpy_(x)), act(x), rtol=1e-5, atol=1e-6)
        with torch.no_grad():
            weight.add_(1)  # views of it that were copies would stay behind


def test_translating_uses_up_no_random_numbers():
    policy, _ = make_policy("ppo")
    torch.manual_seed(3)
    in_numpy(policy.get_action)(torch.randn(4, 7))
    after = torch.rand(1)
    torch.manual_seed(3)
    policy.get_action(torch.randn(4, 7))
    assert torch.rand(1) == after


# The memory of a graph's inputs, on any device


@needs_cuda
def test_compiled_functions_get_their_inputs_with_the_same_strides_in_a_graph():
    backward = torch.compile(
        lambda x: (x * 2).sum(1), options={"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
    )
    update = graphed(lambda x: {"sum": backward(x)})
    for _ in range(CALLS):
        x = torch.randn(6, 8, 5, device="cuda")[:, :4]  # a part, without the rest
        torch.testing.assert_close(update(x)["sum"], (x * 2).sum(1))


def test_parts_of_one_tensor_are_copied_at_once_and_keep_their_strides():
    parts = torch.randn(6, 10).split((3, 3, 4), -1)
    own, (flag, *copies) = own_memory((True, *parts))
    assert flag is True and len(own) == 1
    for copy, part in zip(copies, parts, strict=True):
        assert (copy == part).all() and copy.stride() == part.stride() and copy.data_ptr() != part.data_ptr()
    others = torch.randn(6, 10).split((3, 3, 4), -1)
    own[0].copy_(wholes((False, *others))[0])
    assert all((copy == other).all() for copy, other in zip(copies, others, strict=True))


def test_parts_of_several_tensors_are_copied_in_as_many_pieces():
    """As the replay buffers of pixels give them: frames from one tensor, outcomes from another, something else."""
    frames, outcomes, other = torch.randn(6, 8, 5).split(4, 1), torch.randn(6, 3).split(1, -1), torch.randn(6)
    inputs = *frames, *outcomes, other
    own, copies = own_memory(inputs)
    assert [x.shape for x in own] == [(6, 8, 5), (6, 3), (6,)]
    for copy, x in zip(copies, inputs, strict=True):
        assert (copy == x).all() and copy.stride() == x.stride() and copy.data_ptr() != x.data_ptr()


def test_parts_of_a_tensor_that_is_larger_are_copied_one_by_one():
    batch = torch.randn(8, 3)
    minibatch, other = batch.split(4)[0], torch.randn(4)
    for inputs in ((minibatch,), (minibatch, other), (other, minibatch)):
        own, copies = own_memory(inputs)
        assert [x.shape for x in own] == [x.shape for x in inputs] and all(a is b for a, b in zip(own, copies))
        assert all((a == b).all() for a, b in zip(copies, inputs, strict=True))


# Recorded backward passes

scale = 1.0  # a global number of "the script"


def make_learner():
    """A small network, its parameters, and a backward pass with what the scripts' have: noise, clipping, statistics."""
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(4, 16), nn.ReLU(inplace=True), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2))
    frozen = nn.Linear(4, 2)

    def backward(x, y):
        noise = torch.randn_like(y)
        loss = ((network(x) - frozen(x).detach() - y - noise).clamp(-2, 2) ** 2).mean() * scale
        loss.backward()
        return {"loss": loss.detach(), "norm": nn.utils.clip_grad_norm_(network.parameters(), 0.1)}

    return network, backward


def train(wrap, sizes, before=lambda step: None):
    network, backward = make_learner()
    backward, optimizer = wrap(backward), torch.optim.Adam(network.parameters(), 1e-2, fused=True)
    stats = []
    for step, size in enumerate(sizes):
        before(step)
        optimizer.zero_grad()
        stats.append(backward(torch.randn(size, 4), torch.randn(size, 2)))
        optimizer.step()
    return dict(network.named_parameters()), stats


def assert_identical(one, other):
    for a, b in zip((one[0], *one[1]), (other[0], *other[1]), strict=True):
        assert a.keys() == b.keys() and all((a[name] == b[name]).all() for name in a)


def test_recorded_backward_learns_the_same_to_the_bit_with_batches_of_several_sizes():
    assert_identical(train(recorded, [8, 8, 5, 8, 5, 8]), train(as_it_is, [8, 8, 5, 8, 5, 8]))


def test_recorded_backward_follows_statistics_that_are_updated_in_place():
    """As the observations' in ppo_continuous_action.py: buffers of the network."""
    results = []
    for wrap in (as_it_is, recorded):
        network, scale_of_inputs = nn.Linear(3, 1, bias=False), nn.Buffer(torch.ones(3))
        network.weight.data.fill_(1)

        def backward(x, network=network, scale_of_inputs=scale_of_inputs):
            loss = (network(x * scale_of_inputs) ** 2).mean()
            loss.backward()
            return {"loss": loss.detach()}

        replay, losses = wrap(backward), []
        for _ in range(3):
            network.zero_grad()
            losses.append(replay(torch.ones(2, 3))["loss"].item())
            scale_of_inputs.lerp_(torch.full((3,), 5.0), 0.5)
        results.append((losses, network.weight.grad.tolist()))
    assert results[0] == results[1] and len(set(results[0][0])) == 3


def test_recorded_backward_is_not_python_any_more():
    calls = []

    def wrap(backward):
        return recorded(lambda *inputs: (calls.append(1), backward(*inputs))[1])

    train(wrap, [8] * 10)
    assert len(calls) == 2  # to find the parameters, and to record


def test_recorded_backward_adds_to_gradients_that_are_there():
    gradients = []
    for wrap in (as_it_is, recorded):
        network, backward = make_learner()
        backward = wrap(backward)
        for _ in range(2):
            for x in network.parameters():
                x.grad = None
            for seed in (2, 3):
                torch.manual_seed(seed)
                backward(torch.randn(8, 4), torch.randn(8, 2))
        gradients.append([x.grad for x in network.parameters()])
    assert all((a == b).all() for a, b in zip(*gradients, strict=True))


def test_a_number_of_the_script_that_changes_is_noticed(monkeypatch):
    def halve(step):
        monkeypatch.setitem(globals(), "scale", 1.0 if step < 3 else 0.5)

    replayed = train(recorded, [8] * 6, halve)
    assert_identical(replayed, train(as_it_is, [8] * 6, halve))
    monkeypatch.setitem(globals(), "scale", 1.0)
    assert replayed[1][3]["loss"] != train(as_it_is, [8] * 6)[1][3]["loss"]


def test_a_number_that_keeps_changing_ends_the_recording_and_says_so(monkeypatch, capsys):
    def anneal(step):
        monkeypatch.setitem(globals(), "scale", 1 - step / 100)

    steps = [8] * (MAX_RECORDINGS + 5)
    assert_identical(train(recorded, steps, anneal), train(as_it_is, steps, anneal))
    lines = [line for line in capsys.readouterr().err.splitlines() if "keep changing" in line]
    assert len(lines) == 1 and "backward" in lines[0]


def test_backward_that_looks_at_values_stays_python_and_says_so(capsys):
    x = nn.Parameter(torch.ones(3))

    def backward(y):
        loss = (x * y).sum() if y.sum().item() > 0 else (x - y).sum()
        loss.backward()
        return {"loss": loss.detach()}

    backward = recorded(backward)
    assert backward(torch.full((3,), 2.0))["loss"] == 6 and backward(torch.full((3,), -2.0))["loss"] == 9
    assert capsys.readouterr().err.count("backward is not replayed") == 1


def test_long_backward_stays_as_it_is(monkeypatch):
    monkeypatch.setattr(accelerate_module, "MAX_OPERATIONS", 10)
    assert_identical(train(recorded, [8] * 4), train(as_it_is, [8] * 4))


def test_backward_with_convolutions_stays_as_it_is():
    network = nn.Conv2d(1, 2, 3)

    def backward(x):
        loss = (network(x) ** 2).mean()
        loss.backward()
        return {"loss": loss.detach()}

    replay, x, gradients = recorded(backward), torch.randn(2, 1, 8, 8), []
    for function in (backward, replay, replay):
        network.zero_grad()
        function(x)
        gradients.append(network.weight.grad)
    assert (gradients[0] == gradients[1]).all() and (gradients[0] == gradients[2]).all()


@pytest.mark.parametrize(
    "kind, options",
    [(torch.optim.Adam, {}), (torch.optim.Adam, {"amsgrad": True}), (torch.optim.Adam, {"weight_decay": 0.1})]
    + [(torch.optim.Adam, {"maximize": True, "betas": (0.5, 0.9), "eps": 1e-3}), (torch.optim.AdamW, {})],
)
def test_bare_step_of_an_optimizer_is_its_step(kind, options):
    """Also where a parameter has no gradient, the learning rate changes, and a state is loaded on the way."""
    results = []
    for bare in (False, True):
        torch.manual_seed(1)
        xs, lr = [nn.Parameter(torch.randn(n)) for n in (5, 3)], torch.tensor(0.1)
        optimizer = kind([{"params": xs[:1]}, {"params": xs[1:], "eps": 1e-4}], lr, fused=True, **options)
        if bare:
            optimizer.step = bare_step(optimizer)
            optimizer.zero_grad = bare_zero_grad(optimizer)
        for i in range(8):
            optimizer.zero_grad()
            assert xs[0].grad is None
            for x in xs[: 1 if i == 2 else 2]:
                x.grad = torch.randn(x.shape)
            lr.fill_(0.1 / (i + 1))
            optimizer.step()
            if i == 3:
                saved = deepcopy(optimizer.state_dict())
            if i == 5:
                optimizer.load_state_dict(saved)
        state = optimizer.state_dict()["state"].values()
        results.append(torch.cat([x.detach() for x in xs] + [x.flatten() for y in state for x in y.values()]))
    assert (results[0] == results[1]).all()


def same(a, b) -> bool:
    """Equality of what a step returns, types included."""
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, np.ndarray) and a.dtype == object:
        return b.dtype == object and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    return type(a) is type(b) and a == b


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "Hopper-v4"])
def test_bare_step_of_environments_is_their_step(env_id):
    """Through ends of episodes, terminated and truncated, with the observations and infos at these."""

    def make_env():
        env = gym.make(env_id, max_episode_steps=23)
        if isinstance(env.observation_space, gym.spaces.Discrete):
            env = gym.wrappers.FlattenObservation(env)
        return gym.wrappers.RecordEpisodeStatistics(env)

    make = partial(gym.vector.SyncVectorEnv, [make_env] * 3, copy=False, autoreset_mode="SameStep")
    ours, theirs = make(), make()
    ours.step = bare_env_step(ours)
    assert ours.step.__module__ == accelerate_module.__name__
    assert same(ours.reset(seed=1)[0], theirs.reset(seed=1)[0])
    ours.action_space.seed(1)
    ends = set()
    for _ in range(200):
        actions = ours.action_space.sample()
        ours_now, theirs_now = ours.step(actions), theirs.step(actions)
        for infos in (ours_now[-1], theirs_now[-1]):  # seconds differ
            infos.get("final_info", {}).get("episode", {}).pop("t", None)
        assert all(same(a, b) for a, b in zip(ours_now, theirs_now, strict=True))
        assert same(ours._autoreset_envs, theirs._autoreset_envs)
        ends |= {name for name, x in zip(("terminated", "truncated"), ours_now[2:4], strict=True) if x.any()}
        ours_now[1][:] = np.nan  # is the caller's own
    assert "truncated" in ends and ("terminated" in ends or env_id == "Pendulum-v1")


def test_other_environments_keep_their_step():
    thunks = [lambda: gym.make("CartPole-v1")]
    for options in ({"copy": True}, {"autoreset_mode": "NextStep"}):
        envs = gym.vector.SyncVectorEnv(thunks, **{"copy": False, "autoreset_mode": "SameStep"} | options)
        assert bare_env_step(envs) == envs.step
    blackjack = gym.vector.SyncVectorEnv([lambda: gym.make("Blackjack-v1")], copy=False, autoreset_mode="SameStep")
    assert bare_env_step(blackjack) == blackjack.step  # a tuple of observations

    class Mine(gym.vector.SyncVectorEnv):
        def step(self, actions):
            return super().step(1 - actions)

    mine = Mine(thunks, copy=False, autoreset_mode="SameStep")
    assert bare_env_step(mine) == mine.step


def test_an_optimizer_of_ones_own_keeps_its_step():
    class Mine(torch.optim.Adam):
        def step(self):
            self.param_groups[0]["params"][0].add_(1)

    x = nn.Parameter(torch.zeros(1))
    optimizer = Mine([x], 0.1, fused=True)
    optimizer.step = bare_step(optimizer)
    for _ in range(3):
        x.grad = torch.ones(1)
        optimizer.step()
    assert x.item() == 3
