"""The documentation says what is so: links lead somewhere, and commands run."""

import re
import shlex
import shutil
import socket
import time
import urllib.request
from pathlib import Path

import pytest
from conftest import ROOT, SHORT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]


LINK = r"\[(`[^`]+`|[^\]]*)\]\(([^)#\s]*)(?:#([^)\s]*))?\)"  # text, target, anchor; code may hold brackets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings_that_exist(page):
    """Links to a piece of code in a file are the business of tests/test_site.py."""
    for _, target, anchor in re.findall(LINK, page.read_text()):
        if target.startswith("http"):
            continue
        path = page.parent / target if target else page  # without a target: a heading of this page
        assert path.exists(), f"{page.name}: {target}"
        if path.suffix == ".md" and anchor:
            assert anchor in headings(path), f"{page.name}: {target} has no heading #{anchor}"
        elif path.suffix != ".py":
            assert not anchor, f"{page.name}: nobody knows what #{anchor} of {target} means"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_of_reference_files_are_links(page):
    """In `[ppo2/model.py]`, the address is given at the end of the page: each name has one, and each address a name."""
    text = re.sub(r"`[^`]*`", "", page.read_text())  # without code
    used = set(re.findall(r"\[([\w ./-]+\.(?:py|h|lua))\](?![(:])", text))
    assert used == set(re.findall(r"^\[([^\]]+)\]: https://github\.com/", text, re.MULTILINE)), page.name


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and mkdocs make them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}


@pytest.mark.parametrize("path", sorted(ROOT.glob("cleanrl/[!_]*.py")), ids=lambda path: path.name)
def test_metrics_that_a_file_logs_are_explained(path):
    """On its page, or on one to which its section about metrics leads."""
    pages = [ROOT / "docs" / "rl-algorithms" / f"{path.stem}.md"]
    explained = set()
    for page in pages:  # it grows
        section = page.read_text().partition("### Metrics\n")[2].partition("\n### ")[0]
        explained |= {name for metric in re.findall(r"`([a-z]+/[\w/]+)`", section) for name in metric.split("/")}
        linked = [page.parent / name for name in re.findall(r"\]\((\w+\.md)#metrics\)", section)]
        pages += [page for page in linked if page not in pages]
    logged = logged_metrics(path.read_text())
    assert len(logged) > 4  # episodes, speed and losses
    assert logged <= explained, f"{path.stem}.md does not explain {logged - explained}"


def logged_metrics(source: str) -> set[str]:
    """The last words of the metrics: of those that are logged one by one, and of the dictionaries of losses."""
    names = set(re.findall(r'add_scalar\(f?"[\w/]*?(\w+)"', source))
    names |= set(re.findall(r'\b(?:stats|means)\["(\w+)"\] = ', source)) - {"is_active"}
    dictionaries = re.findall(r"(?:\bstats = |\breturn \w+, )\{(.*?)\}", source, re.DOTALL)
    return names | set(re.findall(r'"(\w+)": ', " ".join(dictionaries)))


# Flags of other programs (torchrun, pip, uv, Docker, TensorBoard, XLA), and of none: the tuner's page says `--flag`.
FOREIGN = {"standalone", "nnodes", "nproc-per-node", "upgrade", "logdir", "flag", "extra", "rm", "gpus", "build-arg"}
FOREIGN |= {"xla-cpu-prefer-vector-width"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_flags_that_a_page_names_exist(page):
    """A flag that is gone, such as --cudagraphs, must not live on in the documentation."""
    sources = [*ROOT.glob("cleanrl/*.py"), *ROOT.glob("cleanrl_utils/**/*.py"), *ROOT.glob("benchmark/*.py")]
    code = "\n".join(path.read_text() for path in sources)
    known = {name.replace("_", "-") for name in re.findall(r"^ +(\w+): ", code, re.MULTILINE)}  # fields and arguments
    known |= set(re.findall(r'"--([\w-]+)"', code)) | FOREIGN
    named = re.findall(r"(?<![\w-])--(?:no-)?([a-z][\w-]*)", page.read_text())
    unknown = {name for name in named if name.replace("_", "-") not in known}
    assert not unknown, f"{page.name} names flags that no program has: {unknown}"


def test_contributing_says_what_each_module_is_for():
    """Every module of cleanrl_utils is in the map for readers, and the map names no other."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text.partition("## What is where in `cleanrl_utils/`")[2].partition("\n## ")[0]
    named = set()  # paths in cleanrl_utils; a row about a folder names the modules in it without their folder
    for row in table.splitlines():
        folder = "".join(re.findall(r"^\| `(\w+/)` \|", row))
        named |= {folder + name for name in re.findall(r"`([\w/]+\.py)`", row)}
    paths = [path for path in ROOT.glob("cleanrl_utils/**/*.py") if path.name != "__main__.py"]
    modules = {path.relative_to(ROOT / "cleanrl_utils").as_posix() for path in paths if path.read_text()}
    without_map = {"engines/__init__.py", "rlops/__init__.py"}  # the row of the folder is about them
    assert named == modules - without_map


def commands(page: Path) -> list[str]:
    """The commands of a page's bash blocks, without their comments."""
    blocks = re.findall(r"```bash\n(.*?)```", page.read_text(), re.DOTALL)
    lines = [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line]


def test_commands_of_the_readme_run_as_written(runner):
    """Each in turn, trainings shortened by further flags; installs and make are what CI does to get here."""
    shutil.copytree(ROOT / "cleanrl", runner.folder / "cleanrl")
    readme = commands(ROOT / "README.md")
    assert len(readme) > 15
    for line in readme:
        words = shlex.split(line.replace("WANDB_MODE=offline ", ""))
        runs = sorted(runner.folder.glob("runs/*/ppo.safetensors"))
        words = [str(runs[-1].parent) if word == "RUN_DIR" else word for word in words]
        if words[0] in ("make", "pip", "source", "python3"):
            continue
        if words[0] == "tensorboard":
            check_tensorboard(runner, words[1:])
        elif words[1] == "-i":
            assert words[2:] == ["cleanrl/ppo.py"]  # tests/test_ppo_behaviour.py interrupts such a run
        elif words[1] == "tuner_example.py":
            continue  # tests/test_tuner.py runs it, shortened
        elif words[1:3] == ["-m", "cleanrl_utils.benchmark"]:
            command = words.index("--command") + 1
            words[command] += " " + " ".join(SHORT)
            words[words.index("--num-seeds") + 1] = "1"
            runner.run(*words[1:])
        elif words[1] == "-m":
            runner.run(*words[1:])
        else:
            scripts = ("cleanrl/ppo.py", "cleanrl/dqn.py", "cleanrl/ppo_atari_envpool.py")
            assert words[0] == "python" and words[1] in scripts, f"nobody has tried: {line}"
            short = [] if "--help" in words else SHORT
            if words[1] == "cleanrl/dqn.py":
                short = ["--no-cuda", "--learning-starts", "100", "--total-timesteps", "500"]
            short = (
                ["--total-timesteps", "2560"] if "--total-timesteps" in words else [] if "--resume" in words else short
            )
            runner.run(*words[1:], *short)


def check_tensorboard(runner, flags):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = runner.start("-m", "tensorboard.main", *flags, "--port", port)
    try:
        for _ in range(300):
            time.sleep(0.1)
            try:
                page = urllib.request.urlopen(f"http://127.0.0.1:{port}/data/plugin/scalars/tags", timeout=5).read()
            except OSError:
                continue
            if b"episodic_return" in page:
                return
        raise TimeoutError("TensorBoard does not show the runs")
    finally:
        server.kill()
        server.communicate()
