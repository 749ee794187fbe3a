"""Write requirements/*.txt from pyproject.toml: `python requirements/generate.py`, after each change there.

requirements.txt is the core, requirements-NAME.txt the core with one extra. Installed from the root of the repository:

    pip install -r requirements/requirements-atari.txt
"""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEAD = "# Written by requirements/generate.py from pyproject.toml. To be installed from the root of the repository.\n"
TOOLS = "-e . # cleanrl_utils: checkpoints, evaluation and the other tools around the files"


def requirement_files() -> dict[str, str]:
    """Name and text of each file."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    files = {"requirements.txt": [*project["dependencies"], TOOLS]}
    for extra in extras:
        files[f"requirements-{extra}.txt"] = ["-r requirements.txt", *requirements_of(extra, extras)]
    return {name: HEAD + "\n".join(lines) + "\n" for name, lines in files.items()}


def requirements_of(extra: str, extras: dict[str, list[str]]) -> list[str]:
    """What an extra installs; `cleanrl[mujoco,jax]` in it stands for all that those extras install."""
    lines = []
    for line in extras[extra]:
        included = re.fullmatch(r"cleanrl\[(.+)\]", line)
        lines += [x for name in included[1].split(",") for x in requirements_of(name, extras)] if included else [line]
    return list(dict.fromkeys(lines))  # each once


if __name__ == "__main__":
    folder = ROOT / "requirements"
    files = requirement_files()
    for old in folder.glob("*.txt"):
        if old.name not in files:
            old.unlink()
    for name, text in files.items():
        (folder / name).write_text(text)
    print(f"{folder.name}: {len(files)} files")
