"""Atari games by the ids of other libraries: `--env-id BreakoutNoFrameskip-v4` means Breakout-v5 to EnvPool.

The default of a file's `--env-id` shows how the file spells its games. What is not certainly one of them is left as it
is, and `env_errors.py` explains it when the environment cannot be made.
"""

import dataclasses
import re
import sys
from typing import Any

from cleanrl_utils import ranks
from cleanrl_utils.env_errors import is_atari


def understand_env_id(args: Any) -> Any:
    """The arguments with the game's id as the file spells it, and a line about it."""
    default = next(field.default for field in dataclasses.fields(args) if field.name == "env_id")
    if re.fullmatch(r"\w+-v5", str(default)):
        env_id, library = for_envpool(args.env_id), "EnvPool"
    elif re.fullmatch(r"\w+NoFrameskip-v4", str(default)):
        env_id, library = for_gymnasium(args.env_id), "gymnasium"
    else:
        return args
    if env_id != args.env_id and ranks.is_first():
        line = f"--env-id {args.env_id}: taken as {env_id}, the same game in {library}, which this file uses"
        if args.env_id.startswith("ALE/"):
            line += "; it comes without the sticky actions of ALE/, unless the file adds them"
        print(line, file=sys.stderr)
    return dataclasses.replace(args, env_id=env_id)


def for_envpool(env_id: str) -> str:
    """Breakout-v5 for BreakoutNoFrameskip-v4, ALE/Breakout-v5 and Breakout."""
    named = re.fullmatch(r"ALE/(\w+)-v5|(\w+)NoFrameskip-v4|(\w+)", env_id)
    if not named:
        return env_id
    try:
        import envpool
    except ImportError:  # the file is about to import it, too, and explains what is missing
        return env_id
    translated = f"{named[1] or named[2] or named[3]}-v5"
    return translated if translated in envpool.list_all_envs() else env_id


def for_gymnasium(env_id: str) -> str:
    """BreakoutNoFrameskip-v4 for Breakout-v5 and Breakout; gymnasium knows ALE/Breakout-v5 itself."""
    named = re.fullmatch(r"(\w+)-v5|(\w+)", env_id)
    game = named and (named[1] or named[2])
    return f"{game}NoFrameskip-v4" if game and is_atari(game) else env_id
