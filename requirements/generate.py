"""Write what follows from the extras in pyproject.toml: `python requirements/generate.py`, after each change there.

The extras are kept in the table [tool.cleanrl.extras], where one may include others. From it are written, in
pyproject.toml itself, [project.optional-dependencies] for pip and uv and two tables for Poetry; and requirements/*.txt:
requirements.txt is the core, requirements-NAME.txt the core with one extra. Installed from the root of the repository:

    pip install -r requirements/requirements-atari.txt
"""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEAD = "# Written by requirements/generate.py from pyproject.toml. To be installed from the root of the repository.\n"
POETRY_PYTHON = ">=3.11,<3.14"  # Poetry resolves for all of them at once: those that the classifiers name
TOOLS = "-e . # cleanrl_utils: checkpoints, evaluation and the other tools around the files"
BEGIN = "# Written by requirements/generate.py from here to the end of the file, from [tool.cleanrl.extras].\n"


def requirement_files() -> dict[str, str]:
    """Name and text of each file."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = settings["tool"]["cleanrl"]["extras"]
    files = {"requirements.txt": [*settings["project"]["dependencies"], TOOLS]}
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


def pyproject() -> str:
    """pyproject.toml, its last part written anew."""
    text = (ROOT / "pyproject.toml").read_text().split(BEGIN)[0]
    settings = tomllib.loads(text)
    cleanrl = settings["tool"]["cleanrl"]
    return text + BEGIN + tables(cleanrl["extras"], settings["project"]["dependencies"], cleanrl["poetry"]["bounds"])


def tables(extras: dict[str, list[str]], core: list[str], bounds: list[str]) -> str:
    """The extras, each with all that it installs, and what Poetry needs in order to resolve them.

    Poetry (2.5.1) takes no extra that includes others. When two extras name one package, it resolves everything twice,
    with that package and without: 2^n times for n such packages. So each of these is kept from it where pip reads it,
    by a Python that does not exist, and given to it once, in a group, for all extras that want it. A package that the
    core has as well stays where it is. The group has the core, too: else Poetry works out for each package below it on
    which platforms and for which extras the group needs it, and had not come to an end after five minutes.
    """
    full = {extra: requirements_of(extra, extras) for extra in extras}
    wanted_by: dict[str, list[str]] = {}
    for extra, lines in full.items():
        for line in lines:
            wanted_by.setdefault(line, []).append(extra)
    core_names = {split(line)[0] for line in core}
    several = {line: names for line, names in wanted_by.items() if len(names) > 1 and split(line)[0] not in core_names}
    hidden = [f'{split(line)[0]} = {{ version = "*", python = "<3" }}' for line in several]
    group = [for_poetry(line) for line in [*core, *bounds]]
    group += [
        for_poetry(line, " or ".join(f"extra == '{x.replace('_', '-')}'" for x in several[line])) for line in several
    ]
    lines = ["[project.optional-dependencies]"]
    for extra, requirements in full.items():
        lines += [f"{extra} = [", *(f'    "{requirement}",' for requirement in requirements), "]"]
    lines += ["", "[tool.poetry.dependencies]", f'python = "{POETRY_PYTHON}"', *hidden]
    lines += ["", "[tool.poetry.group.extras.dependencies]", *group]
    return "\n".join(lines) + "\n"


def for_poetry(requirement: str, extras: str = "") -> str:
    """A line of Poetry's table, under the condition that a marker such as extra == 'atari' names."""
    name, features, versions, marker = split(requirement)
    values = {"version": f'"{versions}"'}
    if features:
        values["extras"] = f'["{features}"]'
    if marker or extras:
        values["markers"] = f'"{f"{marker} and ({extras})" if marker and extras else marker or extras}"'
    return f"{name} = {{ {', '.join(f'{key} = {value}' for key, value in values.items())} }}"


def split(requirement: str) -> tuple[str, str, str, str]:
    """Name, extras, versions and marker."""
    name, features, versions, marker = re.fullmatch(
        r"([\w.-]+)(?:\[(\w[\w.-]*)\])?\s*([^;]*?)\s*(?:;\s*(.+))?", requirement
    ).groups(default="")
    return name, features, versions, marker


if __name__ == "__main__":
    (ROOT / "pyproject.toml").write_text(pyproject())
    folder = ROOT / "requirements"
    files = requirement_files()
    for old in folder.glob("*.txt"):
        if old.name not in files:
            old.unlink()
    for name, text in files.items():
        (folder / name).write_text(text)
    print(f"{folder.name}: {len(files)} files")
