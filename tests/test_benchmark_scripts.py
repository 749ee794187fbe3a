"""The scripts in benchmark/ that start the runs: every algorithm file has one, and what it starts exists."""

import difflib
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tyro
from conftest import ROOT

from cleanrl_utils.benchmark import Args
from cleanrl_utils.rlops.runs import read_folder

ALGORITHMS = sorted(path.stem for path in (ROOT / "cleanrl").glob("[!_]*.py"))
CLASSIC = ("CartPole-v1", "Acrobot-v1", "MountainCar-v0")
ROBOTS = ("HalfCheetah-v4", "Walker2d-v4", "Hopper-v4")
MORE_ROBOTS = ("InvertedPendulum-v4", "Humanoid-v4", "Pusher-v5")
GAMES = ("Pong-v5", "Breakout-v5", "BeamRider-v5")
# A stand-in for Python that only notes its arguments, each on a line after their number.
NOTE = """#!/bin/sh
printf '%s\\n' "$#" "$@" >> "$NOTED"
"""


def planned(name: str, folder: Path) -> list[Args]:
    """What a script would start, from what it calls with --dry-run."""
    stand_in = folder / "python"
    stand_in.write_text(NOTE)
    stand_in.chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "NOTED": str(folder / "noted")}
    script = ROOT / "benchmark" / f"{name}.sh"
    subprocess.run(["bash", script, "--dry-run"], env=environment, check=True, capture_output=True, timeout=60)
    words = (folder / "noted").read_text().splitlines()
    calls = []
    while words:
        number = int(words.pop(0))
        call, words = words[:number], words[number:]
        assert call[:2] == ["-m", "cleanrl_utils.benchmark"] and "--dry-run" in call, call
        calls.append(tyro.cli(Args, args=call[2:]))
    return calls


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_file_has_a_script_that_trains_it(name, tmp_path):
    text = (ROOT / "benchmark" / f"{name}.sh").read_text()
    assert f"cleanrl/{name}.py" in text
    calls = planned(name, tmp_path)
    assert calls and all(args.dry_run for args in calls)
    for args in calls:
        words = shlex.split(args.command)
        path = next(Path(word) for word in words if word.endswith(".py"))
        source = (ROOT / path).read_text()
        if path.parent.name == "benchmark":  # trains a file of cleanrl/, and has its flags
            source = "\n".join(file.read_text() for file in (ROOT / "cleanrl").glob("*.py"))
        fields = set(re.findall(r"^    (\w+): ", source, re.MULTILINE))
        flags = re.findall(r" --(?:no-)?([a-z][\w-]*)", args.command.partition(".py")[2])
        assert {flag.replace("-", "_") for flag in flags} <= fields, args.command


@pytest.mark.parametrize("path", sorted((ROOT / "benchmark").glob("*.sh")), ids=lambda path: path.stem)
def test_script_can_be_read_by_bash_and_is_about_a_file(path):
    subprocess.run(["bash", "-n", path], check=True)
    name = path.stem.removesuffix("_ablations").removesuffix("_stable_baselines3")
    assert name in ALGORITHMS and os.access(path, os.X_OK)


def test_stable_baselines3_trains_in_a_folder_that_rlops_reads(runner):
    script = ROOT / "benchmark" / "dqn_stable_baselines3.py"
    run_dir = runner.train("--seed", "3", "--total-timesteps", "300", script=script)
    run = read_folder(run_dir, pytest.fail)
    assert (run.algorithm, run.env_id, run.seed, run.status) == ("dqn_stable_baselines3", "CartPole-v1", 3, "finished")
    returns, lengths = (run.curves[f"charts/episodic_{name}"] for name in ("return", "length"))
    assert np.array_equal(returns.values, lengths.values) and np.array_equal(np.cumsum(lengths.values), returns.steps)
    again = "python benchmark/dqn_stable_baselines3.py --env-id CartPole-v1 --seed 3 --total-timesteps 300"
    assert run.command == again
    refused = runner.run(script, "--resume", run_dir, check=False)
    assert refused.returncode and refused.stderr.strip().endswith("cannot be resumed; start it anew")


def test_ablations_of_ppo_change_what_they_say_and_nothing_else(tmp_path):
    name = "ppo_continuous_action"
    for path in (f"benchmark/{name}_ablations.sh", f"cleanrl/{name}.py"):
        (tmp_path / path).parent.mkdir()
        shutil.copy(ROOT / path, tmp_path / path)
    script = tmp_path / f"benchmark/{name}_ablations.sh"
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    (tmp_path / "python").symlink_to("/bin/true")
    subprocess.run(["bash", script, "--dry-run"], env=environment, check=True, timeout=60)
    original = (ROOT / f"cleanrl/{name}.py").read_text().splitlines()

    def changes(edit):
        copy = (tmp_path / f"runs/{name}_{edit}.py").read_text().splitlines()
        return [line for line in difflib.ndiff(original, copy) if line[0] in "+-"]

    removed, added = changes("no_bootstrap")
    assert added[1:] == removed[1:].replace("terminations, device", "terminations | truncations, device")
    removed = [line for line in changes("wrapper_statistics") if line[0] == "-"]
    assert len(removed) == 2 and "return ((x - self.obs_mean)" in removed[0] and "agent.return_var" in removed[1]
    added = [line[1:].strip() for line in changes("wrapper_statistics") if line[0] == "+"]
    assert [line.partition("(")[0] for line in added] == [
        "env = gym.wrappers.NormalizeObservation",
        "env = gym.wrappers.TransformObservation",
        "env = gym.wrappers.NormalizeReward",
        "env = gym.wrappers.TransformReward",
        "return x",
    ]
    assert len(changes("no_bootstrap_wrapper_statistics")) == len(changes("wrapper_statistics")) + 2


@pytest.mark.parametrize(
    ("names", "env_ids", "seeds"),
    [
        (("ppo", "dqn", "c51", "pqn", "dqn_jax", "c51_jax"), CLASSIC, 5),
        ((f"{name}_continuous_action" for name in ("ppo", "rpo", "ddpg", "td3", "sac")), ROBOTS, 3),
        ((f"{name}_continuous_action" for name in ("ppo", "rpo", "ddpg", "td3", "sac")), MORE_ROBOTS, 1),
        ((f"{name}_continuous_action_jax" for name in ("ddpg", "td3", "sac")), ROBOTS, 3),
        ((f"{name}_continuous_action_jax" for name in ("ddpg", "td3", "sac")), MORE_ROBOTS, 1),
        (("ppo_atari_envpool", "pqn_atari_envpool"), GAMES, 2),
    ],
)
def test_tasks_and_seeds_are_the_agreed_ones(names, env_ids, seeds, tmp_path):
    for name in names:
        folder = tmp_path / name
        folder.mkdir()
        calls = planned(name, folder)
        assert any(set(args.env_ids) == set(env_ids) and args.num_seeds == seeds for args in calls), name
