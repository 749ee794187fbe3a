"""Watch a function work, and note what it does to tensors, operation by operation.

A recording is made of an ordinary call. The function runs exactly as written while a `TorchDispatchMode` notes every
operation on its way to PyTorch's kernels, those of the backward pass and of the optimizer included. So recording has no
side effects: no additional call, no gradient left behind, no random number drawn twice.

A recording does not see Python. What it cannot see makes the recordings of two calls differ (a number that changes, a
tensor made from NumPy), or is an obstacle: a value that the host reads, a variable that the function changes.
"""

import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import TreeSpec, tree_flatten
from torch.utils.weak import WeakTensorKeyDictionary

from cleanrl_utils.accelerate.variables import changes, named_tensors, plain_function, variables_in_reach

# These let the host read values, or give a result whose shape depends on values. A recording would freeze both.
HOST_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
# The contents of these results depend on nothing but numbers.
FILLS = {torch.ops.aten.ones_like.default, torch.ops.aten.zeros_like.default, torch.ops.aten.full_like.default}
FILLS |= {torch.ops.aten.new_zeros.default, torch.ops.aten.new_ones.default, torch.ops.aten.new_full.default}
# On a CPU these hand values to the host without any operation.
HOST_READS = {torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.__array__, torch.Tensor.__dlpack__}
BUILTIN = types.BuiltinFunctionType | types.MethodDescriptorType


@dataclass(frozen=True)
class Slot:
    """Stands for a tensor in a recording: an input, one from outside (a parameter, say) or a result."""

    number: int


@dataclass
class Operation:
    name: str
    call: Callable
    args: tuple  # with slots in the place of tensors
    kwargs: dict
    results: Any  # likewise
    writes: list[Slot]  # the arguments that it changes in place
    is_view: bool  # whether its results are views of its arguments
    is_random: bool

    @cached_property
    def text(self) -> str:
        return f"{self.results} = {self.name}(*{self.args}, **{self.kwargs})"


@dataclass
class Recording:
    """What a call did; `obstacle` says why that cannot be replayed, if it cannot."""

    inputs: list[Slot] = field(default_factory=list)
    outer: dict[Slot, torch.Tensor] = field(default_factory=dict)
    places: list[int] = field(default_factory=list)  # of the outer tensors in memory
    operations: list[Operation] = field(default_factory=list)
    base: dict[Slot, Slot] = field(default_factory=dict)  # of a view: the slot whose memory it shows
    fills: dict[Slot, torch.Tensor] = field(default_factory=dict)
    outputs: list[Slot] = field(default_factory=list)
    structure: TreeSpec | None = None
    gradients: list[tuple[torch.Tensor, Slot]] = field(default_factory=list)  # of parameters that got a new one
    obstacle: str = ""

    def same_as(self, other: "Recording") -> bool:
        """Whether two calls did the same operations on the same tensors, with the same numbers."""
        return (
            [x.text for x in self.operations] == [x.text for x in other.operations]
            and [(slot, id(x)) for slot, x in self.outer.items()] == [(slot, id(x)) for slot, x in other.outer.items()]
            and self.places == other.places
            and [(id(x), slot) for x, slot in self.gradients] == [(id(x), slot) for x, slot in other.gradients]
            and (self.outputs, self.structure) == (other.outputs, other.structure)
        )


class Recorder(TorchDispatchMode):
    """Notes the operations of a call. It holds tensors weakly, so that they are freed as if it were not there."""

    def __init__(self, inputs: Iterable[torch.Tensor], finds_fast: bool):
        super().__init__()
        self.finds_fast = finds_fast
        self.slots = WeakTensorKeyDictionary()
        self.count = 0
        self.devices = set()
        self.recording = Recording()
        self.recording.inputs = [self.new_slot(x) for x in inputs]

    def new_slot(self, x: torch.Tensor) -> Slot:
        slot = self.slots[x] = Slot(self.count)
        self.count += 1
        self.devices.add(x.device.type)
        return slot

    def slot_of(self, x: Any) -> Any:
        """The slot of a tensor, and any other value itself. A tensor that no operation has made comes from outside."""
        if not isinstance(x, torch.Tensor):
            return x
        if x not in self.slots:
            self.recording.outer[self.new_slot(x)] = x
        return self.slots[x]

    def has_made(self, x: torch.Tensor) -> bool:
        """Whether a tensor is the result of an operation that was recorded."""
        slot = self.slots.get(x)
        return slot is not None and slot not in self.recording.outer and slot not in self.recording.inputs

    def refuse(self, obstacle: str) -> None:
        self.recording.obstacle = self.recording.obstacle or obstacle

    def __torch_dispatch__(self, op: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if op.namespace == "profiler":
            return op(*args, **kwargs)
        noted_args, noted_kwargs = map_leaves(self.slot_of, (args, kwargs))
        call = find_fast(op, args, kwargs) if self.finds_fast and not self.recording.obstacle else op
        results = op(*args, **kwargs)
        if self.recording.obstacle:
            return results
        if op is torch.ops.aten.detach.default:  # the same memory; what is replayed has no use for the difference
            self.slots[results] = noted_args[0]
            return results
        facts = facts_of(op)
        given_tensors, made_tensors = tensors_in((args, kwargs)), tensors_in(results)
        has_mask = any(x.dtype in (torch.bool, torch.uint8) for x in given_tensors[1:])
        is_gather = op is torch.ops.aten.index.Tensor and not has_mask  # by numbers: the shape is known
        is_frozen = facts.depends_on_values and not is_gather
        if op.namespace != "aten" or is_frozen or isinstance(results, bool | int | float):
            self.refuse(f"it uses {op}")
        if kwargs.get("generator") is not None:
            self.refuse("it has a random generator of its own")
        if any(x.layout is not torch.strided for x in given_tensors + made_tensors):
            self.refuse("it uses sparse tensors")
            return results
        shown = {x.untyped_storage()._cdata: x for x in given_tensors}
        for x in made_tensors:
            if x not in self.slots:
                slot = self.new_slot(x)
                if x.untyped_storage()._cdata in shown:
                    viewed = self.slots[shown[x.untyped_storage()._cdata]]
                    self.recording.base[slot] = self.recording.base.get(viewed, viewed)
        noted_results = map_leaves(self.slot_of, results)
        given = dict(zip(facts.arguments, noted_args)) | noted_kwargs
        writes = slots_in([given.get(name) for name in facts.written])
        if op in FILLS:
            self.recording.fills[noted_results] = results.clone()
        is_view = not writes and any(slot in self.recording.base for slot in slots_in(noted_results))
        operation = Operation(
            facts.name, call, noted_args, noted_kwargs, noted_results, writes, is_view, facts.is_random
        )
        self.recording.operations.append(operation)
        return results


class HostReads(TorchFunctionMode):
    """Notices that the host reads values of a tensor on a CPU."""

    def __init__(self, recorder: Recorder):
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if function in HOST_READS:
            self.recorder.refuse(f"it uses {function.__name__}()")
        return function(*args, **(kwargs or {}))


@dataclass
class Facts:
    """What PyTorch knows about one of its operations; to ask it again in each call would take long."""

    name: str
    arguments: list[str]
    written: list[str]  # the arguments that it changes in place
    has_results: bool
    depends_on_values: bool
    is_random: bool
    functions: list[Callable]  # PyTorch's own Python functions of that name


@cache
def facts_of(op: Any) -> Facts:
    arguments = op._schema.arguments
    name = op._schema.name.removeprefix("aten::")
    namesakes = [getattr(home, name, None) for home in (torch, torch.Tensor, torch.nn.functional)]
    return Facts(
        name=str(op),
        arguments=[x.name for x in arguments],
        written=[x.name for x in arguments if x.alias_info is not None and x.alias_info.is_write],
        has_results=bool(op._schema.returns),
        depends_on_values=bool(HOST_TAGS & set(op.tags)),
        is_random=torch.Tag.nondeterministic_seeded in op.tags,
        functions=[x for x in namesakes if isinstance(x, BUILTIN)],
    )


def find_fast(op: Any, args: tuple, kwargs: dict) -> Callable:
    """PyTorch's Python function for an operation, if there is one that does the same: half the overhead.

    Functions of the same name may have other defaults, so both are tried on copies: in results, in what they do to
    their arguments, and in random numbers they must agree to the bit.
    """
    facts = facts_of(op)
    if not facts.functions or kwargs.get("generator") is not None:  # whose next numbers a trial would take
        return op
    expected = try_on_copies(op, args, kwargs, facts.has_results)
    for function in facts.functions:
        if expected is not None and expected == try_on_copies(function, args, kwargs, facts.has_results):
            return function
    return op


def try_on_copies(call: Callable, args: tuple, kwargs: dict, has_results: bool) -> list[tuple] | None:
    """What a call returns and makes of its arguments, to be compared; nothing if it does not take them."""
    args, kwargs = map_leaves(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, (args, kwargs))
    given = tensors_in((args, kwargs))
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=gpus):
        try:
            results = call(*args, **kwargs)
        except Exception:  # mostly a TypeError
            return None
    tensors = tensors_in(results) + given if has_results else given
    if any(x.layout is not torch.strided for x in tensors):
        return None
    is_filled = "empty" not in call.__name__
    return [(x.shape, x.stride(), x.dtype, is_filled and bits(x).cpu().numpy().tobytes()) for x in tensors]


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.detach().contiguous().as_strided((x.numel(),), (1,)).view(torch.uint8)


def tensors_in(tree: Any) -> list[torch.Tensor]:
    return [x for x in leaves_of(tree) if isinstance(x, torch.Tensor)]


def slots_in(tree: Any) -> list[Slot]:
    return [x for x in leaves_of(tree) if isinstance(x, Slot)]


def leaves_of(tree: Any) -> list:
    """What is in lists, tuples and dictionaries, in order; for these, faster than PyTorch's `tree_leaves`."""
    if isinstance(tree, dict):
        tree = list(tree.values())
    if not isinstance(tree, list | tuple):
        return [tree]
    return [leaf for x in tree for leaf in leaves_of(x)]


def map_leaves(function: Callable, tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: map_leaves(function, x) for key, x in tree.items()}
    if isinstance(tree, list | tuple):
        return [map_leaves(function, x) for x in tree]
    return function(tree)


def record(
    function: Callable, inputs: tuple, state: dict, edited: bool = True, finds_fast: bool = False
) -> tuple[Any, Recording]:
    """Call the function once, as it is written. Returns what it returned, and the recording.

    Whether it changes variables of Python is only asked of an edited script: of others it is proven that it does not.
    A recording to be replayed `finds_fast` versions of its operations, but not on a GPU: there a graph launches them.
    One that is only compared does not need them either.
    """
    input_tensors = tensors_in(inputs)
    on_cpu = all(x.device.type == "cpu" for x in (*input_tensors, *named_tensors(state).values()))
    recorder = Recorder(input_tensors, finds_fast and on_cpu)
    recording = recorder.recording
    if plain_function(function) is None:
        recorder.refuse("it is not a plain function")
        return function(*inputs), recording
    old_gradients = [x for x in named_tensors(state).values() if x.requires_grad and x.grad is not None]
    versions = [x._version for x in input_tensors]
    variables = variables_in_reach(function, state) if edited else {}
    with HostReads(recorder), recorder:
        outputs = function(*inputs)
    leaves, recording.structure = tree_flatten(outputs)
    if not all(isinstance(x, torch.Tensor) for x in leaves):
        recorder.refuse("it returns something else than tensors")
    elif any(x.requires_grad for x in leaves):
        recorder.refuse("it returns a tensor that needs a gradient (detach it)")
    recording.outputs = [recorder.slot_of(x) for x in leaves]
    if any(x.grad is None for x in old_gradients):
        recorder.refuse("it removes a gradient")
    parameters = {id(x): x for x in (*named_tensors(state).values(), *recording.outer.values())}
    for x in parameters.values():
        if x.requires_grad and x.is_leaf and x.grad is not None and recorder.has_made(x.grad):
            recording.gradients.append((x, recorder.slot_of(x.grad)))
    if len({id(x) for x in input_tensors}) < len(input_tensors):
        recorder.refuse("two of its inputs are the same tensor")
    if versions != [x._version for x in input_tensors]:
        recorder.refuse("it changes its inputs")
    if len(recorder.devices) > 1:
        recorder.refuse("its tensors are on several devices")
    changed = changes(variables, variables_in_reach(function, state) if edited else {})
    if changed:
        recorder.refuse(f"it changes {changed[0]}")
    if not recording.obstacle:
        recording.places = [x.data_ptr() for x in recording.outer.values()]
    return outputs, recording
