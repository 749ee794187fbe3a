"""Helpers of the tests: run an algorithm file as a user does, and read what it leaves behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.numpy import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ROOT = Path(__file__).resolve().parents[1]
PPO = ROOT / "cleanrl" / "ppo.py"
# A run of 20 short iterations: a few seconds, most of them for importing PyTorch.
SHORT = ["--no-cuda", "--num-envs", "2", "--num-steps", "32", "--num-minibatches", "2", "--total-timesteps", "1280"]


def heed_interrupts() -> None:
    """Ctrl+C works in a test's program even if the tests themselves run in the background, where it is ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Runner:
    """Runs Python programs in a folder of their own."""

    def __init__(self, folder: Path):
        self.folder = folder

    def start(self, *command, modules: Path | None = None, **kwargs) -> subprocess.Popen:
        environment = os.environ | {"WANDB_MODE": "offline", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        if modules:  # found before anything that is installed
            environment["PYTHONPATH"] = str(modules)
        settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | kwargs
        settings |= {"cwd": self.folder, "env": environment, "preexec_fn": heed_interrupts}
        return subprocess.Popen([sys.executable, *map(str, command)], **settings)

    def run(self, *command, modules: Path | None = None, check: bool = True) -> subprocess.CompletedProcess:
        process = self.start(*command, modules=modules)
        stdout, stderr = process.communicate(timeout=500)
        assert not check or process.returncode == 0, stdout + stderr
        return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)

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
