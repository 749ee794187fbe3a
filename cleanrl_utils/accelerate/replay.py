"""Replay a function: as a program of its operations on the CPU, as a CUDA graph of that program on a GPU."""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _len_torch_dispatch_stack
from torch.utils._pytree import tree_unflatten

from cleanrl_utils.accelerate.audit import Audit, Snapshot
from cleanrl_utils.accelerate.program import compile_program, make_program
from cleanrl_utils.accelerate.recording import Recording, record, tensors_in
from cleanrl_utils.accelerate.variables import PLAIN, plain_function

MAX_RECORDINGS = 4  # of calls with alike inputs: the first may differ, as optimizers make their moments in it
MAX_KINDS = 16  # of inputs


class Replayed:
    """A function that runs as written, and is recorded, until two calls did the same; from then on it is replayed.

    There is a replay for each kind of inputs, and in an edited script for `train()` and `eval()` of its modules, for
    frozen parameters and for the values of its flags. A function that cannot be replayed goes on running as it is
    written, and so do calls with inputs by name, or with others than tensors and constants.
    """

    def __init__(self, function: Callable, state: dict, audited: bool, compiled: bool = False, args: Any = None):
        self.function, self.state, self.audited, self.compiled = function, state, audited, compiled
        self.flags = vars(args) if audited and args is not None else {}
        self.__name__ = getattr(plain_function(function), "__name__", "the function")
        networks = [x for x in state.values() if audited and isinstance(x, torch.nn.Module)]
        self.modules = [module for network in networks for module in network.modules()]
        self.parameters = [parameter for network in networks for parameter in network.parameters()]
        self.recordings: dict[tuple, list[Recording]] = {}
        self.replays: dict[tuple, Callable] = {}
        self.said: set[str] = set()

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        if _len_torch_dispatch_stack():  # another function calls this one while it is recorded
            return self.function(*inputs, **named)
        kinds = tuple([kind_of(x) for x in inputs])
        if named or None in kinds:
            self.say("it is called with inputs by name, or with others than tensors and constants")
            return self.function(*inputs, **named)
        replay = self.replays.get((kinds, self.modes()))
        return replay(*inputs) if replay else self.record((kinds, self.modes()), inputs)

    def modes(self) -> tuple:
        """What a function may read besides its inputs, as far as edited scripts are known to change it."""
        if not self.audited:
            return (torch.is_grad_enabled(),)
        modes = [module.training for module in self.modules]
        modes += [parameter.requires_grad for parameter in self.parameters]
        modes += [value for value in self.flags.values() if isinstance(value, PLAIN)]
        return torch.is_grad_enabled(), *modes

    def record(self, kind: tuple, inputs: tuple) -> Any:
        if kind not in self.recordings and len(self.recordings) + len(self.replays) == MAX_KINDS:
            self.say(f"it is called with more than {MAX_KINDS} kinds of inputs and flags")
            return self.function(*inputs)
        outputs, recording = record(self.function, inputs, self.state, edited=self.audited)
        recordings = self.recordings.setdefault(kind, [])
        recordings.append(recording)
        if not recording.obstacle and len(recordings) > 1 and recording.facts == recordings[-2].facts:
            self.replays[kind] = self.make_replay(recording, tensors_in(inputs))
        elif len(recordings) == MAX_RECORDINGS:
            self.replays[kind] = self.function
            self.say(recording.obstacle or "it does something else in each call")
        if kind in self.replays:
            del self.recordings[kind]
        return outputs

    def make_replay(self, recording: Recording, inputs: list[torch.Tensor]) -> Callable:
        on_gpu = any(x.is_cuda for x in (*inputs, *recording.outer.values()))
        try:
            if self.compiled:
                program = compile_program(recording, inputs)
            else:
                program = make_program(recording, proven=not self.audited)
            if on_gpu:
                program = capture(program, inputs, recording, warms_up=self.compiled)
        except RuntimeError as error:  # a CUDA graph cannot hold everything
            self.say(f"it cannot be captured ({str(error).splitlines()[0]})")
            return self.function
        # What autograd would note takes a tenth of the time on a CPU. `inference_mode` leaves that out, but outside of
        # it, nothing may change the results in place then, which an edited script may do
        is_careful = self.audited and not any(x.is_inference() for x in recording.outer.values())
        mode = torch.no_grad() if on_gpu or is_careful else torch.inference_mode()
        replay = with_effects(program, recording, mode)
        return Audit(self.function, self.state, recording, replay) if self.audited else replay

    def say(self, reason: str) -> None:
        """Tell once why some calls are not replayed."""
        if reason not in self.said:
            print(f"--accelerate: {self.__name__} runs as written, as {reason}", file=sys.stderr)
        self.said.add(reason)

    def last_audit(self) -> None:
        """At the end of a run: audit once more, except what was replayed in other modes."""
        for (_, modes), replay in self.replays.items():
            with torch.set_grad_enabled(modes[0]):
                if isinstance(replay, Audit) and modes == self.modes():
                    replay.last_time()


def kind_of(x: Any) -> Any:
    """What must be the same for a replay: the shape and type of a tensor, the value of a constant. None for others."""
    if isinstance(x, torch.Tensor):
        return x.shape, x.stride(), x.dtype
    return repr(x) if isinstance(x, PLAIN) else None


def with_effects(program: Callable, recording: Recording, mode: Any) -> Callable:
    """A function with the inputs, outputs and effects of the one that was recorded."""
    parameters = [x for x, _ in recording.gradients]
    structure = recording.structure
    is_single = structure.is_leaf()

    def replay(*inputs: Any) -> Any:
        with mode:
            outputs, gradients = program(*[x for x in inputs if isinstance(x, torch.Tensor)])
        for x, gradient in zip(parameters, gradients):
            x.grad = gradient
        return outputs[0] if is_single else tree_unflatten(outputs, structure)

    return replay


def capture(program: Callable, inputs: list[torch.Tensor], recording: Recording, warms_up: bool) -> Callable:
    """The program as a CUDA graph, which launches all its kernels at once; random numbers continue as without it."""
    own_inputs = [x.new_empty_strided(x.shape, x.stride()).copy_(x) for x in inputs]
    if warms_up:  # the first call tunes the kernels, which cannot be done while a graph is captured
        warm_up(program, own_inputs, recording)
    graph = torch.cuda.CUDAGraph()
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    generator_before = generator.clone_state()
    try:
        with torch.cuda.graph(graph):
            outputs, gradients = program(*own_inputs)
            # One tensor to copy instead of many: the next replay overwrites what this one returns
            is_stacked = len({(x.shape, x.dtype) for x in outputs}) == 1
            if is_stacked:
                outputs = torch.stack(outputs)
    except RuntimeError:
        generator.graphsafe_set_state(generator_before)  # a failed capture leaves it unusable
        raise

    def replay(*inputs: torch.Tensor) -> tuple[list, list]:
        for own, x in zip(own_inputs, inputs):
            own.copy_(x)
        graph.replay()
        copies = outputs.clone().unbind() if is_stacked else [x.clone() for x in outputs]
        return list(copies), gradients

    replay.program = program  # keeps the constants that the graph reads in memory
    return replay


def warm_up(program: Callable, inputs: list[torch.Tensor], recording: Recording) -> None:
    """Run a program once, and undo what it did to parameters, optimizers and random numbers."""
    touched = {f"tensor {i}": x for i, x in enumerate(recording.outer.values())}
    before = Snapshot(touched)
    program(*inputs)
    before.restore(Snapshot(touched))
