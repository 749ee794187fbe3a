"""The container and the Terraform files, as far as they can be checked without Docker and without the network."""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from conftest import ROOT

LINES = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
DOCKERFILE = [shlex.split(line) for line in LINES if line and not line.startswith("#")]
TERRAFORM = {path.name: path.read_text() for path in (ROOT / "cloud").glob("*.tf")}


def copy_like_docker(source: str, target: str, folder: Path) -> None:
    """COPY: a folder's contents go into the target, a file below it."""
    assert f"!{source.split('/')[0]}" in (ROOT / ".dockerignore").read_text().splitlines(), f"{source} is ignored"
    if (ROOT / source).is_dir():
        caches = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / source, folder / target, ignore=caches, dirs_exist_ok=True)
    else:
        (folder / target).mkdir(exist_ok=True)
        shutil.copy(ROOT / source, folder / target)


def test_the_container_holds_all_that_the_install_and_an_experiment_need(tmp_path):
    for word, *rest in DOCKERFILE:
        if word == "COPY":
            for source in rest[:-1]:
                copy_like_docker(source, rest[-1], tmp_path)
        if word == "RUN" and "-e" in rest:  # the install
            project = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]
            needed = [project["readme"], *project["license-files"], "cleanrl/__init__.py", "cleanrl_utils/__init__.py"]
            assert all((tmp_path / name).exists() for name in needed), "copied after the install that needs it"
    extras = next(rest[0] for word, *rest in DOCKERFILE if word == "ARG").split("=")[1].split(",")
    assert set(extras) <= project["optional-dependencies"].keys()
    origin = "import cleanrl_utils.supervisor as x, cleanrl_utils.engines.aws as y; print(x.__file__, y.__file__)"
    result = subprocess.run([sys.executable, "-c", origin], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert all(Path(path).is_relative_to(tmp_path) for path in result.stdout.split())
    assert (tmp_path / "cleanrl" / "ppo.py").exists()


def test_terraform_files_are_formatted():
    if not shutil.which("terraform"):
        pytest.skip("no terraform here")
    subprocess.run(["terraform", f"-chdir={ROOT / 'cloud'}", "fmt", "-check", "-diff"], check=True)


def test_everything_the_terraform_files_refer_to_is_declared_and_every_variable_is_used():
    text = "\n".join(re.sub(r"#.*", "", part) for part in TERRAFORM.values())
    declared = {f"{kind}.{name}" for kind, name in re.findall(r'^resource "(\w+)" "(\w+)"', text, re.MULTILINE)}
    declared |= {f"data.{kind}.{name}" for kind, name in re.findall(r'^data "(\w+)" "(\w+)"', text, re.MULTILINE)}
    variables = set(re.findall(r'^variable "(\w+)"', text, re.MULTILINE))
    references = set(re.findall(r"(?<![\w.\"/:])((?:data\.)?aws_\w+\.\w+)", text))
    assert len(references) > 15 and references <= declared
    assert set(re.findall(r"\bvar\.(\w+)", text)) == variables


def test_queue_and_definition_have_the_names_the_benchmark_asks_for():
    from cleanrl_utils.benchmark import Args

    defaults = Args(env_ids=[], command="")
    assert re.search(rf"^    {defaults.aws_job_queue} +=", TERRAFORM["variables.tf"], re.MULTILINE)
    assert f'default     = "{defaults.aws_job_definition}"' in TERRAFORM["variables.tf"]
    assert "WORKDIR /cleanrl" in (ROOT / "Dockerfile").read_text()
    assert 'containerPath = "/cleanrl/runs"' in TERRAFORM["main.tf"]
