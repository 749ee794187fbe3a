"""What users type to install: requirements/*.txt, extras of poetry and uv, containers, all from one pyproject.toml."""

import importlib.util
import json
import re
import shutil
import subprocess
import tomllib

import pytest
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


def test_extras_of_pip_and_poetry_are_written_from_one_table():
    written = (ROOT / "pyproject.toml").read_text()
    assert generator().pyproject() == written, "python requirements/generate.py"
    assert EXTRAS.keys() == PROJECT["tool"]["cleanrl"]["extras"].keys()


def test_poetry_reads_a_package_of_several_extras_once():
    extras = {
        "atari": ["ale-py>=1,<2", "gym[atari]>=1"],
        "games": ["cleanrl[atari]", "ray[tune]>=2; python_version < '3.13'", "pygame"],
        "my_all": ["cleanrl[games]"],
    }
    tables = tomllib.loads(
        generator().tables(extras, core=["gym[classic]>=1"], bounds=["nccl==2; sys_platform == 'linux'"])
    )
    games = ["ale-py>=1,<2", "gym[atari]>=1", "ray[tune]>=2; python_version < '3.13'", "pygame"]
    assert tables["project"]["optional-dependencies"] == {"atari": games[:2], "games": games, "my_all": games}
    hidden = tables["tool"]["poetry"]["dependencies"]
    assert hidden.pop("python") and hidden.keys() == {"ale-py", "ray", "pygame"}  # gym is in the core
    group = tables["tool"]["poetry"]["group"]["extras"]["dependencies"]
    assert group["gym"] == {"version": ">=1", "extras": ["classic"]}
    assert group["nccl"] == {"version": "==2", "markers": "sys_platform == 'linux'"}
    assert group["ale-py"]["markers"] == "extra == 'atari' or extra == 'games' or extra == 'my-all'"
    assert group["ray"] == {
        "version": ">=2",
        "extras": ["tune"],
        "markers": "python_version < '3.13' and (extra == 'games' or extra == 'my-all')",
    }


def test_poetry_installs_with_an_extra_what_pip_installs():
    poetry = PROJECT["tool"]["poetry"]
    bounds = {re.match(r"[\w.-]+", bound)[0] for bound in PROJECT["tool"]["cleanrl"]["poetry"]["bounds"]}
    group = {name: x for name, x in poetry["group"]["extras"]["dependencies"].items() if name not in bounds}
    for extra, requirements in EXTRAS.items():
        names = {re.match(r"[\w.-]+", requirement)[0] for requirement in requirements}
        assert not any(requirement.startswith("cleanrl") for requirement in requirements)
        from_group = {name for name, x in group.items() if f"'{extra.replace('_', '-')}'" in x.get("markers", "")}
        assert (names - poetry["dependencies"].keys()) | from_group == names, extra


def test_poetry_takes_the_settings(tmp_path):
    if not shutil.which("poetry"):
        pytest.skip("poetry is not installed")
    for name in ("pyproject.toml", "README.md", "LICENSE"):  # without a poetry.lock that may be old
        shutil.copy(ROOT / name, tmp_path)
    result = subprocess.run(["poetry", "check", "--no-plugins"], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


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
