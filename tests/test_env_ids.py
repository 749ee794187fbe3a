"""Atari games are understood by the ids of EnvPool and of gymnasium, and ids of long ago get a line of advice."""

import importlib.util
import json
from dataclasses import dataclass

import pytest
from conftest import PPO, ROOT

from cleanrl_utils.env_ids import understand_env_id

needs_envpool = pytest.mark.skipif(not importlib.util.find_spec("envpool"), reason="needs the extra envpool")
needs_atari = pytest.mark.skipif(not importlib.util.find_spec("ale_py"), reason="needs the extra atari")
needs_mujoco = pytest.mark.skipif(not importlib.util.find_spec("mujoco"), reason="needs the extra mujoco")


@dataclass
class EnvPoolArgs:
    env_id: str = "Breakout-v5"


@dataclass
class GymnasiumArgs:
    env_id: str = "BreakoutNoFrameskip-v4"


@dataclass
class OtherArgs:
    env_id: str = "CartPole-v1"


@needs_envpool
@pytest.mark.parametrize(
    "given, understood",
    [
        ("BreakoutNoFrameskip-v4", "Breakout-v5"),
        ("ALE/MsPacman-v5", "MsPacman-v5"),
        ("Pong", "Pong-v5"),
        ("Pong-v5", "Pong-v5"),
        ("BreakoNoFrameskip-v4", "BreakoNoFrameskip-v4"),  # no game: its error is to name what the user wrote
        ("BreakoutDeterministic-v4", "BreakoutDeterministic-v4"),  # a game of other rules
        ("CartPole-v1", "CartPole-v1"),
    ],
)
def test_file_that_plays_with_envpool_knows_the_ids_of_gymnasium(capsys, given, understood):
    assert understand_env_id(EnvPoolArgs(given)).env_id == understood
    line = capsys.readouterr().err
    assert (line == "") if given == understood else (given in line and understood in line and line.count("\n") == 1)


@needs_envpool
def test_line_warns_that_sticky_actions_are_lost(capsys):
    understand_env_id(EnvPoolArgs("ALE/Breakout-v5"))
    understand_env_id(EnvPoolArgs("BreakoutNoFrameskip-v4"))
    with_ale, without = capsys.readouterr().err.splitlines()
    assert "sticky" in with_ale and "sticky" not in without


@needs_atari
@pytest.mark.parametrize(
    "given, understood",
    [
        ("Breakout-v5", "BreakoutNoFrameskip-v4"),
        ("Breakout", "BreakoutNoFrameskip-v4"),
        ("ALE/Breakout-v5", "ALE/Breakout-v5"),  # gymnasium has it, with sticky actions
        ("Breakout-v4", "Breakout-v4"),  # likewise, with a random frame skip
        ("Hopper-v5", "Hopper-v5"),
        ("CartPole-v1", "CartPole-v1"),
    ],
)
def test_file_that_plays_with_gymnasium_knows_the_ids_of_envpool(capsys, given, understood):
    assert understand_env_id(GymnasiumArgs(given)).env_id == understood
    assert (given == understood) == (capsys.readouterr().err == "")


def test_other_files_take_every_id_as_it_is(capsys):
    assert understand_env_id(OtherArgs("Breakout-v5")).env_id == "Breakout-v5"
    assert capsys.readouterr().err == ""


@needs_atari
def test_run_is_named_after_the_game_it_plays_and_resumed_by_either_id(runner):
    script = ROOT / "cleanrl" / "ppo_atari.py"
    flags = ["--no-cuda", "--num-envs", "2", "--num-steps", "8", "--num-minibatches", "2", "--total-timesteps", "16"]
    run_dir = runner.train("--env-id", "Breakout-v5", *flags, "--checkpoint-frequency", "16", script=script)
    assert run_dir.name.startswith("BreakoutNoFrameskip-v4__ppo_atari__1__")
    assert json.loads((run_dir / "args.json").read_text())["env_id"] == "BreakoutNoFrameskip-v4"
    runner.run(script, "--resume", run_dir, "--env-id", "Breakout-v5", "--total-timesteps", "32")
    result = runner.run(script, "--resume", run_dir, "--env-id", "Pong-v5", check=False)
    assert result.returncode != 0 and "--env-id is BreakoutNoFrameskip-v4 there" in result.stderr


@needs_mujoco
@pytest.mark.parametrize("old, new", [("HalfCheetah-v2", "HalfCheetah-v4"), ("Pusher-v4", "Pusher-v5")])
def test_robot_of_long_ago_is_answered_with_the_version_to_write(runner, old, new):
    script = ROOT / "cleanrl" / "ppo_continuous_action.py"
    result = runner.run(script, "--env-id", old, check=False)
    assert result.returncode != 0 and result.stderr.splitlines()[-1].endswith(f"write {new}")


def test_game_for_another_file_still_gets_its_name(runner):
    result = runner.run(PPO, "--env-id", "Breakout-v5", check=False)
    assert result.returncode != 0 and len(result.stderr.splitlines()) == 1, result.stderr
