"""benchmark/speed.py and speed_audit.py: who is measured how long, and what they say of who does not log."""

import csv
import importlib.metadata
import importlib.util
import re
import subprocess
import sys
import time

import pytest
import torch
from conftest import ROOT

# Trains as far as the race can see: logs its steps, at a pace of its own, and never ends by itself.
RACER = """
import sys, time
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
writer, pause, logs = EventFileWriter("logs"), float(sys.argv[1]), sys.argv[2] == "logs"
for step in range(10, 10**6, 10):
    time.sleep(pause)
    if logs:
        value = Summary.Value(tag="time/fps", simple_value=0)
        writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=[value])))
        writer.flush()
"""


@pytest.fixture
def speed(monkeypatch):
    spec = importlib.util.spec_from_file_location("speed", ROOT / "benchmark" / "speed.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "TURN", 0.2)
    return module


def start_with(speed, monkeypatch, racers: dict) -> None:
    monkeypatch.setattr(speed, "contestants", lambda task: list(racers))
    monkeypatch.setattr(speed, "train", lambda name, *_: [sys.executable, "-c", RACER, *map(str, racers[name])])


def test_all_run_until_the_slowest_has_enough(speed, monkeypatch):
    start_with(speed, monkeypatch, {"fast": (0.01, "logs"), "slow": (0.04, "logs")})
    turns = {}
    ended = speed.Contestant.end

    def end(contestant):
        turns[contestant.name] = len(contestant.turns), contestant.step()
        ended(contestant)

    monkeypatch.setattr(speed.Contestant, "end", end)
    speeds = speed.race("cartpole", steps=200, warm_up=50, core=None)
    assert turns["fast"][0] == turns["slow"][0]  # to the last turn
    assert 200 <= turns["slow"][1] < 400 < turns["fast"][1]
    assert 1.5 < speeds["fast"] / speeds["slow"] < 6 and speeds["slow"] < 2 * 10 / 0.04


def test_who_logs_nothing_ends_the_race_with_a_line(speed, monkeypatch):
    start_with(speed, monkeypatch, {"chatty": (0.01, "logs"), "silent": (0.01, "is silent")})
    monkeypatch.setattr(speed, "PATIENCE", 1.0)
    start = time.monotonic()
    with pytest.raises(SystemExit, match="^silent has logged nothing in 1 s of its own$"):
        speed.race("cartpole", steps=10**9, warm_up=50, core=None)
    assert time.monotonic() - start < 60


def test_who_has_logged_too_little_to_be_measured_gets_a_line(speed, tmp_path, monkeypatch):
    monkeypatch.setattr(speed, "train", lambda *_: [sys.executable, "-c", "pass"])
    contestant = speed.Contestant("short", "cartpole", 100, None, tmp_path / "short")
    contestant.take_turn(60)
    with pytest.raises(SystemExit, match="^short has logged nothing after --warm-up 50: raise --steps$"):
        contestant.steps_per_second(50)


def test_measurements_name_version_and_hardware(speed, monkeypatch, tmp_path):
    monkeypatch.setattr(speed, "PEERS", {"stable-baselines3": ("stable_baselines3", {})})
    monkeypatch.setattr(speed, "contestants", lambda task: ["stable-baselines3", "ppo.py"])
    monkeypatch.setattr(speed, "race", lambda *_: {"stable-baselines3": 100.0, "ppo.py": 250.0})
    speed.main(rounds=2, csv_file=tmp_path / "speed.csv")
    rows = list(csv.DictReader((tmp_path / "speed.csv").open()))
    assert [(row["contestant"], row["round"]) for row in rows] == [
        ("stable-baselines3", "1"),
        ("stable-baselines3", "2"),
        ("ppo.py", "1"),
        ("ppo.py", "2"),
    ]
    assert rows[0]["version"] == importlib.metadata.version("stable-baselines3") and "cores" in rows[0]["hardware"]
    assert [row["steps_per_second"] for row in rows] == ["100.0", "100.0", "250.0", "250.0"]


def test_all_train_on_the_device_that_is_asked_for(speed, tmp_path):
    for cuda, device, flag in ((False, "cpu", "--no-cuda"), (True, "cuda", "--cuda")):
        commands = {name: speed.train(name, "ddpg", 10, tmp_path, cuda) for name in speed.contestants("ddpg")}
        ours = {name: command for name, command in commands.items() if name not in speed.PEERS}
        assert len(ours) == 4 and all(flag in command for command in ours.values())
        assert all(f"device='{device}'" in commands[name][2] for name in speed.PEERS)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_race_on_a_gpu_needs_one(speed, monkeypatch):
    monkeypatch.setattr(speed, "PEERS", {})
    with pytest.raises(SystemExit, match="^there is no GPU: leave out --cuda$"):
        speed.main(cuda=True)


# benchmark/speed_audit.py


def test_cost_of_the_audits_is_told(runner):
    script = ROOT / "benchmark" / "speed_audit.py"
    flags = ["--no-cuda", "--num-steps", "32", "--total-timesteps", "6400", "--checkpoint-frequency", "0"]
    whole, half = runner.run(script, "ppo", *flags).stdout.splitlines()[-2:]
    assert re.fullmatch(
        r"all of it \(steps \d+ to \d+\): [\d.]+ steps/s; \d+ audits, [\d.]+ s, [\d.]+% of the time", whole
    )
    audits = [int(re.search(r"(\d+) audits", line)[1]) for line in (whole, half)]
    assert audits[0] > audits[1]  # most of them come early


def test_cost_of_the_audits_is_told_of_a_run_that_was_stopped(tmp_path):
    command = [sys.executable, ROOT / "benchmark" / "speed_audit.py", "ppo", "--no-cuda", "--checkpoint-frequency", "0"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().startswith("global_step=")  # a twentieth of half a million steps is behind it
        process.terminate()
        lines = process.stdout.read().splitlines()
    assert process.returncode != 0
    assert [line.split(" (")[0] for line in lines[-2:]] == ["all of it", "second half"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "name a file first"),
        (["dqn_jax"], "dqn_jax.py is no file of cleanrl/ in PyTorch"),
        (["ppo", "--no-cuda", "--total-timesteps", "512"], "too short a run"),
    ],
)
def test_audits_that_cannot_be_measured_get_a_line(runner, arguments, message):
    result = runner.run(ROOT / "benchmark" / "speed_audit.py", *arguments, check=False)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith("speed_audit: ") and message in result.stderr
