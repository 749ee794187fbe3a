"""Helpers of the tests: run an algorithm file as a user does, and read what it leaves behind."""

import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from safetensors.numpy import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ROOT = Path(__file__).resolve().parents[1]
PPO = ROOT / "cleanrl" / "ppo.py"
# A run of 20 short iterations: a few seconds, most of them for importing PyTorch.
SHORT = ["--no-cuda", "--num-envs", "2", "--num-steps", "32", "--num-minibatches", "2", "--total-timesteps", "1280"]

ENVIRONMENT = {"WANDB_MODE": "offline", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


def heed_interrupts() -> None:
    """Ctrl+C works in a test's program even if the tests themselves run in the background, where it is ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Zygote:
    """Starts Python programs quickly: see tests/zygote.py."""

    def __init__(self) -> None:
        # Without what a single test sets: each program gets that with its own request
        environment = {name: x for name, x in os.environ.items() if not name.startswith("CLEANRL_")} | ENVIRONMENT
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
        self.process = subprocess.Popen([sys.executable, ROOT / "tests" / "zygote.py"], **pipes)

    def run(self, command: list[str], folder: Path, modules: Path | None, gpu: bool) -> subprocess.CompletedProcess:
        with tempfile.NamedTemporaryFile() as stdout, tempfile.NamedTemporaryFile() as stderr:
            request = {"command": command, "cwd": str(folder), "stdout": stdout.name, "stderr": stderr.name}
            kept = ENVIRONMENT.keys() | {"PYTHONPATH"}  # what the zygote has from its own start
            request["environment"] = {name: value for name, value in os.environ.items() if name not in kept}
            request["environment"] |= {"PYTHONPATH": str(modules)} if modules else {}
            if gpu:
                request["environment"]["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
            print(json.dumps(request), file=self.process.stdin, flush=True)
            pid = int(self.process.stdout.readline())
            timer = threading.Timer(500, os.kill, (pid, signal.SIGKILL))
            timer.start()
            code = int(self.process.stdout.readline())
            timer.cancel()
            texts = [Path(file.name).read_text() for file in (stdout, stderr)]
        return subprocess.CompletedProcess(command, code, *texts)


@functools.cache
def zygote() -> Zygote:
    """One for each process that runs tests; it ends with its input."""
    return Zygote()


class Runner:
    """Runs Python programs in a folder of their own."""

    def __init__(self, folder: Path):
        self.folder = folder

    def start(self, *command, modules: Path | None = None, **kwargs) -> subprocess.Popen:
        environment = os.environ | ENVIRONMENT
        if modules:  # found before anything that is installed
            environment["PYTHONPATH"] = str(modules)
        settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | kwargs
        settings |= {"cwd": self.folder, "env": environment, "preexec_fn": heed_interrupts}
        return subprocess.Popen([sys.executable, *map(str, command)], **settings)

    def run(
        self, *command, modules: Path | None = None, check: bool = True, gpu: bool = False
    ) -> subprocess.CompletedProcess:
        if "--compile" in command:  # whose threads do not survive a fork
            process = self.start(*command, modules=modules)
            stdout, stderr = process.communicate(timeout=500)
            result = subprocess.CompletedProcess(command, process.returncode, stdout, stderr)
        else:
            result = zygote().run([str(word) for word in command], self.folder, modules, gpu)
        assert not check or result.returncode == 0, result.stdout + result.stderr
        return result

    def train(self, *flags, script: Path = PPO, modules: Path | None = None) -> Path:
        """Train to the end; returns the run's folder."""
        before = set(self.folder.glob("runs/*"))
        self.run(script, *flags, modules=modules)
        return (set(self.folder.glob("runs/*")) - before).pop()

    def wait_for(self, pattern: str, process: subprocess.Popen) -> Path:
        """The first file that matches, once it is there."""
        for _ in range(6000):
            found = next(self.folder.glob(pattern), None)
            if found:
                return found
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        raise TimeoutError(pattern)


@pytest.fixture
def runner(tmp_path) -> Runner:
    return Runner(tmp_path)


def curves(run_dir: Path) -> dict[str, list[tuple[int, float]]]:
    """Every logged scalar as (step, value), as TensorBoard shows them."""
    events = EventAccumulator(str(run_dir), size_guidance={"scalars": 0}).Reload()
    return {tag: [(x.step, x.value) for x in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def assert_same_run(run_a: Path, run_b: Path) -> None:
    """Equal parameters and equal curves, to the bit; only the speed may differ."""
    model_a, model_b = (load_file(next(run.glob("*.safetensors"))) for run in (run_a, run_b))
    assert model_a.keys() == model_b.keys()
    for name in model_a:
        assert (model_a[name] == model_b[name]).all(), name
    curves_a, curves_b = curves(run_a), curves(run_b)
    assert curves_a.keys() == curves_b.keys()
    for tag in curves_a.keys() - {"charts/SPS"}:
        # compared as text: a NaN (explained variance of a constant) equals itself there
        assert str(curves_a[tag]) == str(curves_b[tag]), tag
