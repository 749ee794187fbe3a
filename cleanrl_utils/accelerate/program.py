"""Make a function of a recording: the same operations, without modules, autograd and optimizers around them.

They are the same in the same order, so the numbers are the same to the bit, unless PyTorch's compiler, Inductor, is
asked to make them faster. `torch.compile` would read Python and check before each call all that it has read. A
recording needs neither: it is a list of operations, and `Replayed` knows its inputs already.
"""

import importlib
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


def make_program(recording: Recording, inputs: list[torch.Tensor], proven: bool, compiled: bool = False) -> Callable:
    """A function from input tensors to output tensors and gradients."""
    for node in recording.graph.nodes:
        if node.op == "call_function" and compiled:
            node.target = OPEN.get(node.target, node.target)
        elif node.op == "call_function" and proven:
            node.target = fast(node.target)
    forward = fx.GraphModule({}, recording.graph).forward
    fixed, count = recording.fixed, recording.structure.num_leaves
    if compiled:
        on_cpu = all(x.device.type == "cpu" for x in (*inputs, *fixed))
        options = COMPILER_OPTIONS | {"cpp_wrapper": on_cpu}
        inductor = importlib.import_module("torch._inductor")  # not at the top, as that takes a second
        forward = inductor.compile(forward.__self__, [*inputs, *fixed], options)

    def program(*inputs: torch.Tensor) -> tuple[list, list]:
        results = forward(*inputs, *fixed)
        return results[:count], results[count:]

    return program


@cache
def fast(op: Any) -> Callable:
    """PyTorch's function for Python that does the same as an operation, if there is one: half the overhead.

    Functions of the same name may have other defaults, so this is only for scripts whose replay was proven.
    """
    name = getattr(op, "_opname", "")
    if "entropy" in name:  # the losses, which have other defaults indeed
        return op
    namesakes = [getattr(home, name, None) for home in (torch, torch.Tensor, torch.nn.functional)]
    return next((x for x in namesakes if isinstance(x, BUILTIN)), op)


def norms(tensors: list[torch.Tensor], order: float) -> list[torch.Tensor]:
    return [torch.linalg.vector_norm(x, order) for x in tensors]


def adam(
    parameters, gradients, means, squares, _, steps, *, lr, beta1, beta2, weight_decay, eps, amsgrad, maximize
) -> None:
    """One step of Adam (Kingma & Ba 2015, algorithm 1)."""
    assert not (weight_decay or amsgrad or maximize), "no released file uses these"
    for x, gradient, mean, square, step in zip(parameters, gradients, means, squares, steps):
        mean.lerp_(gradient, 1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        unbiased_mean = mean / (1 - beta1**step)
        unbiased_square = square / (1 - beta2**step)
        x.sub_(lr * unbiased_mean / (unbiased_square.sqrt() + eps))


# What the compiler can look into, in the place of what it cannot
aten = torch.ops.aten
OPEN = {aten._foreach_norm.Scalar: norms, aten._fused_adam_.default: adam, aten._fused_adam_.tensor_lr: adam}
