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
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from cleanrl_utils.accelerate.variables import changes, named_tensors, plain_function, variables_in_reach

# These let the host read values, or give a result whose shape depends on values. A recording would freeze both.
HOST_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
# On a CPU these hand values to the host without any operation.
HOST_READS = {torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.__array__, torch.Tensor.__dlpack__}
# The contents of these results depend on nothing but numbers.
aten = torch.ops.aten
FILLS = {aten.zeros_like.default, aten.ones_like.default, aten.full_like.default}
FILLS |= {aten.new_zeros.default, aten.new_ones.default, aten.new_full.default}


@dataclass
class Recording:
    """What a call did; `obstacle` says why that cannot be replayed, if it cannot."""

    graph: fx.Graph = field(default_factory=fx.Graph)
    outer: dict[fx.Node, torch.Tensor] = field(default_factory=dict)  # tensors from outside: parameters, say
    known: dict[fx.Node, torch.Tensor] = field(default_factory=dict)  # results that are the same in each call
    gradients: list[tuple[torch.Tensor, fx.Node]] = field(default_factory=list)  # of tensors that got a new one
    structure: TreeSpec | None = None  # of the outputs
    obstacle: str = ""

    @cached_property
    def facts(self) -> tuple:
        """What is the same in two calls that did the same operations on the same memory, with the same numbers."""
        outer = [(id(x), x.data_ptr(), x.shape, x.stride(), x.dtype) for x in self.outer.values()]
        return str(self.graph), outer, [id(x) for x, _ in self.gradients], self.structure


class Recorder(TorchDispatchMode):
    """Notes the operations of a call. It holds tensors weakly, so that they are freed as if it were not there."""

    def __init__(self, inputs: list[torch.Tensor]):
        super().__init__()
        self.recording = Recording()
        self.constants: dict[fx.Node, torch.Tensor] = {}
        self.devices: set[str] = set()
        self.nodes = WeakTensorKeyDictionary()
        for i, x in enumerate(inputs):
            self.nodes[x] = self.recording.graph.placeholder(f"given_{i}")

    def refuse_if(self, is_obstacle: bool, reason: str) -> None:
        if is_obstacle and not self.recording.obstacle:
            self.recording.obstacle = reason

    def node_of(self, x: Any) -> Any:
        """The node of a tensor, and any other value itself. A tensor that no operation has made comes from outside."""
        if not isinstance(x, torch.Tensor):
            return x
        if x not in self.nodes:
            self.nodes[x] = self.recording.graph.placeholder(f"outer_{len(self.recording.outer)}")
            self.recording.outer[self.nodes[x]] = x
        return self.nodes[x]

    def __torch_dispatch__(self, op: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        results = op(*args, **(kwargs or {}))
        if op.namespace != "profiler" and not self.recording.obstacle:
            self.note(op, args, kwargs or {}, results)
        return results

    def note(self, op: Any, args: tuple, kwargs: dict, results: Any) -> None:
        given, made = tensors_in((args, kwargs)), tensors_in(results)
        has_mask = any(x.dtype in (torch.bool, torch.uint8) for x in given[1:])
        is_gather = op is aten.index.Tensor and not has_mask  # by numbers: the shape is known
        is_frozen = isinstance(results, bool | int | float) or (HOST_TAGS & set(op.tags) and not is_gather)
        self.devices.update(x.device.type for x in given + made)
        self.refuse_if(op.namespace != "aten" or is_frozen, f"it uses {op}")
        self.refuse_if(kwargs.get("generator") is not None, "it has a random generator of its own")
        self.refuse_if(any(x.layout is not torch.strided for x in given + made), "it uses sparse tensors")
        self.refuse_if(len(self.devices) > 1, "its tensors are on several devices")
        if self.recording.obstacle:
            return
        noted_args, noted_kwargs = fx.node.map_aggregate((args, kwargs), self.node_of)
        if op is aten.detach.default:  # the same memory; what is replayed has no use for the difference
            self.nodes[results] = noted_args[0]
            return
        node = self.recording.graph.call_function(op, noted_args, noted_kwargs)
        is_list = isinstance(results, list | tuple)
        for i, x in enumerate(results if is_list else [results]):
            if isinstance(x, torch.Tensor) and x not in self.nodes:  # one that was changed in place has its node
                self.nodes[x] = self.recording.graph.call_function(operator.getitem, (node, i)) if is_list else node
                if self.is_constant(op, given, x):
                    self.constants[self.nodes[x]] = x.detach()
                elif op.is_view and self.is_outer_view(given, x):  # whose memory stays, while its contents change
                    self.recording.known[self.nodes[x]] = x.detach()

    def is_constant(self, op: Any, given: list[torch.Tensor], result: torch.Tensor) -> bool:
        """Whether a result depends on numbers alone. Tensors of inference mode are none: they do not count changes."""
        if torch.Tag.nondeterministic_seeded in op.tags or result.is_inference():
            return False
        return op in FILLS or all(self.nodes[x] in self.constants and x._version == 0 for x in given)

    def is_outer_view(self, given: list[torch.Tensor], result: torch.Tensor) -> bool:
        """Whether a result shows memory of tensors from outside. Some operations may give a view or a copy."""
        lasting = self.recording.outer.keys() | self.recording.known.keys()
        return all(self.nodes[x] in lasting for x in given) and memory_of([result]) <= memory_of(given)


class HostReads(TorchFunctionMode):
    """Notices that the host reads values of a tensor on a CPU."""

    def __init__(self, recorder: Recorder):
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if function in HOST_READS:
            self.recorder.refuse_if(True, f"it uses {function.__name__}()")
        return function(*args, **(kwargs or {}))


def memory_of(tensors: list[torch.Tensor]) -> set[int]:
    return {x.untyped_storage().data_ptr() for x in tensors}


def tensors_in(tree: Any) -> list[torch.Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]


def record(function: Callable, inputs: tuple, state: dict, edited: bool = True) -> tuple[Any, Recording]:
    """Call the function once, as it is written. Returns what it returned, and the recording.

    Whether it changes variables of Python is only asked of an edited script: of others it is proven that it does not.
    """
    given = tensors_in(inputs)
    recorder = Recorder(given)
    recording = recorder.recording
    recorder.refuse_if(plain_function(function) is None, "it is not a plain function")
    recorder.refuse_if(len({id(x) for x in given}) < len(given), "two of its inputs are the same tensor")
    recorder.refuse_if(any(x.is_inference() for x in given), "an input was made in inference mode")
    if recording.obstacle:
        return function(*inputs), recording
    old_gradients = [x for x in named_tensors(state).values() if x.requires_grad and x.grad is not None]
    versions = [x._version for x in given]
    variables = variables_in_reach(function, state) if edited else {}
    with HostReads(recorder), recorder:
        outputs = function(*inputs)
    leaves, recording.structure = tree_flatten(outputs)
    returned = tensors_in(leaves)
    recorder.refuse_if(len(returned) < len(leaves), "it returns something else than tensors")
    recorder.refuse_if(any(x.requires_grad for x in returned), "it returns a tensor that needs a gradient (detach it)")
    recorder.refuse_if(any(x.grad is None for x in old_gradients), "it removes a gradient")
    recorder.refuse_if(versions != [x._version for x in given], "it changes its inputs")
    for name in changes(variables, variables_in_reach(function, state) if edited else {}):
        recorder.refuse_if(True, f"it changes {name}")
    if recording.obstacle:
        return outputs, recording
    output_nodes = [recorder.node_of(x) for x in returned]
    for x in {id(x): x for x in (*named_tensors(state).values(), *recording.outer.values())}.values():
        node = recorder.nodes.get(x.grad) if x.requires_grad and x.is_leaf and x.grad is not None else None
        if node is not None and node.op == "call_function":  # the gradient was made in this call
            recording.gradients.append((x, node))
    kept = memory_of([*returned, *[x.grad for x, _ in recording.gradients]])
    for node, x in recorder.constants.items():
        if x._version == 0 and not memory_of([x]) <= kept:  # nobody changes it, and nobody will
            recording.known[node] = x
    recording.graph.output((output_nodes, [node for _, node in recording.gradients]))
    return outputs, recording
