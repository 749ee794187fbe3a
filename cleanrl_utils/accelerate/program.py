"""Make a function of a recording: the same operations, without modules, autograd and optimizers around them.

They are the same in the same order, so the numbers are the same to the bit, unless PyTorch's compiler, Inductor, is
asked to make them faster. `torch.compile` would read Python and check before each call all that it has read. A
recording needs neither: it is a list of operations, and `Replayed` knows its inputs already.
"""

import types
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import fx

from cleanrl_utils.accelerate.recording import Recording

BUILTIN = types.BuiltinFunctionType | types.MethodDescriptorType
# Kernels are called from C++ instead of Python, and random numbers are the same as without compilation
COMPILER_OPTIONS = {"cpp_wrapper": True, "size_asserts": False, "fallback_random": True}


def make_program(recording: Recording, proven: bool) -> Callable:
    """A function from input tensors to a list of output tensors and a list of gradients.

    Tensors from outside, and results that are known already, become default values of its last parameters.
    """
    graph, held = recording.graph, {node: x.detach() for node, x in recording.outer.items()}
    for node, x in recording.known.items():
        with graph.inserting_before(node):
            parameter = graph.placeholder(f"known_{node.name}")
        node.replace_all_uses_with(parameter)
        graph.erase_node(node)
        held[parameter] = x
    for node in graph.nodes:
        if node.op == "call_function" and proven:
            node.target = fast(node.target)
    program = fx.GraphModule({}, graph).forward
    program.__func__.__defaults__ = tuple([held[node] for node in graph.nodes if node in held])
    return program


def compile_program(recording: Recording, inputs: list[torch.Tensor]) -> Callable:
    """The same function compiled, for inputs of these shapes: faster, with slightly different rounding."""
    import torch._inductor  # not at the top, as that takes a second

    graph, outer = recording.graph, [x.detach() for x in recording.outer.values()]
    for node in graph.nodes:
        if node.target in OPEN:
            node.target = OPEN[node.target]
    outputs, gradients = graph.output_node().args[0]
    graph.output_node().args = ((*outputs, *gradients),)
    on_cpu = all(x.device.type == "cpu" for x in (*inputs, *outer))
    options = COMPILER_OPTIONS | {"cpp_wrapper": on_cpu}
    compiled = torch._inductor.compile(fx.GraphModule({}, graph), [*inputs, *outer], options)

    def program(*inputs: torch.Tensor) -> tuple[list, list]:
        results = compiled(*inputs, *outer)
        return results[: len(outputs)], results[len(outputs) :]

    return program


@cache
def fast(op: Any) -> Callable:
    """PyTorch's function for Python that does the same as an operation, if there is one: half the overhead.

    Functions of the same name may have other defaults, so this is only for scripts whose replay was proven.
    """
    schema = getattr(op, "_schema", None)
    if schema is None or "reduction" in [x.name for x in schema.arguments]:  # losses do have other defaults
        return op
    homes = [torch, torch.nn.functional]
    if schema.arguments and schema.arguments[0].name == "self":
        homes.insert(0, torch.Tensor)  # its methods first: a program finds them faster than what is in a module
    namesakes = [getattr(home, schema.name.removeprefix("aten::"), None) for home in homes]
    return next((x for x in namesakes if isinstance(x, BUILTIN)), op)


def norms(tensors: list[torch.Tensor], order: float) -> list[torch.Tensor]:
    return [torch.linalg.vector_norm(x, order) for x in tensors]


def adam(parameters, gradients, means, squares, _, steps, *, lr, beta1, beta2, eps, **others) -> None:
    """One step of Adam (Kingma & Ba 2015, algorithm 1)."""
    assert not any(others.values()), "no released file uses weight decay, AMSGrad or maximizes"
    for x, gradient, mean, square, step in zip(parameters, gradients, means, squares, steps):
        mean.lerp_(gradient, 1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        unbiased_mean = mean / (1 - beta1**step)
        unbiased_square = square / (1 - beta2**step)
        x.sub_(lr * unbiased_mean / (unbiased_square.sqrt() + eps))


# What the compiler can look into, in the place of what it cannot
aten = torch.ops.aten
OPEN = {aten._foreach_norm.Scalar: norms, aten._fused_adam_.default: adam, aten._fused_adam_.tensor_lr: adam}
