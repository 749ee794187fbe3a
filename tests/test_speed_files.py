"""benchmark/speed_files.py: how each file is started, what counts as its speed, and what is said of one without."""

import csv
import importlib.util
import sys

import pytest
from conftest import ROOT


@pytest.fixture
def speed_files(monkeypatch):
    spec = importlib.util.spec_from_file_location("speed_files", ROOT / "benchmark" / "speed_files.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module.os, "sched_setaffinity", lambda *_: None, raising=False)  # the other tests go on here
    return module


def test_every_file_is_started_so_that_it_soon_learns_as_later(speed_files):
    assert len(speed_files.FILES) == len(list((ROOT / "cleanrl").glob("*.py"))) - 1  # without __init__.py
    words = speed_files.command("dqn", False, ["--env-id", "Acrobot-v1"])
    assert words[1].endswith("cleanrl/dqn.py") and words[-2:] == ["--env-id", "Acrobot-v1"] and "--no-cuda" in words
    assert words[words.index("--learning-starts") + 1] == "1000"
    end_of_exploration = float(words[words.index("--exploration-fraction") + 1])
    assert end_of_exploration * int(words[words.index("--total-timesteps") + 1]) == pytest.approx(1000)
    words = speed_files.command("ppo", True, [])
    assert "--learning-starts" not in words and "--cuda" in words
    assert "torch.distributed.run" in speed_files.command("ppo_atari_multigpu", True, [])


def test_speed_is_appended_with_where_it_was_measured(speed_files, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "speed.csv").write_text(
        ",".join(speed_files.COLUMNS) + "\nppo.py,CartPole-v1,1234567,a machine,100.0\n"
    )
    speed_files.main(files=["ppo"], seconds=3, flags="--env-id Acrobot-v1", csv_file=tmp_path / "speed.csv")
    assert " Acrobot-v1 " in capsys.readouterr().out
    before, row = csv.DictReader((tmp_path / "speed.csv").open())
    assert before["hardware"] == "a machine"
    assert row["contestant"] == "ppo.py" and row["env_id"] == "Acrobot-v1" and "cores" in row["hardware"]
    assert 200 < float(row["steps_per_second"]) < 200_000
    assert not (tmp_path / "runs").exists()


def test_file_that_cannot_run_is_named_with_the_reason(speed_files, tmp_path, capsys):
    speed_files.main(files=["ppo"], seconds=1, flags="--env-id NoSuch-v1", csv_file=tmp_path / "speed.csv")
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("ppo ") and "not measured: " in line and "NoSuch" in line
    assert not (tmp_path / "speed.csv").exists()


def test_mistakes_get_one_line(speed_files, tmp_path, monkeypatch):
    with pytest.raises(SystemExit, match="^--files: no dreamer in cleanrl/; there are c51, "):
        speed_files.main(files=["dreamer"])
    with pytest.raises(SystemExit, match="^--seconds 0 must be more than 0$"):
        speed_files.main(files=["ppo"], seconds=0)
    monkeypatch.setattr(speed_files, "measure", lambda *_: 1.0)
    with pytest.raises(SystemExit, match=f"^--csv-file {tmp_path}: Is a directory$"):
        speed_files.main(files=["ppo"], csv_file=tmp_path)
    monkeypatch.undo()  # the cores can be set again
    if hasattr(speed_files.os, "sched_setaffinity"):
        with pytest.raises(SystemExit, match=r"^--core 9999: this program may use \d"):
            speed_files.main(files=["ppo"], core=9999)


def test_one_that_never_learns_or_never_logs_is_ended(speed_files, monkeypatch):
    monkeypatch.setattr(speed_files, "PATIENCE", 1.0)
    with pytest.raises(speed_files.NotMeasured, match="has not learned within 1 seconds"):
        speed_files.measure([sys.executable, "-c", "import time; time.sleep(60)"], seconds=1)
    with pytest.raises(speed_files.NotMeasured, match="ended with code 3"):
        speed_files.measure([sys.executable, "-c", "raise SystemExit(3)"], seconds=1)
