"""Run the policy and the update of a script faster, with the same numbers: "What you read is what runs".

`--accelerate auto` replays them if the script is, to the byte, one whose replay was proven to give the same bits
(cleanrl_utils/accelerate/proofs.py); any other script runs as it is written. `on` replays an edited script, too, with
audits (audit.py). `off` runs every line as written. `--compile` compiles the update: the recording of a proven one, and
the function itself in all other cases. On a CPU it also compiles the recording of a proven policy.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch

from cleanrl_utils import ranks
from cleanrl_utils.accelerate import proofs
from cleanrl_utils.accelerate.replay import Replayed
from cleanrl_utils.accelerate.variables import named_tensors

replayed: list[Replayed] = []  # of this run


def accelerate(args: Any, script: str, act: Callable, update: Callable, state: dict) -> tuple[Callable, Callable]:
    """The same two functions, faster where that is allowed. `state` holds all modules and optimizers they work on."""
    torch.utils.deterministic.fill_uninitialized_memory = False  # with NaNs, a help for debugging that costs time
    device = next(x.device.type for x in named_tensors(state).values())
    compiled = compile_update(update, state) if args.compile else update
    if args.accelerate == "off":
        return act, compiled
    audited = args.accelerate == "on"
    reason = "" if audited else proofs.why_not_proven(script, device)
    if args.compile and device == "cuda" and (audited or reason) and ranks.is_first():
        advice = "--accelerate on without --compile is likely faster"
        print(f"--compile: on a GPU this launches kernel by kernel; {advice}", file=sys.stderr)
    if reason:
        if ranks.is_first():
            print(reason, file=sys.stderr)
        return act, compiled
    compiles_act = args.compile and not audited and device == "cpu"
    replayed[:] = [Replayed(act, state, audited, compiles_act, args)]
    if args.compile and audited:  # an audit of a compiled replay would find its other roundings
        return replayed[0], compiled
    replayed.append(Replayed(update, state, audited, args.compile, args))  # faster than the function compiled
    return tuple(replayed)


def compile_update(update: Callable, state: dict) -> Callable:
    """The update compiled. Dynamo guards what it has read from Python: if `args` or a module change, it compiles anew.

    If all parameters belong to modules, the backward pass is traced into the graph of the loss, which is faster.
    Others, such as a temperature, would get no gradient in PyTorch 2.13 once the update was compiled anew.
    """
    import torch._inductor.config

    networks = torch.nn.ModuleList(x for x in state.values() if isinstance(x, torch.nn.Module))
    optimizers = [x for x in state.values() if isinstance(x, torch.optim.Optimizer)]
    learned = [x for optimizer in optimizers for group in optimizer.param_groups for x in group["params"]]
    torch._dynamo.config.trace_autograd_ops = set(networks.parameters()).issuperset(learned)
    torch._inductor.config.fallback_random = True  # the same random numbers as without it
    return torch.compile(update, dynamic=False)


def last_audit() -> None:
    """At the end of a run: a change of the script's behaviour since the last audit is found now, if not before."""
    for function in replayed:
        function.last_audit()
