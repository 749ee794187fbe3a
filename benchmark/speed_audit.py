"""What the audits of `--accelerate on` cost: steps/s of a file of ours, and the share of its time that audits take.

Usage:
    python benchmark/speed_audit.py sac_continuous_action --env-id HalfCheetah-v4 --total-timesteps 60000

Trains the file with `--accelerate on`, or with what the flags say, and times each audit. Audits come on the 2nd, 4th,
8th, ... call of a function, so most of them early; later they may take half a percent of the time for each of the two
functions. Both shares are printed: of the whole run after its first 1,000 steps, and of its second half.
"""

import runpy
import sys
import time
from pathlib import Path

import torch

from cleanrl_utils import run
from cleanrl_utils.accelerate.audit import Audit

ROOT = Path(__file__).resolve().parents[1]
EVERY = 1000  # steps between two looks at the clock

looks: list[tuple[int, float]] = []  # steps, and the time
audits: list[tuple[float, float]] = []  # when each began, and how long it took
next_look = EVERY
original_compare, original_due = Audit.compare, run.checkpoint_due


def wait_for_gpu() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def timed_compare(audit: Audit, inputs: tuple) -> object:
    wait_for_gpu()
    start = time.perf_counter()
    outputs = original_compare(audit, inputs)
    wait_for_gpu()
    audits.append((start, time.perf_counter() - start))
    return outputs


def watched_due(args: object, global_step: int, steps: int) -> bool:
    """Every file asks once per step or iteration whether a checkpoint is due: the place to look at the clock."""
    global next_look
    if global_step >= next_look:
        looks.append((global_step, time.perf_counter()))
        next_look = global_step + EVERY
    return original_due(args, global_step, steps)


def tell(name: str, first: int) -> None:
    (step, start), (last_step, end) = looks[first], looks[-1]
    here = [seconds for began, seconds in audits if start <= began <= end]
    print(
        f"{name} (steps {step} to {last_step}): {(last_step - step) / (end - start):.1f} steps/s; "
        f"{len(here)} audits, {sum(here):.2f} s, {100 * sum(here) / (end - start):.2f}% of the time"
    )


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit("speed_audit: name a file first, such as sac_continuous_action")
    script = ROOT / "cleanrl" / f"{sys.argv[1].removesuffix('.py')}.py"
    if not script.exists() or "jax" in script.stem:
        sys.exit(f"speed_audit: {script.name} is no file of cleanrl/ in PyTorch")
    Audit.compare, run.checkpoint_due = timed_compare, watched_due
    sys.argv = [str(script), "--accelerate", "on", *sys.argv[2:]]
    stopped = None
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as error:  # on Ctrl+C or SIGTERM, which are no reason to lose what was measured
        stopped = error
    if stopped and len(looks) < 4:
        raise stopped
    if len(looks) < 4:
        sys.exit(f"speed_audit: too short a run, take at least {5 * EVERY} steps")
    tell("all of it", 0)
    tell("second half", len(looks) // 2)
    if stopped:
        raise stopped


if __name__ == "__main__":
    main()
