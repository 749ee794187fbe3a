"""Commands for the user to paste: programs of this environment, and what makes a run again or continues it."""

import ast
import os
import shlex
import shutil
import sys
from functools import cache
from pathlib import Path
from typing import Any

# Where a run was logged, and how fast it was, says nothing about what was trained.
NOT_TO_REPEAT = {"resume", "track", "wandb_project_name", "wandb_entity", "upload_model", "hf_entity", "accelerate"}
BENCHMARK = Path(__file__).resolve().parents[1] / "benchmark"  # a few scripts there train, too
COMPUTED = "# Computed at run time"  # below this line, the arguments of an algorithm file are not the user's to set


def tool(name: str) -> str:
    """A program by its name only if the environment is active, else by its path."""
    path = Path(sys.executable).with_name(name)
    if shutil.which(name) == str(path) or not path.exists():
        return name
    return os.path.relpath(path)


def resume_command(run_dir: str | Path, script: str) -> str:
    """The command that continues the run in a folder."""
    program = tool("python")
    world_size = os.environ.get("WORLD_SIZE")
    if world_size:  # this process was started by torchrun
        program = f"{tool('torchrun')} --standalone --nproc_per_node={world_size}"
    return f"{program} {os.path.relpath(script)} --resume {run_dir}"


def command_again(source: Path, args: dict) -> str:
    """The command that makes a run again: the environment, the seed, and the flags that are not at their defaults.

    `source` is the algorithm file. It is read and not executed; SyntaxError if it is no Python.
    """
    folder = "benchmark" if (BENCHMARK / source.name).exists() else "cleanrl"
    words = ["python", f"{folder}/{source.name}"]
    if args.get("world_size", 1) > 1:
        words[:1] = ["torchrun", "--standalone", f"--nproc_per_node={args['world_size']}"]
    words += ["--env-id", str(args["env_id"]), "--seed", str(args["seed"])]
    for name, default in settable_args(source.read_text()).items():
        if name == "exp_name":  # the name of the file, if the user says nothing
            default = source.stem
        if name not in args or name in NOT_TO_REPEAT | {"env_id", "seed"} or args[name] == default:
            continue
        flag, value = name.replace("_", "-"), args[name]
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", *map(str, value if isinstance(value, list | tuple) else [value])]
    return shlex.join(words)


@cache  # hundreds of runs are of a few files
def settable_args(source: str) -> dict[str, Any]:
    """The arguments of an algorithm file that a user can set, with their defaults; `...` for one that is computed."""
    above, _, _ = source.partition(f"    {COMPUTED}\n")
    last_line = above.count("\n")
    found = {}
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "Args"]
    for field in classes[0].body if classes else ():
        is_field = isinstance(field, ast.AnnAssign) and field.value is not None and field.lineno <= last_line
        if is_field and "Suppress" not in ast.unparse(field.annotation):
            try:
                found[field.target.id] = ast.literal_eval(field.value)
            except ValueError:
                found[field.target.id] = ...
    return found
