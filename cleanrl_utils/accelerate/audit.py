"""Check now and then that a replay still does what the text of the function says."""

import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from cleanrl_utils.accelerate.recording import Recording, record, tensors_in
from cleanrl_utils.accelerate.variables import named_tensors, plain_function

PERIOD = 1000  # every so many calls there is an audit, and before that on the 2nd, 4th, 8th, ... call
SHARE = 0.005  # of the time may be spent on audits after that; if they take more, some are left out


class Audit:
    """Replays; on some calls also runs the function itself, from the same state, and compares all that comes out.

    Compared to the bit are what they return, every tensor that they can reach, gradients and random states. Also, the
    function must still do the operations that were recorded: an output that is the same by luck is no excuse. The first
    difference ends the run. In an audited call the function has the last word, with all its effects in Python.
    """

    def __init__(self, function: Callable, state: dict, recording: Recording, replay: Callable):
        self.function, self.state, self.recording, self.replay = function, state, recording, replay
        known = {id(x) for x in named_tensors(state).values()}
        unknown = [x for x in recording.outer.values() if id(x) not in known]
        self.outer = {f"tensor {i} from outside the state": x for i, x in enumerate(unknown)}
        self.calls = 0
        self.passed = 0  # the last call that was audited
        self.ended = self.seconds = 0.0  # when the last audit ended, and how long it took
        self.latest: tuple | None = None

    def __call__(self, *inputs: Any) -> Any:
        self.calls += 1
        self.latest = inputs
        is_power_of_two = self.calls & (self.calls - 1) == 0
        is_due = self.calls % PERIOD == 0 and SHARE * (time.perf_counter() - self.ended) > self.seconds
        if is_due or (1 < self.calls < PERIOD and is_power_of_two):
            return self.compare(inputs)
        return self.replay(*inputs)

    def last_time(self) -> None:
        """At the end of a run: audit the latest call once more, and leave the tensors as they were."""
        if self.latest is not None:
            before = self.snapshot()
            self.compare(self.latest)
            before.restore(self.snapshot())

    def compare(self, inputs: tuple) -> Any:
        start = time.perf_counter()
        before = self.snapshot()
        replayed = [x.clone() for x in tensors_in(self.replay(*inputs))]
        after_replay = self.snapshot()
        before.restore(after_replay)
        outputs, recording = record(self.function, inputs, self.state)
        if recording.obstacle:
            self.stop(f"{recording.obstacle}, which a replay does not do")
        after = self.snapshot()
        after_replay.tensors |= {f"output {i}": x for i, x in enumerate(replayed)}
        after.tensors |= {f"output {i}": x for i, x in enumerate(tensors_in(outputs))}
        different = after.differences(after_replay)
        if different and is_reproducible():
            self.stop(f"{different[0]} is not what it would be if the function ran as written")
        if recording.facts != self.recording.facts:
            self.stop("the function does other operations now than those that were recorded")
        self.passed = self.calls
        self.ended = time.perf_counter()
        self.seconds = self.ended - start
        return outputs

    def stop(self, reason: str) -> None:
        name = plain_function(self.function).__name__
        sys.exit(
            f"--accelerate on: the replay of `{name}` is wrong in its call {self.calls}: {reason}. It was right in "
            f"call {self.passed}; what was learned since may be wrong. Use --accelerate off for this file"
        )

    def snapshot(self) -> "Snapshot":
        return Snapshot(named_tensors(self.state) | self.outer)


def is_reproducible() -> bool:
    """Whether a function gives the same bits if it runs twice: with `--no-torch-deterministic`, not on a GPU."""
    return torch.are_deterministic_algorithms_enabled() or not torch.cuda.is_initialized()


class Snapshot:
    """Copies of tensors, of their gradients and of PyTorch's random states."""

    def __init__(self, live: dict[str, torch.Tensor]):
        self.live = live
        self.gradients = {name: x.grad for name, x in live.items() if x.requires_grad and x.grad is not None}
        self.tensors = {name: x.detach().clone() for name, x in live.items()}
        self.tensors |= {f"the gradient of {name}": x.clone() for name, x in self.gradients.items()}
        self.random_states = {"the random state": torch.get_rng_state()}
        if any(x.is_cuda for x in live.values()):
            self.random_states["the random state of the GPU"] = torch.cuda.get_rng_state()

    @torch.inference_mode()  # in which all tensors may be changed, those made in that mode, too
    def restore(self, now: "Snapshot") -> None:
        """Set all tensors back that have changed; the others are not touched, a backward pass may wait for them."""
        changed = set(differences(self.tensors, now.tensors))
        for name, x in self.live.items():
            if name in changed:
                x.copy_(self.tensors[name])
            if x.requires_grad:
                x.grad = self.gradients.get(name)
                gradient = self.tensors.get(f"the gradient of {name}")
                if gradient is not None:
                    x.grad.copy_(gradient)
        torch.set_rng_state(self.random_states["the random state"])
        if "the random state of the GPU" in self.random_states:
            torch.cuda.set_rng_state(self.random_states["the random state of the GPU"])

    def differences(self, other: "Snapshot") -> list[str]:
        """The names of the tensors and random states that are not the same in both."""
        return differences(self.tensors, other.tensors) + differences(self.random_states, other.random_states)


def differences(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> list[str]:
    """The names of the tensors that are missing in one or not the same to the bit."""
    our_kinds, their_kinds = ({name: (x.shape, x.dtype, x.device) for name, x in y.items()} for y in (ours, theirs))
    is_one_device = len({x.device for x in ours.values()}) == 1
    if our_kinds == their_kinds and is_one_device and torch.equal(all_bits(ours), all_bits(theirs)):
        return []  # as nearly always; all tensors at once, which is much faster on a GPU
    names = sorted(ours | theirs)
    alike = [name for name in names if our_kinds.get(name) == their_kinds.get(name)]
    equal = {name for name in alike if torch.equal(bits(ours[name]), bits(theirs[name]))}
    return [name for name in names if name not in equal]


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.detach().contiguous().as_strided((x.numel(),), (1,)).view(torch.uint8)


def all_bits(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([bits(x) for x in tensors.values()])
