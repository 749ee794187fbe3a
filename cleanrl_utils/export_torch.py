"""The policy of a script in PyTorch as an ONNX model, for `export.py`."""

import inspect
import logging
import textwrap
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from cleanrl_utils.export import BATCH, ExportError, input_type


@contextmanager
def replaced(owner: Any, **functions: Callable) -> Iterator[None]:
    """Other functions under these names for a while."""
    originals = {name: getattr(owner, name) for name in functions}
    for name, function in functions.items():
        setattr(owner, name, function)
    try:
        yield
    finally:
        for name, function in originals.items():
            setattr(owner, name, function)


@contextmanager
def watching_argmax() -> Iterator[list[torch.Tensor]]:
    """The scores (logits, action values) from which a discrete action is chosen: they tell more than the action."""
    scores, argmax = [], torch.Tensor.argmax

    def watched(x: torch.Tensor, *args: Any) -> torch.Tensor:
        scores.append(x)
        return argmax(x, *args)

    with replaced(torch.Tensor, argmax=watched):
        yield scores


class Policy(torch.nn.Module):
    """The call of `get_action` inside a policy of `load_policy`, as a module from tensors to tensors.

    `load_policy` returns a function from NumPy to NumPy, which cannot be traced. But it is a closure over a network,
    and all it does is to call the network's `get_action`: this watches one such call to learn the other arguments.
    """

    def __init__(self, policy: Callable, obs: np.ndarray) -> None:
        super().__init__()
        cells = [cell.cell_contents for cell in getattr(policy, "__closure__", None) or ()]
        networks = [x for x in cells if isinstance(x, torch.nn.Module) and hasattr(x, "get_action")]
        if len(networks) != 1:
            raise ExportError(
                "its load_policy is no function around one PyTorch network with get_action: not exportable"
            )
        (self.network,) = networks
        original, calls = self.network.get_action, []

        def watched(*args: Any) -> Any:
            calls.append(args)
            return original(*args)

        self.network.get_action = watched
        try:
            policy(obs)
        finally:
            del self.network.get_action
        (_, *rest), *_ = calls
        self.states = [x for x in rest if isinstance(x, torch.Tensor)]
        self.flags = [x for x in rest if not isinstance(x, torch.Tensor)]
        # without its decorator: ONNX knows no inference mode
        self.get_action = inspect.unwrap(type(self.network).get_action)

    def forward(self, obs: torch.Tensor, *states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with watching_argmax() as scores:
            outcome = self.get_action(self.network, obs.float(), *states, *self.flags)
        action, *next_states = outcome if isinstance(outcome, tuple) else (outcome,)
        return action, *scores[:1], *next_states  # while it is traced, one call is seen several times


def trace(original: Callable, obs: np.ndarray) -> tuple[Any, list[np.ndarray]]:
    """The policy as an ONNX model, for batches of any size, and the memories that it takes."""
    for name in ("onnxscript", "torch.onnx"):  # they speak of packages that are not needed here
        logging.getLogger(name).setLevel(logging.ERROR)
    policy = Policy(original, obs).eval()
    obs = torch.as_tensor(obs.astype(input_type(obs)))
    names = ["state", *(f"state{i}" for i in range(2, len(policy.states) + 1))][: len(policy.states)]
    scores = ["scores"] * (len(policy(obs, *policy.states)) - 1 - len(names))
    batch = torch.export.Dim("batch")
    axes = [{dim: batch for dim, size in enumerate(x.shape) if size == BATCH} for x in policy.states]
    # What a deterministic policy multiplies by zero need not be drawn: the comparison would show if it mattered
    constants = replaced(torch, randn_like=torch.zeros_like), replaced(torch.Tensor, exponential_=lambda x: x.fill_(1))
    with constants[0], constants[1], torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter, about itself
        try:
            program = torch.onnx.export(
                policy,
                (obs, *policy.states),
                input_names=["obs", *names],
                output_names=["action", *scores, *(f"next_{name}" for name in names)],
                dynamic_shapes=({0: batch}, tuple(axes)) if axes else ({0: batch},),
                dynamo=True,
                optimize=True,
                verbose=False,
            )
        except torch.onnx.OnnxExporterError as error:
            reason = textwrap.shorten(str(error.__cause__ or error), 300)
            raise ExportError(f"PyTorch cannot express it as ONNX: {reason}") from error
    return program.model_proto, [x.numpy() for x in policy.states]


def act_and_score(original: Callable, obs: np.ndarray) -> list[np.ndarray]:
    """The action of the original policy, and if it is discrete, the scores it was chosen by."""
    with watching_argmax() as scores:
        action = original(obs)
    return [action, *(x.numpy() for x in scores[:1])]


def versions() -> dict[str, str]:
    return {"torch": torch.__version__}
