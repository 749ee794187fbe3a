"""A recording as a Python function: the same operations, without modules, autograd and optimizers around them.

They are the same in the same order, so the numbers are the same to the bit. Only what would come out the same in every
call is done once, when the function is made: views of parameters (which follow the parameters), and whatever is
computed from constants alone, such as the gradient of a mean.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from cleanrl_utils.accelerate.compiled import compile_operations
from cleanrl_utils.accelerate.recording import Operation, Recording, Slot, slots_in, tensors_in


def make_program(recording: Recording, compiled: bool = False) -> Callable:
    """A function from input tensors to a list of output tensors and a list of gradients.

    Compiled, it is faster and rounds differently. On a GPU, `torch.compile` does that: what it checks in Python before
    each call is no part of the CUDA graph. It cannot look into fused optimizers, so these stay.
    """
    fixed, operations = settle(recording)
    results = [*recording.outputs, *(slot for _, slot in recording.gradients)]
    on_cpu = all(x.device.type == "cpu" for x in recording.outer.values())
    if compiled and on_cpu:
        operations = compile_operations(operations, results)
    scope: dict[str, Any] = {f"fixed_{slot.number}": x for slot, x in fixed.items()}
    names = {slot: f"fixed_{slot.number}" for slot in fixed}
    names |= {slot: f"input_{slot.number}" for slot in recording.inputs}
    last_use = {slot: i for i, x in enumerate(operations) for slot in slots_in((x.args, x.kwargs, x.results))}
    lines = []
    for i, x in enumerate(operations):
        is_opaque = compiled and not on_cpu and "_fused_" in x.name
        scope[f"call_{i}"] = torch.compiler.disable(x.call) if is_opaque else x.call
        arguments = [write(value, names, scope) for value in x.args]
        arguments += [f"{key}={write(value, names, scope)}" for key, value in x.kwargs.items()]
        target = name_results(x.results, names)
        lines.append(f"{target} = call_{i}({', '.join(arguments)})")
        done = [slot for slot in slots_in((x.args, x.kwargs, x.results)) if last_use[slot] == i and slot not in results]
        freed = {names[slot] for slot in done if names[slot].startswith("t_")}
        lines += [f"del {name}" for name in sorted(freed)]
    outputs = ", ".join(names[slot] for slot in recording.outputs)
    gradients = ", ".join(names[slot] for _, slot in recording.gradients)
    lines.append(f"return [{outputs}], [{gradients}]")
    inputs = ", ".join(names[slot] for slot in recording.inputs)
    body = "\n        ".join(lines)
    source = f"def make({', '.join(scope)}):\n    def program({inputs}):\n        {body}\n    return program"
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    program = namespace["make"](**scope)
    return torch.compile(program, dynamic=False) if compiled and not on_cpu else program


def name_results(results: Any, names: dict[Slot, str]) -> str:
    """The left side of an assignment; tensors that were changed in place have their names already."""
    if isinstance(results, list | tuple) and results:
        return "[" + ", ".join(name_results(x, names) for x in results) + "]"
    if not isinstance(results, Slot) or results in names:
        return "_"
    names[results] = f"t_{results.number}"
    return names[results]


def write(value: Any, names: dict[Slot, str], scope: dict[str, Any]) -> str:
    """A value as Python source; one that has no exact source goes into the scope under a name."""
    if isinstance(value, Slot):
        return names[value]
    if isinstance(value, list | tuple):
        return "[" + ", ".join(write(x, names, scope) for x in value) + "]"
    if isinstance(value, bool | int | None):
        return repr(value)
    name = f"value_{len(scope)}"
    scope[name] = value
    return name


def settle(recording: Recording) -> tuple[dict[Slot, torch.Tensor], list[Operation]]:
    """The tensors that can be had once and for all, and the operations that remain."""
    base = recording.base
    results = [*recording.outputs, *(slot for _, slot in recording.gradients)]
    written = {base.get(slot, slot) for x in recording.operations for slot in x.writes}
    unsettled = written | {base.get(slot, slot) for slot in results}
    fixed = {slot: x.detach() for slot, x in recording.outer.items()}  # their memory stays, their values change
    fixed |= {slot: x for slot, x in recording.fills.items() if slot not in unsettled}
    constant = fixed.keys() & recording.fills.keys()
    remaining = []
    for x in recording.operations:
        reads, made = slots_in((x.args, x.kwargs)), slots_in(x.results)
        only_constants = constant.issuperset(reads) and not x.writes and not x.is_random
        is_constant = only_constants and not any(base.get(slot, slot) in unsettled for slot in made)
        if made and constant.issuperset(made):  # a fill
            continue
        is_fixed_view = x.is_view and fixed.keys() >= set(reads)
        if not is_constant and not is_fixed_view:
            remaining.append(x)
            continue
        args, kwargs = tree_map_only(Slot, fixed.__getitem__, (x.args, x.kwargs))
        with torch.no_grad():
            fixed.update(zip(made, tensors_in(x.call(*args, **kwargs))))
        if is_constant:
            constant.update(made)
    return fixed, remaining
