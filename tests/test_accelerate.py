"""Recording, replaying and auditing a function: the same numbers to the bit, and nothing else changes."""

import functools
import gc
import importlib
import itertools
import os
import random
import sys
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from cleanrl_utils import accelerate as acceleration
from cleanrl_utils.accelerate import audit as audit_module
from cleanrl_utils.accelerate import compile_update, replay, variables
from cleanrl_utils.accelerate.audit import PERIOD, Audit, Snapshot
from cleanrl_utils.accelerate.program import make_program
from cleanrl_utils.accelerate.recording import record
from cleanrl_utils.accelerate.replay import MAX_KINDS, MAX_RECORDINGS, Replayed

CALLS = 8  # enough to be recorded, replayed and audited
devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


@pytest.fixture(autouse=True)
def as_in_the_scripts(request, monkeypatch):
    """Deterministic algorithms, one thread, fixed seeds; and no GPU where a test does not need it."""
    if "gpu" in request.keywords and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ":4096:8"))
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    seed()
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


def seed() -> None:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)


def bits(tree) -> list[bytes]:
    leaves = torch.utils._pytree.tree_leaves(tree)
    return [x.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes() for x in leaves]


def replays_of(function: Replayed) -> list:
    return [x for x in function.replays.values() if x is not function.function]


# What a function may do: each of these gives an update, the state it works on, and its inputs


def mlp(device):
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)


def learning(network, optimizer):
    def update(x):
        optimizer.zero_grad()
        loss = network(x).square().mean()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(network.parameters(), 0.5)
        optimizer.step()
        return {"loss": loss.detach(), "norm": norm}

    return update, {"network": network, "optimizer": optimizer}


def an_mlp(device):
    network = mlp(device)
    rate = torch.tensor(1e-2, device=device)
    return *learning(network, torch.optim.Adam(network.parameters(), rate, fused=True)), [(5, 3)]


def a_convolution(device):
    network = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)).to(device)
    return *learning(network, torch.optim.Adam(network.parameters(), 1e-2, fused=True)), [(5, 2, 8, 8)]


def an_lstm_cell(device):
    cell = nn.LSTMCell(3, 8).to(device)
    optimizer = torch.optim.Adam(cell.parameters(), 1e-2, fused=True)

    def update(x, hidden, memory):
        optimizer.zero_grad()
        for x_t in x.unbind():
            hidden, memory = cell(x_t, (hidden, memory))
        hidden.square().mean().backward()
        optimizer.step()
        return hidden.detach(), memory.detach()

    return update, {"cell": cell, "optimizer": optimizer}, [(4, 5, 3), (5, 8), (5, 8)]


def batch_norm(device):
    network = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).to(device)
    return *learning(network, torch.optim.Adam(network.parameters(), 1e-2, fused=True)), [(5, 3)]


def dropout(device):
    network = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.3), nn.Linear(8, 2)).to(device)
    return *learning(network, torch.optim.Adam(network.parameters(), 1e-2, fused=True)), [(5, 3)]


def autocast(device):
    network = mlp(device)
    optimizer = torch.optim.Adam(network.parameters(), 1e-2, fused=True)

    def update(x):
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = network(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return update, {"network": network, "optimizer": optimizer}, [(5, 3)]


def an_optimizer(kind, **settings):
    def make(device):
        network = mlp(device)
        return *learning(network, kind(network.parameters(), 1e-2, **settings)), [(5, 3)]

    return make


def losses(device):
    """Functions of PyTorch whose namesakes among the operations have other defaults, such as no mean."""
    network, functional = mlp(device), torch.nn.functional
    scale = network.scale = nn.Parameter(torch.zeros(1, device=device))
    optimizer = torch.optim.Adam(network.parameters(), fused=True)

    def function(x, y):
        optimizer.zero_grad()
        output, target = network(x), y.sigmoid()
        classes = y.argmax(-1)
        parts = [functional.binary_cross_entropy_with_logits(output, target), functional.mse_loss(output, y)]
        parts += [functional.binary_cross_entropy(output.sigmoid(), target), functional.huber_loss(output, y)]
        parts += [functional.smooth_l1_loss(output, y), functional.cross_entropy(output, classes)]
        parts += [functional.kl_div(output.log_softmax(-1), y.softmax(-1), reduction="batchmean")]
        parts += [functional.binary_cross_entropy_with_logits(output, target, reduction="none").sum()]
        parts += [scale.exp().expand(2).sum()]  # its gradient has a stride of 0
        sum(parts).backward()
        optimizer.step()
        return [x.detach() for x in parts]

    return function, {"network": network, "optimizer": optimizer}, [(4, 3), (4, 2)]


def in_place(device):
    total = torch.zeros(5, 3, device=device)

    def add(x):
        y = x.clone().mul_(2).add_(1)
        y[1:3].zero_()
        total.add_(y)
        total[0].fill_(7)
        return y, total.clone()

    return add, {"total": total}, [(5, 3)]


def views(device):
    weight = torch.randn(3, 4, device=device)

    def twist(x):
        columns = (x @ weight).t()
        first, rest = columns.split([1, 3])
        flat = rest.reshape(-1).view(3, 5).expand(2, 3, 5)
        return first.squeeze(0), flat.sum(0), weight.t()[1]

    return twist, {"weight": weight}, [(5, 3)]


def random_numbers(device):
    def draw(x):
        noise = torch.randn_like(x) + torch.rand(3, device=device)
        noise = noise + torch.empty_like(x).exponential_()
        return noise, torch.randperm(10, device=device), torch.randint(7, (4,), device=device)

    return draw, {"unused": torch.zeros(1, device=device)}, [(5, 3)]


def inference_mode(device):
    network = mlp(device)

    @torch.inference_mode()
    def act(x):
        logits = network(x)
        return (logits - torch.empty_like(logits).exponential_().log()).argmax(-1)

    return act, {"network": network}, [(5, 3)]


def several_optimizers(device):
    critic, actor, target = mlp(device), mlp(device), mlp(device)
    critic_optimizer = torch.optim.Adam(critic.parameters(), 1e-2, fused=True)
    actor_optimizer = torch.optim.Adam(actor.parameters(), 1e-2, fused=True)

    def update(x):
        critic_optimizer.zero_grad()
        (critic(x) - target(x).detach()).square().mean().backward()
        critic_optimizer.step()
        actor_optimizer.zero_grad()
        loss = (critic(torch.cat([actor(x), x[:, :1]], -1))).mean()
        loss.backward(inputs=list(actor.parameters()))
        actor_optimizer.step()
        with torch.no_grad():
            for target_param, param in zip(target.parameters(), critic.parameters()):
                target_param.lerp_(param, 0.1)
        return loss.detach()

    state = {"critic": critic, "actor": actor, "target": target, "critic_optimizer": critic_optimizer}
    return update, state | {"actor_optimizer": actor_optimizer}, [(5, 3)]


def double_backward(device):
    network = mlp(device)
    optimizer = torch.optim.Adam(network.parameters(), 1e-2, fused=True)

    def update(x):
        optimizer.zero_grad()
        y = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(network(y).sum(), y, create_graph=True)
        loss = gradient.square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return update, {"network": network, "optimizer": optimizer}, [(5, 3)]


FUNCTIONS = {
    "an MLP": an_mlp,
    "a convolution": a_convolution,
    "an LSTM cell": an_lstm_cell,
    "BatchNorm": batch_norm,
    "dropout": dropout,
    "autocast to bfloat16": autocast,
    "losses": losses,
    "operations in place": in_place,
    "views": views,
    "random numbers": random_numbers,
    "inference mode": inference_mode,
    "several optimizers": several_optimizers,
    "double backward": double_backward,
    "foreach SGD": an_optimizer(torch.optim.SGD, momentum=0.9, foreach=True),
    "fused AdamW": an_optimizer(torch.optim.AdamW, fused=True),
    "fused SGD": an_optimizer(torch.optim.SGD, fused=True),
    "plain RMSprop": an_optimizer(torch.optim.RMSprop, foreach=False),
}


def run_calls(make, wrap, device):
    """The results of some calls, all tensors after each of them, and random states."""
    seed()
    function, state, shapes = make(device)
    function = wrap(function, state)
    seen = []
    for _ in range(CALLS):
        outputs = function(*[torch.randn(shape, device=device) for shape in shapes])
        tensors = acceleration.named_tensors(state)
        gradients = [x.grad for x in tensors.values() if x.requires_grad and x.grad is not None]
        states = [torch.get_rng_state()] + ([torch.cuda.get_rng_state()] if device == "cuda" else [])
        seen.append(bits([outputs, list(tensors.values()), gradients, states]))
    return function, seen


@devices
@pytest.mark.parametrize("audited", [False, True], ids=["proven", "audited"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_replay_equals_the_function_to_the_bit(name, audited, device):
    _, written = run_calls(FUNCTIONS[name], lambda function, state: function, device)
    replayed, seen = run_calls(FUNCTIONS[name], functools.partial(Replayed, audited=audited), device)
    on_host = name == "plain RMSprop" and device == "cuda"  # its step counters are on the CPU, so it runs as written
    assert len(replays_of(replayed)) == (0 if on_host else 1)  # it was replayed indeed
    for call in range(CALLS):
        assert seen[call] == written[call], f"call {call}"
    assert len({tuple(x) for x in written}) == CALLS  # and each call did something


@devices
def test_inputs_of_other_shapes_and_other_flags_have_replays_of_their_own(device):
    network = mlp(device)

    def function(x, is_scaled):
        return network(x).detach() * (3 if is_scaled else 1)

    replayed = Replayed(function, {"network": network}, audited=False)
    for _ in range(CALLS):
        for size, is_scaled in itertools.product((4, 6), (False, True)):
            x = torch.randn(size, 3, device=device)
            assert bits(replayed(x, is_scaled)) == bits(function(x, is_scaled))
    assert len(replays_of(replayed)) == 4


@devices
def test_outputs_are_not_overwritten_by_the_next_call(device):
    replayed = Replayed(lambda x: {"a": x + 1, "b": x * 2}, {"unused": torch.zeros(1, device=device)}, audited=False)
    inputs = [torch.full((2,), float(i), device=device) for i in range(CALLS)]
    outputs = [replayed(x) for x in inputs]
    assert [x["a"].tolist() for x in outputs] == [[i + 1.0] * 2 for i in range(CALLS)]
    assert [x["b"].tolist() for x in outputs] == [[i * 2.0] * 2 for i in range(CALLS)]


@devices
def test_gradients_of_a_replay_are_those_of_its_call(device):
    network = mlp(device)

    def update(x):
        network.zero_grad()
        network(x).sum().backward()
        return x.sum()

    replayed = Replayed(update, {"network": network}, audited=False)
    for _ in range(CALLS):
        x = torch.randn(5, 3, device=device)
        replayed(x)
        got = bits([p.grad for p in network.parameters()])
        update(x)
        assert got == bits([p.grad for p in network.parameters()])
    assert replays_of(replayed)


@devices
def test_gradients_of_parameters_outside_the_state_are_set_as_well(device):
    network, other = mlp(device), mlp(device)

    def update(x):
        network.zero_grad()
        other.zero_grad()
        (network(x) * other(x)).sum().backward()
        return x.sum()

    replayed = Replayed(update, {"network": network}, audited=True)
    for _ in range(CALLS):
        x = torch.randn(5, 3, device=device)
        replayed(x)
        got = bits([p.grad for p in other.parameters()])
        update(x)
        assert got == bits([p.grad for p in other.parameters()])
    assert replays_of(replayed)


# Recording has no side effects


def test_recording_calls_the_function_once_and_changes_nothing_else():
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    calls, list_of_losses, optimizer = [], [], torch.optim.SGD(network.parameters(), 0.1)

    def update(x):
        calls.append(1)
        loss = network(x).mean() * np.random.rand() * random.random()
        loss.backward()  # without zero_grad: an additional call would add to the gradients
        list_of_losses.append(loss.item())
        return loss.detach()

    def train(wrap):
        seed()
        for module in network:
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
        network.zero_grad()
        calls.clear()
        list_of_losses.clear()
        function = wrap(update)
        outputs = [function(torch.randn(6, 3)) for _ in range(CALLS)]
        assert len(calls) == len(list_of_losses) == CALLS
        gradients = [p.grad for p in network.parameters()]
        random_states = random.getstate(), np.random.get_state()[1].tobytes(), np.random.get_state()[2]
        return bits([outputs, list(network.state_dict().values()), gradients, torch.get_rng_state()]), random_states

    written = train(lambda function: function)
    recorded = train(lambda function: lambda x: record(function, (x,), {"network": network})[0])
    assert recorded == written
    replayed = train(lambda f: Replayed(f, {"network": network, "optimizer": optimizer}, audited=True))
    assert replayed == written


def test_function_is_not_called_any_more_once_it_is_replayed():
    out_of_sight = [0] * 2000  # of a list as long as this, a recording watches the length only

    def function(x):
        out_of_sight[0] += 1
        return x + 1

    replayed = Replayed(function, {"unused": torch.zeros(1)}, audited=False)
    for _ in range(CALLS):
        replayed(torch.ones(2))
    assert out_of_sight[0] == 2


def test_error_in_a_recording_is_the_error_of_the_function_and_leaves_nothing_behind():
    network = mlp("cpu")

    def update(x):
        network(x).sum().backward()
        raise ValueError("too late")

    replayed = Replayed(update, {"network": network}, audited=True)
    with pytest.raises(ValueError, match="too late"):
        replayed(torch.ones(1, 3))
    once = bits([p.grad for p in network.parameters()])
    network.zero_grad()
    with pytest.raises(ValueError, match="too late"):
        update(torch.ones(1, 3))
    assert once == bits([p.grad for p in network.parameters()])  # not doubled
    assert not replayed.recordings and not replayed.replays
    assert torch._C._len_torch_dispatch_stack() == 0
    assert torch.overrides._get_current_function_mode() is None


def test_first_gradient_after_a_recording_that_failed_is_not_doubled():
    network = mlp("cpu")

    def update(x):
        loss = network(x).sum()
        loss.backward()
        loss.item()  # an obstacle
        return loss.detach()

    replayed, x = Replayed(update, {"network": network}, audited=True), torch.ones(1, 3)
    replayed(x)
    got = bits([p.grad for p in network.parameters()])
    network.zero_grad()
    update(x)
    assert got == bits([p.grad for p in network.parameters()])


# The program


def test_intermediate_tensors_are_freed_while_recording_and_while_replaying():
    alive = []
    sizes = torch.zeros(1)

    def function(x):
        first = x + 1
        reference = weakref.ref(first)
        second = first * 2
        del first
        third = second.exp()
        alive.append(reference() is not None)
        return third.sum() + sizes

    record(function, (torch.ones(10),), {})
    assert alive == [False]

    def chain(x):
        for _ in range(20):
            x = (x + 1).exp()
        return x.sum()

    _, recording = record(chain, (torch.zeros(1000),), {})
    counts = []

    def probe(*args, **kwargs):
        counts.append(sum(type(x) is torch.Tensor and x.shape == (1000,) for x in gc.get_objects()))
        return torch.sum(*args, **kwargs)

    (last,) = recording.graph.find_nodes(op="call_function", target=torch.ops.aten.sum.default)
    last.target = probe
    make_program(recording, proven=True)(torch.zeros(1000))
    assert counts[0] <= 3  # the input, and what is summed


def test_views_of_parameters_are_made_once_and_views_of_inputs_in_each_call():
    weight, total = torch.randn(3, 2), torch.zeros(2, 3)

    def function(x):
        total[0].add_(x[0])
        return x @ weight, weight.t().reshape(-1), total[0].clone()

    state = {"weight": weight, "total": total}
    _, recording = record(function, (torch.ones(4, 3),), state)
    program = make_program(recording, proven=False)
    names = [str(x.target) for x in recording.graph.nodes if x.op == "call_function"]
    assert names.count("aten.t.default") == 0
    assert names.count("aten.select.int") == 1  # x[0]
    assert "aten.clone.default" in names or "aten._unsafe_view.default" in names  # the reshape copies
    for _ in range(2):
        weight.normal_()
        before = total[0].clone()
        (product, flat, row), _ = program(x := torch.randn(4, 3))
        assert bits([product, flat, row]) == bits([x @ weight, weight.t().reshape(-1), before + x[0]])


def test_constants_are_computed_once_unless_they_are_written_or_returned():
    def function(x):
        constant = torch.zeros_like(x) + 1
        written = torch.zeros_like(x)
        read_before = written * 2
        written.add_(x)
        read_after = written * 2
        returned = torch.ones_like(x)
        return x * constant + read_before, read_after, written, returned, returned.view(3, 1)

    _, recording = record(function, (torch.full((3,), 5.0),), {})
    program = make_program(recording, proven=True)
    names = [x.target.__name__ for x in recording.graph.nodes if x.op == "call_function"]
    assert names == ["zeros_like", "add_", "mul", "ones_like", "mul", "add", "view"]  # zeros_like(x) + 1 is known
    for value in (5.0, 6.0):
        (total, twice, written, returned, view), _ = program(torch.full((3,), value))
        assert total.tolist() == written.tolist() == [value] * 3
        assert twice.tolist() == [2 * value] * 3
        assert returned.tolist() == view.flatten().tolist() == [1.0] * 3
        returned.zero_()  # does not reach the next call
        written.zero_()


def test_random_numbers_are_no_constants():
    def function(x):
        return x + torch.rand(3) + torch.zeros_like(x).uniform_()

    program = make_program(record(function, (torch.zeros(3),), {})[1], proven=True)
    results = [program(torch.zeros(3))[0][0].tolist() for _ in range(3)]
    assert results[0] != results[1] != results[2]


def test_parameters_are_seen_where_they_are_and_not_as_they_were():
    layer = nn.Linear(2, 2)

    def function(x):
        return layer(x).detach()

    program = make_program(record(function, (torch.ones(1, 2),), {"layer": layer})[1], proven=True)
    nn.init.constant_(layer.weight, 3.0)
    nn.init.constant_(layer.bias, 1.0)
    assert program(torch.ones(1, 2))[0][0].tolist() == [[7.0, 7.0]]


# Obstacles


class Chain:
    def __init__(self, depth):
        self.value = 0
        self.next = Chain(depth - 1) if depth else None


counter = 0
chain = Chain(3)
plain_list = [0]


class Holder:
    count = 0


def count_in_global(x):
    global counter
    counter += 1
    return x + 1


def count_in_list(x):
    plain_list.append(1)
    return x + 1


def count_in_class(x):
    Holder.count += 1
    return x + 1


def count_in_function(x):
    count_in_function.calls = getattr(count_in_function, "calls", 0) + 1
    return x + 1


class Slotted:
    __slots__ = ("count",)


slotted = Slotted()
slotted.count = 0


def count_in_slots(x):
    slotted.count += 1
    return x + 1


def count_far_away(x):
    chain.next.next.value += 1
    return x + 1


def draw_from_python(x):
    random.random()
    return x + 1


def draw_from_numpy(x):
    np.random.rand()
    return x + 1


python_generator, numpy_generator = random.Random(1), np.random.default_rng(1)


def draw_from_a_python_generator(x):
    python_generator.random()
    return x + 1


def draw_from_a_numpy_generator(x):
    numpy_generator.random()
    return x + 1


def branch(x):
    return x + 1 if x.sum() > 0 else x


def change_input(x):
    return x.add_(1)


torch_generator = torch.Generator().manual_seed(1)
weight = nn.Parameter(torch.ones(3))

OBSTACLES = [
    (lambda x: x * x.sum().item(), "it uses aten._local_scalar_dense"),
    (branch, "it uses aten._local_scalar_dense"),
    (torch.inference_mode()(branch), "it uses aten.is_nonzero"),
    (lambda x: x[x > 0], "it uses aten.index"),
    (lambda x: x.nonzero(), "it uses aten.nonzero"),
    (lambda x: x + float(x.numpy().sum()), "it uses numpy()"),
    (lambda x: x + np.asarray(x).sum(), "it uses __array__()"),
    (lambda x: x + x.tolist()[0], "it uses tolist()"),
    (lambda x: x + torch.rand(3, generator=torch_generator), "it has a random generator of its own"),
    (lambda x: x.to_sparse().to_dense(), "it uses"),
    (change_input, "it changes its inputs"),
    (lambda x: (x + 1, 3), "it returns something else than tensors"),
    (lambda x: x * weight, "it returns a tensor that needs a gradient"),
    (count_in_global, "it changes counter"),
    (torch.inference_mode()(count_in_global), "it changes counter"),
    (functools.partial(count_in_global), "it changes counter"),
    (count_in_list, "it changes plain_list"),
    (count_in_class, "it changes Holder"),
    (count_in_function, "it changes an attribute or default of count_in_function"),
    (count_in_slots, "it changes slotted"),
    (count_far_away, "it changes chain"),
    (draw_from_python, "it changes Python's random numbers"),
    (draw_from_numpy, "it changes NumPy's random numbers"),
    (draw_from_a_python_generator, "it changes python_generator"),
    (draw_from_a_numpy_generator, "it changes numpy_generator"),
    (nn.Identity(), "it is not a plain function"),
    (lambda x: x + torch.tensor(1.0), "it does something else in each call"),
]


@pytest.mark.parametrize("function, reason", OBSTACLES, ids=[reason for _, reason in OBSTACLES])
def test_obstacle_is_named_and_the_function_runs_as_written(function, reason, capsys):
    replayed = Replayed(function, {"unused": torch.zeros(1)}, audited=True)
    for i in range(CALLS):
        x = torch.ones(3) * (i + 1)
        outputs = replayed(x.clone())
        if "random" not in reason and "generator" not in reason:
            assert str(outputs) == str(function(x.clone()))
    assert not replays_of(replayed)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("--accelerate: ") and f"runs as written, as {reason}" in lines[0]


def test_counters_in_reach_of_modules_and_closures_are_seen():
    network = mlp("cpu")
    network.calls = 0
    hook_calls = []
    network[0].weight.register_hook(lambda gradient: hook_calls.append(1))

    def by_attribute(x):
        network.calls += 1
        return network(x).detach()

    def by_closure():
        count = 0

        def function(x):
            nonlocal count
            count += 1
            return x + 1

        return function

    def by_hook(x):
        network.zero_grad()
        network(x).sum().backward()
        return x + 1

    generator = (i for i in range(1000))
    numbers = itertools.count()
    elements = iter(range(1000))

    def by_generator(x):
        next(generator)
        return x + 1

    def by_count(x):
        next(numbers)
        return x + 1

    def by_iterator(x):
        next(elements)
        return x + 1

    def by_default(x, seen=[]):  # noqa: B006
        seen.append(1)
        return x + 1

    for function in (by_attribute, by_closure(), by_hook, by_generator, by_count, by_iterator, by_default):
        for _ in range(2):  # in the first call of by_hook, gradients are made
            _, recording = record(function, (torch.ones(2, 3),), {"network": network})
        assert "it changes" in recording.obstacle, function.__name__


@pytest.mark.parametrize("home", ["lib/site-packages", "lib/dist-packages", "any/folder"])
def test_objects_of_installed_libraries_are_not_looked_into(home, tmp_path, monkeypatch):
    """A thread of a progress bar changes it at any time, also where pip's `--target` or Debian has put it."""
    package = tmp_path / home / "some_bar"
    package.mkdir(parents=True)
    package.joinpath("__init__.py").write_text("")
    package.joinpath("std.py").write_text("class Bar:\n    ticks = 0\n")
    if home == "any/folder":
        package.with_name("some_bar-1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(package.parent)
    bar = importlib.import_module("some_bar.std").Bar
    assert not variables.is_open(bar)
    del sys.modules["some_bar.std"], sys.modules["some_bar"]


def test_objects_of_a_module_beside_the_script_are_looked_into(tmp_path, monkeypatch):
    tmp_path.joinpath("my_counters.py").write_text("class Counter:\n    ticks = 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    counter = importlib.import_module("my_counters").Counter
    assert variables.is_open(counter)
    del sys.modules["my_counters"]


def test_numbers_that_are_not_finite_are_no_change():
    mean, other = float("nan"), np.float64("nan")

    def function(x):
        return x + 1 if mean != other else x

    assert record(function, (torch.ones(1),), {})[1].obstacle == ""


def test_one_tensor_given_twice_is_an_obstacle():
    x, y = torch.ones(3), torch.zeros(3)
    replayed = Replayed(lambda a, b: a - b, {"unused": y}, audited=False)
    for _ in range(CALLS):
        assert replayed(x, x).tolist() == [0.0] * 3
    for _ in range(CALLS):
        assert replayed(x, y).tolist() == [1.0] * 3


def test_input_made_in_inference_mode_is_an_obstacle(capsys):
    """Such a tensor cannot tell whether it was changed."""
    with torch.inference_mode():
        x = torch.ones(3)
    replayed = Replayed(lambda x: x + 1, {"unused": torch.zeros(1)}, audited=True)
    for _ in range(CALLS):
        assert replayed(x).tolist() == [2.0] * 3
    assert not replays_of(replayed)
    assert "an input was made in inference mode" in capsys.readouterr().err


def test_one_and_true_are_two_kinds_of_inputs():
    replayed = Replayed(lambda x, scale: x * scale, {"unused": torch.zeros(1)}, audited=True)
    x = torch.ones(2, dtype=torch.bool)
    for _ in range(CALLS):
        for scale in (1, True, 1.0):
            assert replayed(x, scale).dtype == (x * scale).dtype
    assert len(replays_of(replayed)) == 3


def test_what_is_replayed_without_gradients_is_not_replayed_where_one_is_needed():
    network = mlp("cpu")
    replayed = Replayed(lambda x: network(x), {"network": network}, audited=True)
    for _ in range(CALLS):
        with torch.no_grad():
            assert not replayed(torch.ones(1, 3)).requires_grad
        assert replayed(torch.ones(1, 3)).requires_grad
    assert len(replays_of(replayed)) == 1
    replayed.last_audit()
    network.append(nn.Tanh())
    with pytest.raises(SystemExit):
        replayed.last_audit()


def test_function_that_does_something_else_each_time_is_recorded_four_times(monkeypatch, capsys):
    recorded = []

    def counting_record(*arguments, **named):
        recorded.append(1)
        return record(*arguments, **named)

    monkeypatch.setattr(replay, "record", counting_record)
    scale = [1.0]
    replayed = Replayed(lambda x: x * scale[0], {"unused": torch.zeros(1)}, audited=True)
    for i in range(10):
        scale[0] = 1.0 + i
        assert replayed(torch.ones(1)).item() == 1.0 + i
    assert len(recorded) == MAX_RECORDINGS == 4
    assert capsys.readouterr().err.count("it does something else in each call") == 1


def test_inputs_by_name_lists_and_dictionaries_run_as_written(capsys):
    def function(x, scale=1.0):
        x = x["x"] if isinstance(x, dict) else x[0] if isinstance(x, list | tuple) else x
        return x * scale

    replayed, x = Replayed(function, {"unused": torch.zeros(1)}, audited=True), torch.ones(2)
    for _ in range(CALLS):
        assert replayed(x, scale=2.0).tolist() == [2.0, 2.0]
        assert replayed([x]).tolist() == replayed((x,)).tolist() == replayed({"x": x}).tolist() == [1.0, 1.0]
        assert replayed(x, 3.0).tolist() == [3.0, 3.0]
    assert len(replays_of(replayed)) == 1 and not replayed.recordings
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_number_among_the_inputs_that_always_changes_is_not_recorded_for_ever(capsys):
    replayed = Replayed(lambda x, scale: x * scale, {"unused": torch.zeros(1)}, audited=True)
    for i in range(100):
        assert replayed(torch.ones(1), 0.5 * i).item() == 0.5 * i
    assert len(replayed.recordings) + len(replayed.replays) == MAX_KINDS
    assert "kinds of inputs" in capsys.readouterr().err


# The audit


def make_scaled():
    """A function whose number the script may change, replayed."""
    state = {"weight": torch.ones(3)}
    settings = SimpleNamespace(scale=2.0)

    def scaled(x):
        state["weight"].mul_(settings.scale)
        return x * state["weight"]

    replayed = Replayed(scaled, state, audited=True)
    replayed(torch.ones(3))
    replayed(torch.ones(3))
    state["weight"].fill_(1)
    (audit,) = replays_of(replayed)
    return settings, state, replayed, audit


def test_audits_are_on_calls_2_4_8_and_so_on_and_then_on_every_thousandth(monkeypatch):
    function = Replayed(lambda x: x + 1, {"unused": torch.zeros(1)}, audited=True)
    audited = []
    compare = Audit.compare
    monkeypatch.setattr(Audit, "compare", lambda self, inputs: (audited.append(self.calls), compare(self, inputs))[1])
    monkeypatch.setattr(audit_module, "SHARE", float("inf"))  # however long they take
    for _ in range(2 + 2 * PERIOD + 10):
        function(torch.ones(1))
    assert PERIOD == 1000
    assert audited == [2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 2000]


def test_later_audits_are_left_out_while_they_would_take_too_much_of_the_time(monkeypatch):
    function = Replayed(lambda x: x + 1, {"unused": torch.zeros(1)}, audited=True)
    clock = [0.0]
    monkeypatch.setattr(audit_module.time, "perf_counter", lambda: clock[0])
    for _ in range(2 + 600):
        function(torch.ones(1))
    (audit,) = replays_of(function)
    assert audit.passed == 512
    audit.seconds = 1.0  # the last audit took a second, so the next one has to wait for 200
    for audited, now in ((512, 199.0), (2000, 201.0)):
        clock[0] = now
        for _ in range(PERIOD):
            function(torch.ones(1))
        assert audit.passed == audited


def test_every_kind_of_inputs_is_audited_though_they_take_turns():
    scales = {True: 1.0, False: 1.0}

    def function(x, flag):
        return x * scales[flag]

    for changed in (True, False):
        scales[True] = scales[False] = 1.0
        replayed = Replayed(function, {"unused": torch.zeros(1)}, audited=True)
        for _ in range(2):
            replayed(torch.ones(1), True)
            replayed(torch.ones(1), False)
        scales[changed] = 2.0
        with pytest.raises(SystemExit):
            for _ in range(2):
                replayed(torch.ones(1), True)
                replayed(torch.ones(1), False)


def test_changed_number_ends_the_run_with_a_line_that_names_function_and_tensor():
    settings, state, replayed, audit = make_scaled()
    for _ in range(8):
        replayed(torch.ones(3))
    settings.scale = 3.0
    for _ in range(7):
        replayed(torch.ones(3))
    with pytest.raises(SystemExit) as end:
        replayed(torch.ones(3))
    assert str(end.value) == (
        "--accelerate on: the replay of `scaled` is wrong in its call 16: output 0 is not what it would be if the "
        "function ran as written. It was right in call 8; what was learned since may be wrong. Use --accelerate off "
        "for this file"
    )


def test_rounding_of_kernels_that_are_not_deterministic_is_no_fault_of_a_replay(monkeypatch):
    """On a GPU with --no-torch-deterministic; a replay that rounds differently stands for its kernels."""
    settings, state, replayed, audit = make_scaled()
    audit.replay = lambda x: x * state["weight"].mul_(settings.scale) * (1 + 1e-6)
    replayed(torch.ones(3))
    torch.use_deterministic_algorithms(False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    replayed(torch.ones(3))
    assert audit.passed == 2
    settings.scale = 3.0  # is found all the same
    replayed(torch.ones(3))
    with pytest.raises(SystemExit, match="does other operations now"):
        replayed(torch.ones(3))
    torch.use_deterministic_algorithms(True)
    settings.scale = 2.0
    with pytest.raises(SystemExit, match="output 0"):
        replayed.last_audit()


def test_last_audit_finds_what_changed_since_and_leaves_the_tensors_as_they_were():
    settings, state, replayed, audit = make_scaled()
    for _ in range(8):
        replayed(torch.ones(3))
    before = bits(state), torch.get_rng_state().tolist()
    replayed.last_audit()
    assert (bits(state), torch.get_rng_state().tolist()) == before
    settings.scale = 3.0
    with pytest.raises(SystemExit, match="the replay of `scaled` is wrong in its call 8"):
        replayed.last_audit()


def test_last_audit_of_a_run_goes_through_all_functions(monkeypatch):
    settings, state, replayed, audit = make_scaled()
    monkeypatch.setattr(acceleration, "replayed", [replayed])
    replayed(torch.ones(3))
    acceleration.last_audit()
    settings.scale = 3.0
    with pytest.raises(SystemExit):
        acceleration.last_audit()


def late(change):
    """Make a network and a function, let it be replayed, and audit it after a change."""
    network = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    settings = SimpleNamespace(numpy_noise=False)

    def update(x):
        optimizer.zero_grad()
        loss = network(x).square().mean()
        if settings.numpy_noise:
            loss = loss + np.random.rand()
        loss.backward()
        optimizer.step()
        return loss.detach()

    replayed = Replayed(update, {"network": network, "optimizer": optimizer}, audited=True)
    for _ in range(CALLS):
        replayed(torch.ones(4, 3))
    assert replays_of(replayed)
    change(network, optimizer, settings)
    replayed.last_audit()


def replace_layer(network, optimizer, settings):
    network[2] = nn.Linear(8, 2)


def replace_layer_by_its_copy(network, optimizer, settings):
    copy = nn.Linear(8, 2)
    copy.load_state_dict(network[2].state_dict())
    network[2] = copy


def move_memory(network, optimizer, settings):
    network[0].weight.data = network[0].weight.data.clone()


def draw_noise(network, optimizer, settings):
    settings.numpy_noise = True


def add_hook(network, optimizer, settings):
    network[0].weight.register_hook(lambda gradient: 2 * gradient)


def change_rate(network, optimizer, settings):
    optimizer.param_groups[0]["lr"] = 0.2


def add_layer(network, optimizer, settings):
    network.append(nn.Tanh())


CHANGES = [replace_layer, replace_layer_by_its_copy, move_memory, draw_noise, add_hook, change_rate, add_layer]


@pytest.mark.parametrize("change", CHANGES)
def test_audit_finds_a_change(change):
    with pytest.raises(SystemExit, match="--accelerate on: the replay of `update` is wrong in its call"):
        late(change)


def test_frozen_parameters_and_changed_flags_are_noticed_in_the_very_next_call():
    network, args = nn.Linear(3, 2), SimpleNamespace(scale=1.0, seed=1)
    optimizer = torch.optim.SGD(network.parameters(), 0.1)

    def update(x):
        optimizer.zero_grad()
        loss = args.scale * network(x).sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    replayed = Replayed(update, {"network": network, "optimizer": optimizer}, audited=True, args=args)
    for _ in range(CALLS):
        replayed(torch.ones(1, 3))
    assert replays_of(replayed)
    bias = network.bias.detach().clone()
    args.scale = 5.0
    replayed(torch.ones(1, 3))
    torch.testing.assert_close(network.bias.detach(), bias - 0.5)
    network.bias.requires_grad_(False)
    replayed(torch.ones(1, 3))
    torch.testing.assert_close(network.bias, bias - 0.5)


def test_audit_passes_if_nothing_changes_or_only_contents_do():
    late(lambda network, optimizer, settings: None)
    late(lambda network, optimizer, settings: network[0].reset_parameters())


def test_change_that_does_not_show_in_the_output_is_found():
    """A policy takes the same actions after a small change; still it is not the policy that was recorded."""
    network = nn.Linear(3, 2)
    settings = SimpleNamespace(temperature=1.0)

    def act(x):
        return (network(x) / settings.temperature).argmax(-1)

    replayed = Replayed(act, {"network": network}, audited=True)
    for _ in range(CALLS):
        replayed(torch.ones(1, 3))
    settings.temperature = 0.5
    with pytest.raises(SystemExit, match="other operations"):
        replayed.last_audit()


def test_policy_whose_weights_have_moved_is_found():
    network = nn.Linear(3, 2)
    replayed = Replayed(lambda x: network(x).argmax(-1), {"network": network}, audited=True)
    for _ in range(CALLS):
        replayed(torch.ones(1, 3))
    network.weight.data = network.weight.data.clone()  # the replay goes on reading the old ones
    with pytest.raises(SystemExit, match="other operations"):
        replayed.last_audit()


def test_train_and_eval_have_replays_of_their_own():
    network = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5))

    def act(x):
        return network(x).detach()

    replayed = Replayed(act, {"network": network}, audited=True)
    for _ in range(CALLS):
        network.eval()
        x = torch.randn(4, 3)
        assert bits(replayed(x)) == bits(network[0](x))
        network.train()
        state = torch.get_rng_state()
        got = replayed(x)
        torch.set_rng_state(state)
        assert bits(got) == bits(act(x))
    assert len(replays_of(replayed)) == 2
    replayed.last_audit()


def test_snapshot_restores_tensors_gradients_and_random_states():
    network = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    network(torch.randn(4, 3)).square().mean().backward()
    network[0].bias.grad = None
    live = acceleration.named_tensors({"network": network})
    gradient = network[0].weight.grad
    before = bits(list(live.values())), bits(gradient), torch.get_rng_state().tolist()
    snapshot = Snapshot(live)
    for x in live.values():
        x.detach().add_(1)
    gradient.add_(1)
    network[0].weight.grad = torch.zeros(2, 3)
    network[0].bias.grad = torch.zeros(2)
    torch.rand(1)
    now = Snapshot(live)
    unchanged = {"the gradient of network.1.weight", "the gradient of network.1.bias"}
    assert set(snapshot.differences(now)) == {*snapshot.tensors, *now.tensors, "the random state"} - unchanged
    snapshot.restore(now)
    assert (bits(list(live.values())), bits(gradient), torch.get_rng_state().tolist()) == before
    assert network[0].weight.grad is gradient and network[0].bias.grad is None
    assert snapshot.differences(Snapshot(live)) == []


def test_audit_between_a_loss_and_its_backward_pass_does_not_disturb_it():
    network = mlp("cpu")
    act = Replayed(lambda x: network(x).argmax(-1), {"network": network}, audited=True)
    for _ in range(CALLS):
        loss = network(torch.ones(1, 3)).sum()
        act(torch.ones(1, 3))
        loss.backward()
    assert replays_of(act)


def test_function_that_calls_the_other_one_is_replayed_with_it():
    network = mlp("cpu")
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    state = {"network": network, "optimizer": optimizer}
    act = Replayed(lambda x: network(x).argmax(-1), state, audited=True)

    def update(x):
        optimizer.zero_grad()
        loss = network(x).square().mean() * (1 + act(x).float().mean())
        loss.backward()
        optimizer.step()
        return loss.detach()

    both = [Replayed(update, state, audited=True), update]
    start = [p.detach().clone() for p in network.parameters()]
    results = []
    for function in both:
        with torch.no_grad():
            for p, x in zip(network.parameters(), start):
                p.copy_(x)
        seed()
        results.append(bits([function(torch.randn(5, 3)) for _ in range(CALLS)]))
    assert results[0] == results[1]
    assert replays_of(both[0])


def test_tensor_made_in_inference_mode_is_no_trouble_for_an_audit():
    network = mlp("cpu")
    with torch.inference_mode():
        network.mean = nn.Buffer(torch.zeros(3))

    @torch.inference_mode()
    def act(x):
        network.mean.lerp_(x.mean(0), 0.1)
        return network(x - network.mean).argmax(-1)

    replayed = Replayed(act, {"network": network}, audited=True)
    for _ in range(CALLS):
        replayed(torch.randn(2, 3))
    assert replays_of(replayed)
    replayed.last_audit()


def test_audited_call_has_the_effects_of_one_call():
    state = {"total": torch.zeros(1)}

    def add(x):
        state["total"].add_(x)
        return state["total"].clone() + 0 * torch.rand(1)

    replayed = Replayed(add, state, audited=True)
    torch.manual_seed(3)
    totals = [replayed(torch.ones(1)).item() for _ in range(40)]
    assert totals == [1.0 + i for i in range(40)]
    drawn = torch.rand(1)
    torch.manual_seed(3)
    for _ in range(40):
        torch.rand(1)
    assert drawn == torch.rand(1)


# What the scripts call


def settings(**kwargs):
    return SimpleNamespace(**({"accelerate": "on", "compile": False} | kwargs))


def accelerated(tmp_path, **kwargs):
    script = tmp_path / "mine.py"
    script.write_text("")
    network = mlp("cpu")

    def act(x):
        return network(x).detach()

    def update(x):
        return network(x).detach().sum()

    return (act, update), acceleration.accelerate(settings(**kwargs), str(script), act, update, {"network": network})


def test_off_hands_the_functions_back(tmp_path):
    given, got = accelerated(tmp_path, accelerate="off")
    assert got == given


def test_auto_hands_the_functions_of_an_unknown_script_back_and_says_so_once(tmp_path, capsys):
    given, got = accelerated(tmp_path, accelerate="auto")
    assert got == given
    (line,) = capsys.readouterr().err.splitlines()
    assert "mine.py runs as written" in line and "--accelerate on" in line


def test_auto_replays_a_proven_script_without_audits(tmp_path, monkeypatch):
    monkeypatch.setattr(acceleration.proofs, "why_not_proven", lambda script, device: "")
    _, functions = accelerated(tmp_path, accelerate="auto")
    for function in functions:
        for _ in range(4):
            function(torch.ones(1, 3))
        (replayed,) = replays_of(function)
        assert not isinstance(replayed, Audit)
    assert acceleration.replayed == list(functions)


def test_on_replays_with_audits(tmp_path, capsys):
    _, functions = accelerated(tmp_path, accelerate="on")
    for function in functions:
        for _ in range(4):
            function(torch.ones(1, 3))
        assert isinstance(replays_of(function)[0], Audit)
    assert capsys.readouterr().err == ""


def test_compile_compiles_the_recording_of_a_proven_update_and_the_function_itself_otherwise(tmp_path, monkeypatch):
    for choice in ("off", "auto", "on"):
        (act, update), (_, compiled) = accelerated(tmp_path, accelerate=choice, compile=True)
        assert not isinstance(compiled, Replayed) and compiled is not update
    monkeypatch.setattr(acceleration.proofs, "why_not_proven", lambda script, device: "")
    _, (_, compiled) = accelerated(tmp_path, accelerate="auto", compile=True)
    assert isinstance(compiled, Replayed) and compiled.compiled


def test_compile_compiles_a_policy_only_if_it_is_proven(tmp_path, monkeypatch):
    for choice in ("off", "auto"):
        (act, _), (same_act, _) = accelerated(tmp_path, accelerate=choice, compile=True)
        assert same_act is act
    _, (act, _) = accelerated(tmp_path, accelerate="on", compile=True)
    assert not act.compiled  # its audits compare bits
    monkeypatch.setattr(acceleration.proofs, "why_not_proven", lambda script, device: "")
    _, (act, _) = accelerated(tmp_path, accelerate="auto", compile=True)
    assert act.compiled


@pytest.mark.parametrize(
    "choice, is_proven, lines", [("auto", False, 2), ("on", False, 1), ("auto", True, 0), ("off", False, 0)]
)
def test_compiling_an_unproven_update_on_a_gpu_is_said_to_be_slow(
    choice, is_proven, lines, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(
        acceleration, "named_tensors", lambda state: {"x": SimpleNamespace(device=torch.device("cuda"))}
    )
    if is_proven:
        monkeypatch.setattr(acceleration.proofs, "why_not_proven", lambda script, device: "")
    accelerated(tmp_path, accelerate=choice, compile=True)
    printed = capsys.readouterr().err.splitlines()
    assert len(printed) == lines
    assert not lines or "--accelerate on without --compile" in printed[0]


@devices
def test_compiled_recording_learns_the_same_up_to_rounding(device, monkeypatch):
    """With fused Adam, which the compiler does not look into; learning rates that change are seen.

    A target network is read and changed, before the optimizer's step and after it.
    """
    monkeypatch.setattr("torch._inductor.config.fallback_random", True)  # the random numbers that eager code draws
    networks = []

    def train(is_compiled):
        seed()
        network, target, rate = mlp(device), mlp(device), torch.tensor(0.1, device=device)
        optimizer = torch.optim.Adam(network.parameters(), rate, fused=True)

        @torch.no_grad()
        def follow():
            for x, y in zip(target.parameters(), network.parameters()):
                x.lerp_(y, 0.3)

        def update(x):
            optimizer.zero_grad()
            goal = target(x).detach()
            follow()
            loss = (network(x + torch.randn_like(x)) - goal - target(x).detach()).pow(2).mean()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 0.5)
            optimizer.step()
            follow()
            return loss.detach()

        state = {"network": network, "target": target, "optimizer": optimizer}
        function = Replayed(update, state, audited=False, compiled=True) if is_compiled else update
        for i in range(CALLS):
            rate.fill_(0.1 / (i + 1))
            function(torch.randn(4, 3, device=device))
        networks.append(nn.ModuleList([network, target]))
        return function

    train(is_compiled=False)
    assert replays_of(train(is_compiled=True))
    for written, compiled in zip(networks[0].parameters(), networks[1].parameters(), strict=True):
        torch.testing.assert_close(written, compiled)


def test_warming_up_a_program_leaves_everything_as_it_was():
    network = mlp("cpu")
    optimizer = torch.optim.Adam(network.parameters(), torch.tensor(0.1), fused=True)

    def update(x):
        optimizer.zero_grad()
        loss = network(x + torch.randn_like(x)).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    state = {"network": network, "optimizer": optimizer}
    x = torch.randn(4, 3)
    for _ in range(2):  # in the first call the optimizer makes its moments
        _, recording = record(update, (x,), state)
    program = make_program(recording, proven=True)

    def everything():
        gradients = [p.grad for p in network.parameters()]
        return bits([*variables.named_tensors(state).values(), *gradients, torch.get_rng_state()])

    before, inside = everything(), []
    replay.warm_up(lambda x: inside.append((program(x), everything())), [x], recording)
    assert everything() == before
    assert inside[0][1] != before  # it did run


@pytest.mark.parametrize("has_loose_parameter", [False, True], ids=["in modules", "also outside modules"])
def test_compiled_update_sees_changes_of_args_flags_and_the_learning_rate(has_loose_parameter):
    args = SimpleNamespace(scale=1.0)
    layer, loose = nn.Linear(2, 1, bias=False), nn.Parameter(torch.zeros(2))
    nn.init.zeros_(layer.weight)
    learned = [layer.weight, loose] if has_loose_parameter else [layer.weight]
    rate = torch.tensor(1.0)
    optimizer = torch.optim.SGD(learned, rate, fused=True)

    def update(x, is_doubled):
        optimizer.zero_grad()
        loss = layer(x).sum()
        if has_loose_parameter:
            loss = loss + (x * loose).sum()
        if is_doubled:
            loss = 2 * loss
        loss = args.scale * loss
        loss.backward()
        optimizer.step()
        return loss.detach()

    torch._dynamo.reset()
    compiled = compile_update(update, {"layer": layer, "optimizer": optimizer})
    calls = [(1, 1, False), (1, 0.5, False), (3, 1, False), (1, 1, True), (5, 1, True), (1, 1, False)]
    expected = 0.0
    for scale, lr, is_doubled in calls:
        args.scale = float(scale)
        rate.fill_(lr)
        compiled(torch.ones(2), is_doubled)
        expected -= scale * lr * (1 + is_doubled)
        for parameter in learned:
            assert parameter.flatten().tolist() == [expected] * 2


# CUDA graphs


@pytest.mark.gpu
def test_random_numbers_of_a_graph_continue_and_take_turns_with_others():
    def draw(x):
        return x + torch.randn_like(x)

    x, results = torch.zeros(64, device="cuda"), []
    for function in (draw, Replayed(draw, {"x": x}, audited=False)):
        torch.manual_seed(3)
        results.append([y for _ in range(CALLS) for y in (function(x), torch.randperm(64, device="cuda"))])
    assert bits(results[0]) == bits(results[1])
    assert len({tuple(y.tolist()) for y in results[1]}) == 2 * CALLS


@pytest.mark.gpu
def test_random_numbers_of_a_graph_continue_from_a_saved_state():
    def draw(x):
        return x + torch.randn_like(x)

    x = torch.zeros(64, device="cuda")
    replayed = Replayed(draw, {"x": x}, audited=False)
    for _ in range(CALLS):
        replayed(x)
    state = torch.cuda.get_rng_state()
    futures = []
    for function in (replayed, replayed, draw, Replayed(draw, {"x": x}, audited=False)):
        torch.cuda.set_rng_state(state)
        futures.append(bits([function(x) for _ in range(CALLS)]))
    assert futures[0] == futures[1] == futures[2] == futures[3]


@pytest.mark.gpu
def test_what_cannot_be_captured_runs_as_written(capsys, monkeypatch):
    network = mlp("cuda")

    def update(x):
        network.zero_grad()
        loss = network(x).sum() + torch.randn((), device="cuda")
        loss.backward()
        return loss.detach()

    make_program_of = replay.make_program

    def make_program_that_waits(*arguments, **named):
        program = make_program_of(*arguments, **named)

        def waiting(*inputs):
            outputs = program(*inputs)
            torch.cuda.synchronize()  # not allowed while a graph is captured
            return outputs

        return waiting

    monkeypatch.setattr(replay, "make_program", make_program_that_waits)
    results = []
    for function in (update, Replayed(update, {"network": network}, audited=True)):
        torch.manual_seed(3)
        outputs = [function(torch.ones(4, 3, device="cuda")) for _ in range(CALLS)]
        results.append(bits([outputs, [p.grad for p in network.parameters()], torch.rand(3, device="cuda")]))
    assert results[0] == results[1]
    assert not replays_of(function)
    assert "it cannot be captured" in capsys.readouterr().err


@pytest.mark.gpu
def test_tensors_of_several_devices_are_an_obstacle(capsys):
    on_cpu = torch.ones(2)
    replayed = Replayed(lambda x: x + on_cpu.to("cuda"), {"x": on_cpu}, audited=True)
    for _ in range(CALLS):
        assert replayed(torch.ones(2, device="cuda")).tolist() == [2.0, 2.0]
    assert not replays_of(replayed)
    assert "several devices" in capsys.readouterr().err


@pytest.mark.gpu
def test_audit_on_a_gpu_finds_a_change():
    network = mlp("cuda")
    numbers = SimpleNamespace(scale=1.0)

    def act(x):
        return numbers.scale * network(x).detach()

    replayed = Replayed(act, {"network": network}, audited=True)
    for _ in range(CALLS):
        replayed(torch.ones(4, 3, device="cuda"))
    assert replays_of(replayed)
    replayed.last_audit()
    numbers.scale = 2.0
    with pytest.raises(SystemExit, match="output 0"):
        replayed.last_audit()
