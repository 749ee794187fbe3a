"""Ask git."""

import subprocess
from collections.abc import Sequence
from pathlib import Path


class GitError(Exception):
    """What git complains about, in one line."""


def run_git(*arguments: str, cwd: Path | None = None, codes: Sequence[int] = (0,)) -> str:
    """The output of a git command; GitError if it ends with another exit code than these."""
    settings = {"capture_output": True, "encoding": "utf-8", "errors": "surrogateescape", "timeout": 60}
    try:
        result = subprocess.run(["git", *arguments], cwd=cwd, **settings)
    except FileNotFoundError:
        raise GitError("git is not installed") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GitError(str(error)) from error
    if result.returncode not in codes:
        raise GitError(result.stderr.partition("\n")[0].removeprefix("fatal: "))
    return result.stdout


def git(*arguments: str, cwd: Path | None = None) -> str:
    """What git says, or nothing: no git, no repository and no answer are all the same to who asks this way."""
    try:
        return run_git(*arguments, cwd=cwd).strip()
    except GitError:
        return ""
