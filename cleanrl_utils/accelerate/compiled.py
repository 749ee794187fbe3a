"""Compile the operations of a recording for a CPU: faster, with slightly different rounding.

`torch.compile` reads Python, and before each call it checks all that it has read. A recording needs neither: it is a
list of operations, and `Replayed` knows its inputs already. So the list goes straight to PyTorch's compiler, Inductor.
For ppo.py, an update of 0.42 ms then takes 0.25 ms, and a call of the policy 19 us instead of the 24 us of a replay.
"""

import operator
from collections.abc import Callable
from typing import Any

import torch

from cleanrl_utils.accelerate.recording import Operation, Slot, map_leaves, slots_in


def compile_operations(operations: list[Operation], results: list[Slot]) -> list[Operation]:
    """The operations with each run of them that can be compiled as one. `results` are needed after all of them.

    The compiler cannot look into a fused optimizer, which is fast as it is, so that ends a run.
    """
    runs: list[list[Operation]] = [[]]
    for x in operations:
        if "_fused_" in x.name:
            runs += [[x], []]
        else:
            runs[-1].append(x)
    compiled: list[Operation] = []
    needed = set(results)
    for run in reversed(runs):
        if run and "_fused_" not in run[0].name:
            run = [compile_run(run, needed)]
        compiled = run + compiled
        needed.update(slots_in([(x.args, x.kwargs) for x in run]))
    return compiled


def compile_run(run: list[Operation], needed: set[Slot]) -> Operation:
    """One operation for many: from the tensors that these read to those that they make and that are needed later."""
    made = dict.fromkeys(slots_in([x.results for x in run]))
    inputs: dict[Slot, None] = {}
    known: set[Slot] = set()
    for x in run:
        inputs |= dict.fromkeys(slot for slot in slots_in((x.args, x.kwargs)) if slot not in known)
        known.update(slots_in((x.args, x.kwargs, x.results)))
    outputs = [slot for slot in made if slot in needed and slot not in inputs]
    call = CompiledRun(make_graph(run, list(inputs), outputs))
    writes = [slot for x in run for slot in x.writes if slot in inputs]
    is_random = any(x.is_random for x in run)
    return Operation("compiled", call, tuple(inputs), {}, outputs, writes, is_view=False, is_random=is_random)


def make_graph(run: list[Operation], inputs: list[Slot], outputs: list[Slot]) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    nodes = {slot: graph.placeholder(f"t_{slot.number}") for slot in inputs}

    def note(results: Any, node: torch.fx.Node) -> None:
        """Tensors that were changed in place have their nodes already."""
        if isinstance(results, Slot):
            nodes.setdefault(results, node)
        elif isinstance(results, list | tuple):
            for i, x in enumerate(results):
                note(x, graph.call_function(operator.getitem, (node, i)))

    def node_of(value: Any) -> Any:
        return nodes[value] if isinstance(value, Slot) else value

    for x in run:
        args, kwargs = map_leaves(node_of, (x.args, x.kwargs))
        note(x.results, graph.call_function(OPEN.get(x.name, x.call), tuple(args), kwargs))
    graph.output([nodes[slot] for slot in outputs])
    return torch.fx.GraphModule({}, graph)


def norms(tensors: list[torch.Tensor], order: float) -> list[torch.Tensor]:
    return [torch.linalg.vector_norm(x, order) for x in tensors]


OPEN = {"aten._foreach_norm.Scalar": norms}  # what the compiler can look into, in the place of what it cannot


# Kernels are called from C++ instead of Python, and random numbers are the same as without compilation
OPTIONS = {"cpp_wrapper": True, "size_asserts": False, "fallback_random": True}


class CompiledRun:
    """Compiles itself when it is first called, as it needs tensors to see their shapes."""

    def __init__(self, graph: torch.fx.GraphModule):
        self.graph = graph
        self.compiled: Callable | None = None

    def __call__(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        if self.compiled is None:
            import torch._inductor

            self.compiled = torch._inductor.compile(self.graph, list(tensors), OPTIONS)
        return self.compiled(*tensors)
