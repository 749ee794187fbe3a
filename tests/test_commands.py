"""The command that makes a run again is the same wherever it is shown, and gives the run's arguments."""

import importlib
import shlex
import sys

import pytest
import tyro
from conftest import ROOT

from cleanrl_utils.commands import NOT_TO_REPEAT, command_again, settable_args

FILES = sorted(path for path in ROOT.glob("cleanrl/*.py") if path.name != "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_of_every_file_the_flags_of_the_user_are_known_and_what_it_computes_is_not(path):
    known = settable_args(path.read_text())
    assert {"env_id", "seed", "total_timesteps", "exp_name", "checkpoint_frequency"} <= known.keys()
    assert not known.keys() & {"num_iterations", "minibatch_size", "world_size", "num_phases"}
    assert ("batch_size" in known) == ("num_steps" not in known)  # a batch of rollouts is computed


@pytest.mark.parametrize("name, changes", [("dqn", {"batch_size": 64, "exp_name": "mine"}), ("ppo", {"gamma": 0.9})])
def test_the_command_gives_the_arguments_again(monkeypatch, name, changes):
    monkeypatch.syspath_prepend(ROOT / "cleanrl")
    module = importlib.import_module(name)
    saved = vars(module.Args(env_id="A/B v1", seed=7, cuda=False, track=True, **changes))
    if name == "ppo":
        saved |= {"batch_size": 512, "minibatch_size": 128, "num_iterations": 3}  # computed, not the user's
    words = shlex.split(command_again(ROOT / "cleanrl" / f"{name}.py", saved))
    assert words[:2] == ["python", f"cleanrl/{name}.py"] and ("--batch-size" in words) == (name == "dqn")
    again = vars(tyro.cli(module.Args, args=words[2:]))
    ignored = NOT_TO_REPEAT | ({"batch_size", "minibatch_size", "num_iterations"} if name == "ppo" else set())
    assert {x: again[x] for x in saved if x not in ignored} == {x: saved[x] for x in saved if x not in ignored}
    sys.modules.pop(name)


def test_a_run_of_several_processes_is_started_by_torchrun_and_a_suppressed_flag_is_not_given():
    source = ROOT / "cleanrl" / "ppo_atari_multigpu.py"
    args = {"env_id": "Pong-v5", "seed": 1, "local_num_envs": 3, "num_envs": 6, "world_size": 2, "batch_size": 99}
    expected = "torchrun --standalone --nproc_per_node=2 cleanrl/ppo_atari_multigpu.py --env-id Pong-v5 --seed 1"
    assert command_again(source, args) == f"{expected} --local-num-envs 3"


def test_a_script_of_the_folder_benchmark_is_named_with_that_folder(tmp_path):
    copy = tmp_path / "dqn_stable_baselines3.py"  # in the folder of a run
    copy.write_text((ROOT / "benchmark" / "dqn_stable_baselines3.py").read_text())
    command = command_again(copy, {"env_id": "CartPole-v1", "seed": 2, "total_timesteps": 500_000})
    assert command == "python benchmark/dqn_stable_baselines3.py --env-id CartPole-v1 --seed 2"


@pytest.mark.parametrize("name", ["benchmark", "enjoy", "evaluate", "export", "huggingface", "lineage", "supervisor"])
def test_the_help_of_a_tool_says_how_it_is_called(runner, name):
    shown = runner.run("-m", f"cleanrl_utils.{name}", "--help").stdout
    assert f"usage: python -m cleanrl_utils.{name} " in " ".join(shown.split())
