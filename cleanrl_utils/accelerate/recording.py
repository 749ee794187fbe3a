"""Watch a function work, and note what it does to tensors, operation by operation, as a graph of `torch.fx`.

A recording is made of an ordinary call. The function runs exactly as written while a `TorchDispatchMode` notes every
operation on its way to PyTorch's kernels, those of the backward pass and of the optimizer included. So recording has no
side effects: no additional call, no gradient left behind, no random number drawn twice.

A recording does not see Python. What it cannot see makes the recordings of two calls differ (a number that changes, a
tensor made from NumPy), or is an obstacle: a value that the host reads, a variable that the function changes.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import TreeSpec, tree_flatten
from torch.utils.weak import WeakTensorKeyDictionary

from cleanrl_utils.accelerate.variables import changes, named_tensors, plain_function, variables_in_reach

# These let the host read values, or give a result whose shape depends on values. A recording would freeze both.
HOST_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
# On a CPU these hand values to the host without any operation.
HOST_READS = {torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.__array__, torch.Tensor.__dlpack__}


@dataclass
class Recording:
    """What a call did; `obstacle` says why that cannot be replayed, if it cannot."""

    graph: fx.Graph = field(default_factory=fx.Graph)
    outer: list[torch.Tensor] = field(default_factory=list)  # tensors from outside: parameters, say
    fixed: list[torch.Tensor] = field(default_factory=list)  # in the order of the graph: these, and views of them
    gradients: list[tuple[torch.Tensor, fx.Node]] = field(default_factory=list)  # of tensors that got a new one
    structure: TreeSpec | None = None  # of the outputs
    obstacle: str = ""

    @cached_property
    def facts(self) -> tuple:
        """What is the same in two calls that did the same operations on the same memory, with the same numbers."""
        places = [(x.data_ptr(), x.shape, x.stride(), x.dtype) for x in self.fixed]
        return str(self.graph), places, [id(x) for x in self.outer], [id(x) for x, _ in self.gradients], self.structure


class Recorder(TorchDispatchMode):
    """Notes the operations of a call. It holds tensors weakly, so that they are freed as if it were not there."""

    def __init__(self, inputs: list[torch.Tensor], fixes_views: bool):
        super().__init__()
        self.fixes_views = fixes_views
        self.recording = Recording()
        self.nodes = WeakTensorKeyDictionary()
        self.fixed_nodes: set[fx.Node] = set()
        self.devices: set[str] = set()
        for i, x in enumerate(inputs):
            self.nodes[x] = self.recording.graph.placeholder(f"given_{i}")

    def refuse(self, obstacle: str) -> None:
        self.recording.obstacle = self.recording.obstacle or obstacle

    def node_of(self, x: Any) -> Any:
        """The node of a tensor, and any other value itself. A tensor that no operation has made comes from outside."""
        if not isinstance(x, torch.Tensor):
            return x
        if x not in self.nodes:
            self.recording.outer.append(x)
            self.fix(x)
        return self.nodes[x]

    def fix(self, x: torch.Tensor) -> None:
        """From now on, this memory is read and written where it is; its contents may change."""
        self.nodes[x] = self.recording.graph.placeholder(f"fixed_{len(self.recording.fixed)}")
        self.fixed_nodes.add(self.nodes[x])
        self.recording.fixed.append(x.detach())

    def __torch_dispatch__(self, op: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        results = op(*args, **(kwargs or {}))
        if op.namespace != "profiler" and not self.recording.obstacle:
            self.note(op, args, kwargs or {}, results)
        return results

    def note(self, op: Any, args: tuple, kwargs: dict, results: Any) -> None:
        given, made = tensors_in((args, kwargs)), tensors_in(results)
        has_mask = any(x.dtype in (torch.bool, torch.uint8) for x in given[1:])
        is_gather = op is torch.ops.aten.index.Tensor and not has_mask  # by numbers: the shape is known
        is_frozen = HOST_TAGS & set(op.tags) and not is_gather
        if op.namespace != "aten" or is_frozen or isinstance(results, bool | int | float):
            self.refuse(f"it uses {op}")
        elif kwargs.get("generator") is not None:
            self.refuse("it has a random generator of its own")
        elif any(x.layout is not torch.strided for x in given + made):
            self.refuse("it uses sparse tensors")
        if self.recording.obstacle:
            return
        self.devices.update(x.device.type for x in given + made)
        noted_args, noted_kwargs = fx.node.map_aggregate((args, kwargs), self.node_of)
        if op is torch.ops.aten.detach.default:  # the same memory; what is replayed has no use for the difference
            self.nodes[results] = noted_args[0]
            return
        is_fixed = op.is_view and self.fixes_views and self.fixed_nodes.issuperset(self.nodes[x] for x in given)
        if is_fixed and shares_memory(given, made):  # a view that would be the same in each call
            for x in made:
                self.fix(x)
            return
        node = self.recording.graph.call_function(op, noted_args, noted_kwargs)
        is_list = isinstance(results, list | tuple)
        for i, x in enumerate(results if is_list else [results]):
            if isinstance(x, torch.Tensor) and x not in self.nodes:  # one that was changed in place has its node
                self.nodes[x] = self.recording.graph.call_function(operator.getitem, (node, i)) if is_list else node


class HostReads(TorchFunctionMode):
    """Notices that the host reads values of a tensor on a CPU."""

    def __init__(self, recorder: Recorder):
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if function in HOST_READS:
            self.recorder.refuse(f"it uses {function.__name__}()")
        return function(*args, **(kwargs or {}))


def shares_memory(given: list[torch.Tensor], made: list[torch.Tensor]) -> bool:
    places = {x.untyped_storage().data_ptr() for x in given}
    return all(x.untyped_storage().data_ptr() in places for x in made)


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """The tensors in lists, tuples and dictionaries, in order; for these, faster than PyTorch's `tree_leaves`."""
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, list | tuple):
        return [leaf for x in tree for leaf in tensors_in(x)]
    return [tree] if isinstance(tree, torch.Tensor) else []


def record(
    function: Callable, inputs: tuple, state: dict, edited: bool = True, fixes_views: bool = True
) -> tuple[Any, Recording]:
    """Call the function once, as it is written. Returns what it returned, and the recording.

    Whether it changes variables of Python is only asked of an edited script: of others it is proven that it does not.
    """
    input_tensors = tensors_in(inputs)
    recorder = Recorder(input_tensors, fixes_views)
    recording = recorder.recording
    if plain_function(function) is None:
        recorder.refuse("it is not a plain function")
        return function(*inputs), recording
    old_gradients = [x for x in named_tensors(state).values() if x.requires_grad and x.grad is not None]
    versions = [x._version for x in input_tensors]
    variables = variables_in_reach(function, state) if edited else {}
    with HostReads(recorder), recorder:
        outputs = function(*inputs)
    changed = changes(variables, variables_in_reach(function, state)) if edited else []
    leaves, recording.structure = tree_flatten(outputs)
    if not all(isinstance(x, torch.Tensor) for x in leaves):
        recorder.refuse("it returns something else than tensors")
    elif any(x.requires_grad for x in leaves):
        recorder.refuse("it returns a tensor that needs a gradient (detach it)")
    elif any(x.grad is None for x in old_gradients):
        recorder.refuse("it removes a gradient")
    elif len({id(x) for x in input_tensors}) < len(input_tensors):
        recorder.refuse("two of its inputs are the same tensor")
    elif versions != [x._version for x in input_tensors]:
        recorder.refuse("it changes its inputs")
    elif len(recorder.devices) > 1:
        recorder.refuse("its tensors are on several devices")
    elif changed:
        recorder.refuse(f"it changes {changed[0]}")
    if recording.obstacle:
        return outputs, recording
    output_nodes = [recorder.node_of(x) for x in leaves]
    for x in {id(x): x for x in (*named_tensors(state).values(), *recording.outer)}.values():
        node = recorder.nodes.get(x.grad) if x.requires_grad and x.is_leaf and x.grad is not None else None
        if node is not None and node.op == "call_function":  # the gradient was made in this call
            recording.gradients.append((x, node))
    recording.graph.output((*output_nodes, *[node for _, node in recording.gradients]))
    return outputs, recording
