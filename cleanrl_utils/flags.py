"""Flags as they were once written, and flags without effect: a line that says what to write now.

`--cuda False` is the spelling of argparse; here `cuda` is a switch, `--no-cuda` turns it off.
"""

import dataclasses
import re
import sys
from pathlib import Path
from typing import Any

from cleanrl_utils import command_line

TRUE, FALSE = {"true", "t", "yes", "y", "1", "on"}, {"false", "f", "no", "n", "0", "off"}
# What became of flags of earlier releases.
RENAMED = {
    "gym-id": "--env-id",
    "env": "--env-id",
    "prod-mode": "--track",
    "torch-not-deterministic": "--no-torch-deterministic",
    "kle-stop": "--target-kl with a number",
    "kle-rollback": "--target-kl with a number",
    "gae": "nothing: it is always on (--gae-lambda 1 is without)",
    "cudagraphs": "--accelerate auto",
    "jit": "--compile",
}


def parse_args(args_class: Any) -> Any:
    """Read the flags of the command line; one that is spelt as it used to be, or has no effect, ends the program."""
    script = Path(sys.modules[args_class.__module__].__file__)
    line = find_old_spelling(args_class, sys.argv[1:]) or find_computed(script.read_text(), sys.argv[1:])
    if line:
        sys.exit(line)
    return command_line.parse(args_class, prog=f"python {sys.argv[0]}")


def find_computed(source: str, argv: list[str]) -> str | None:
    """Which flag has no effect, as the script computes its value whatever was given: `args.x = ...` without an x."""
    computed = dict(re.findall(r"^    args\.(\w+) = (.+)$", source, re.MULTILINE))
    for word in argv:
        name = word.removeprefix("--").partition("=")[0].replace("-", "_")
        formula = computed.get(name, f"args.{name}")
        if word.startswith("--") and not re.search(rf"\bargs\.{re.escape(name)}\b", formula):
            return f"{word.partition('=')[0]}: has no effect, as the script computes it: {formula.replace('args.', '')}"
    return None


def find_old_spelling(args_class: Any, argv: list[str]) -> str | None:
    """What to write instead of the first flag that is spelt the old way."""
    fields = {field.name.replace("_", "-"): field for field in dataclasses.fields(args_class)}
    switches = {name: field.default for name, field in fields.items() if isinstance(field.default, bool)}
    for word, following in zip(argv, [*argv[1:], ""]):
        if not word.startswith("--"):
            continue
        flag, equals, value = word[2:].partition("=")
        name = flag.replace("_", "-")
        value = value if equals else following
        if name in RENAMED and name not in fields:
            return f"--{flag}: write {RENAMED[name]}"
        positive = name.removeprefix("no-") if name not in switches else name
        if positive in switches and (equals or value.lower() in TRUE | FALSE):
            if value.lower() not in TRUE | FALSE:
                return f"--{flag} {value}: a switch takes no value; write --{positive} or --no-{positive}"
            wanted = (value.lower() in TRUE) == (positive == name)  # --no-cuda True is off
            write = f"--{positive}" if wanted else f"--no-{positive}"
            default = " (or nothing: that is the default)" if wanted == switches[positive] else ""
            return f"--{flag} {value}: a switch takes no value; write {write}{default}"
    return None
