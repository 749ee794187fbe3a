"""Read a checkpoint, and put everything back as it was then."""

import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from cleanrl_utils import backend, jax_trees, ranks
from cleanrl_utils.backend import is_tensor
from cleanrl_utils.checkpoint import OURS
from cleanrl_utils.envpool_games import is_pool, new_pool
from cleanrl_utils.snapshot import reset_with_fresh_seeds, restore_snapshot

ADDED = {"changed", "run_dir", "is_edited"}  # to a checkpoint that is read, by `load` and by `run.prepare`
# What belongs to the episodes that the environments are in. If those start again, so does this.
OF_EPISODES = ("next_obs", "running_return", "lstm_state", "memory", "position")


def load(run_dir: str, script: str) -> dict:
    """The last checkpoint of a run of `script`; the program ends with one line if there is none.

    Like any pickle, a checkpoint can execute code when it is loaded: resume only runs you trust.
    """
    path, name = Path(run_dir, "checkpoint.pt"), Path(script).name
    if not path.exists():
        sys.exit(f"--resume {run_dir}: the run has no checkpoint yet; start it again")
    try:
        checkpoint = backend.load(path)
    except Exception as error:  # a damaged file raises whatever its damage leads to
        sys.exit(f"--resume {run_dir}: cannot read checkpoint.pt: {one_line(error)}")
    fields = sorted(OURS | {"global_step"})
    missing = fields if not isinstance(checkpoint, dict) else [name for name in fields if name not in checkpoint]
    if missing:
        sys.exit(f"--resume {run_dir}: checkpoint.pt lacks {', '.join(missing)}; it was saved by another version")
    if checkpoint["script"] != name:
        sys.exit(f"--resume {run_dir}: a run of {checkpoint['script']}, not of {name}; resume it with that script")
    copy = Path(run_dir, name)  # of the file as it was
    checkpoint["is_edited"] = copy.exists() and copy.read_bytes() != Path(script).read_bytes()
    return checkpoint


def restore(checkpoint: dict, state: dict) -> None:
    """Put everything in `state` back as it was at the checkpoint, in place where the script holds on to it.

    Modules, optimizers and replay buffers load their state, tensors are overwritten, and other values are replaced: the
    script reads them from `state` afterwards. Environments that cannot be restored start again, with other seeds.
    """
    missing = [name for name in state if name not in checkpoint]
    if missing:
        sys.exit(f"--resume: the checkpoint lacks {', '.join(missing)}; {what_has_changed(checkpoint)}")
    unknown = [name for name in checkpoint if name not in state and name not in OURS | ADDED]
    if unknown and ranks.is_first():
        print(f"--resume: the checkpoint also holds {', '.join(unknown)}, which this file leaves out", file=sys.stderr)
    goes_on = "envs" not in state or restore_envs(checkpoint, state)
    for name, value in state.items():
        if name == "envs" or (name in OF_EPISODES and not goes_on):
            continue
        try:
            state[name] = put_back(value, checkpoint[name], checkpoint)
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
            sys.exit(f"--resume: {name} does not fit the checkpoint: {one_line(error)}; {what_has_changed(checkpoint)}")
    backend.set_random_states(checkpoint)


def put_back(value: Any, saved: Any, checkpoint: dict) -> Any:
    """The value as it was saved: the same object where it can be changed, else what was saved."""
    torch = backend.pytorch()
    if torch and isinstance(value, torch.optim.Optimizer):
        load_optimizer(value, saved, checkpoint)
    elif hasattr(value, "load_state_dict"):
        value.load_state_dict(saved)
    elif jax_trees.is_tree(value):
        return jax_trees.from_numpy(value, saved)
    elif is_tensor(value) and is_tensor(saved):
        if value.shape != saved.shape:
            raise ValueError(f"its shape was {tuple(saved.shape)} and is {tuple(value.shape)} now")
        with torch.no_grad():
            value.copy_(saved)
    elif isinstance(value, list | tuple) and any(is_tensor(x) for x in value):
        for x, saved_x in zip(value, saved, strict=True):
            put_back(x, saved_x, checkpoint)
    elif isinstance(value, np.ndarray) and value.shape != np.shape(saved):
        raise ValueError(f"its shape was {np.shape(saved)} and is {value.shape} now")
    else:
        return saved
    return value


def load_optimizer(optimizer: Any, saved: dict, checkpoint: dict) -> None:
    """Load the moments, and the settings, such as eps: of a file that was edited since, those that its text says.

    Learning rates that are tensors stay the script's own, which a schedule changes; they get the saved values. Not if
    the rates were changed by flags: then those hold.
    """
    keep_rates = rates_were_changed(checkpoint)
    settings = [{key: x for key, x in group.items() if key != "params"} for group in optimizer.param_groups]
    for old, new in zip(saved["param_groups"], settings):
        if old.keys() - {"params"} != new.keys():
            raise ValueError("it was an optimizer of another kind")
    optimizer.load_state_dict(saved)
    for group, own in zip(optimizer.param_groups, settings, strict=True):
        rate = own.pop("lr")
        if checkpoint.get("is_edited"):
            group.update(own)
        if is_tensor(rate) and not keep_rates:
            rate.copy_(backend.pytorch().as_tensor(group["lr"]))
        if is_tensor(rate) or keep_rates:
            group["lr"] = rate


def rates_were_changed(checkpoint: dict) -> bool:
    """Whether flags beside --resume change a learning rate, or how it is annealed."""
    return any(re.search(r"learning_rate|(^|_)lr($|_)", name) for name in checkpoint.get("changed", []))


def restore_envs(checkpoint: dict, state: dict) -> bool:
    """Put the environments into their saved state, or start their episodes again with seeds that were not used yet.

    Returns whether the episodes go on.
    """
    try:
        if checkpoint["envs"] is not None:
            restore_snapshot(state["envs"], checkpoint["envs"])
            return True
        reason = "these environments cannot be saved"
    except Exception as error:  # whatever a foreign object raises when its attributes have changed
        reason = f"the saved environments do not fit the present ones ({one_line(error)})"
    if ranks.is_first():
        print(f"{reason}: their episodes start again", file=sys.stderr)
    numbers = [checkpoint["args"].get("seed", 0), checkpoint["global_step"], ranks.number()]
    seed = int(np.random.SeedSequence(numbers).generate_state(1)[0]) >> 2  # EnvPool takes 30 bits
    state["envs"], state["next_obs"] = start_again(state["envs"], seed)
    return False


def start_again(envs: Any, seed: int) -> tuple[Any, np.ndarray]:
    """The environments, seeded anew, and their first observations."""
    if isinstance(envs, list):  # pools of EnvPool, which take their seeds when they are made
        envs[:] = [new_pool(pool, seed + idx) for idx, pool in enumerate(envs)]
        return envs, np.concatenate([pool.reset()[0] for pool in envs])
    if is_pool(envs):
        envs = new_pool(envs, seed)
        return envs, envs.reset()[0]
    return envs, reset_with_fresh_seeds(envs, seed)


def what_has_changed(checkpoint: dict) -> str:
    """Why a checkpoint may not fit, and where to look."""
    run_dir = checkpoint.get("run_dir", "RUN_DIR")
    return f"the environment or the file has changed since; the file was {run_dir}/{checkpoint['script']}"


def one_line(error: BaseException) -> str:
    return textwrap.shorten(str(error), 200) or type(error).__name__
