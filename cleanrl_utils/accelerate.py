"""Run the policy and the update faster, with the same numbers: `--compile` and, on the GPU, `--cudagraphs`."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map, tree_map_only

WARMUP = 3  # calls before the capture: libraries tune themselves and optimizers allocate their state in these


def accelerate(args: Any, device: torch.device, act: Callable, *learner: Callable) -> tuple[Callable, ...]:
    """The same functions: the policy, the backward passes and last the update, which calls them."""
    *backwards, update = learner
    if args.compile:
        torch._dynamo.config.trace_autograd_ops = True  # forward, backward and clipping become one graph
        options = {"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
        # in two graphs, gradients would get lost
        backwards = [torch.compile(backward, fullgraph=True, options=options) for backward in backwards]
    if args.cudagraphs and device.type == "cuda":
        act, update = graphed(act), graphed(update)
    return act, *backwards, update


def graphed(function: Callable) -> Callable:
    """`function` as it is for its first calls, a CUDA graph of it from then on; one for each shape of its inputs.

    A graph launches the same kernels on the same memory at once instead of one by one.
    Inputs are tensors on the GPU, or constants such as flags; outputs are tensors or a structure of them. Nothing may
    depend on values of tensors on the host: no `.item()`, no `if` on a tensor. Random numbers continue as without it.
    """
    calls: dict[tuple, int] = {}
    graphs: dict[tuple, tuple[torch.cuda.CUDAGraph, tuple, Any]] = {}
    warmup = torch.cuda.Stream()

    def replay(*inputs: Any) -> Any:
        key = tuple(x.shape if isinstance(x, torch.Tensor) else x for x in inputs)
        calls[key] = calls.get(key, 0) + 1
        if calls[key] <= WARMUP:  # not on the default stream, which a graph may not wait for
            warmup.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(warmup):
                outputs = function(*inputs)
            torch.cuda.current_stream().wait_stream(warmup)
            return outputs
        if key not in graphs:
            graph, static_inputs = torch.cuda.CUDAGraph(), tree_map_only(torch.Tensor, torch.clone, inputs)
            with torch.cuda.graph(graph):
                static_outputs = function(*static_inputs)
            graphs[key] = graph, static_inputs, static_outputs
        graph, static_inputs, static_outputs = graphs[key]
        for static, x in zip(static_inputs, inputs, strict=True):
            if isinstance(x, torch.Tensor):
                static.copy_(x)
        graph.replay()
        return tree_map(torch.clone, static_outputs)  # the next call overwrites its own

    return replay
