"""What users type to install: requirements/*.txt, extras of poetry and uv, containers, all from one pyproject.toml."""

import importlib.util
import json
import re
import tomllib

from conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]


def generator():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "requirements" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_requirement_files_are_those_of_pyproject():
    files = {path.name: path.read_text() for path in (ROOT / "requirements").glob("*.txt")}
    assert files == generator().requirement_files(), "python requirements/generate.py"


def test_requirement_file_exists_for_what_the_published_project_had():
    """The names that people have in their notes and Dockerfiles."""
    names = ["atari", "mujoco", "envpool", "procgen", "pettingzoo", "jax", "optuna", "dm_control", "docs", "cloud"]
    for name in names:
        assert (ROOT / "requirements" / f"requirements-{name}.txt").exists()


def test_requirement_file_spells_out_the_extras_that_an_extra_includes():
    """A line cleanrl[atari] would fetch the published project from PyPI."""
    extras = {"atari": ["ale-py"], "jax": ["jax", "flax"], "games": ["cleanrl[atari,jax]", "flax", "pygame"]}
    assert generator().requirements_of("games", extras) == ["ale-py", "jax", "flax", "pygame"]
    for path in (ROOT / "requirements").glob("*.txt"):
        assert "cleanrl[" not in path.read_text()


def extras_of(text: str) -> set[str]:
    return set(text.split(","))


def test_containers_install_extras_that_exist():
    (default,) = re.findall(r"^ARG EXTRAS=(\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert extras_of(default) <= EXTRAS.keys()
    container = read_dev_container()
    assert extras_of(container["build"]["args"]["EXTRAS"]) <= EXTRAS.keys()
    assert (ROOT / ".devcontainer" / container["build"]["dockerfile"]).resolve() == ROOT / "Dockerfile"


def test_dev_container_uses_the_environment_of_the_image():
    workdir, venv = re.findall(r"^WORKDIR (\S+)\nRUN python3 -m venv (\S+)", (ROOT / "Dockerfile").read_text(), re.M)[0]
    container = read_dev_container()
    assert container["containerEnv"]["VENV"] == f"{workdir}/{venv}"
    assert container["customizations"]["vscode"]["settings"]["python.defaultInterpreterPath"].startswith(
        f"{workdir}/{venv}"
    )


def read_dev_container() -> dict:
    text = (ROOT / ".devcontainer" / "devcontainer.json").read_text()
    return json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))  # the format allows comments


def test_gitpod_calls_targets_of_the_makefile():
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    called = re.findall(r"make (\w+)", (ROOT / ".gitpod.yml").read_text())
    assert called and set(called) <= set(targets)
