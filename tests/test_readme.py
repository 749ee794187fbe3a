"""What the README shows is up to date: its picture, its film and its table of algorithms."""

import importlib
import sys

import pytest
from conftest import ROOT

README = (ROOT / "README.md").read_text()


@pytest.fixture
def benchmark(monkeypatch):
    """A script of the folder benchmark/, as a module."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmark"), *sys.path])
    return importlib.import_module


def test_table_of_algorithms_shows_what_the_results_say(benchmark):
    algorithms = benchmark("algorithms")
    assert algorithms.regenerated(README) == README, "make results"


def test_table_of_algorithms_has_every_file(benchmark):
    files = {path.stem for path in (ROOT / "cleanrl").glob("*.py")} - {"__init__"}
    assert benchmark("algorithms").ALGORITHMS.keys() == files


def test_score_says_how_it_differs_from_three_seeds_of_full_length(benchmark):
    algorithms = benchmark("algorithms")
    runs = algorithms.runs_by_environment("ppo")["CartPole-v1"][:3]
    assert algorithms.describe_score("ppo", "CartPole-v1", runs) == "CartPole-v1 **500.0** ± 0.0"
    assert algorithms.describe_score("ppo", "CartPole-v1", runs[:1]) == "CartPole-v1 **500.0**, 1 seed"
    assert algorithms.describe_score("ppo_atari", "X", runs[:2]) == "X **500.0** ± 0.0, 2 seeds, after 500k"


def test_picture_is_drawn_from_the_results(benchmark):
    overview, results = benchmark("overview"), benchmark("results")
    assert results.source_of(overview.IMAGE) == overview.digest(), "make results"
    assert f"]({overview.IMAGE.relative_to(ROOT)})" in README


def test_film_is_small_and_moves():
    data = (ROOT / "docs" / "assets" / "walker2d.webp").read_bytes()
    assert len(data) < 1_000_000 and data[:4] == b"RIFF" and data.count(b"ANMF") > 50  # a chunk a picture


def test_readme_is_no_wall_of_links():
    """Outside of its tables a paragraph has a handful of links at most."""
    paragraphs = [text for text in README.split("\n\n") if not text.startswith("|")]
    assert max(text.count("](") for text in paragraphs) <= 10


@pytest.mark.slow
def test_trained_robot_is_filmed(runner, monkeypatch):
    pytest.importorskip("mujoco")
    monkeypatch.setenv("MUJOCO_GL", "egl")
    script = ROOT / "cleanrl" / "ppo_continuous_action.py"
    flags = ["--no-cuda", "--env-id", "Walker2d-v4", "--save-model", "--num-steps", "512", "--num-minibatches", "4"]
    run_dir = runner.train(*flags, "--total-timesteps", "512", script=script)
    film = [ROOT / "benchmark" / "film.py", run_dir, "robot.webp", "--width", "64"]
    process = runner.start(*film, "--start", "0", "--seconds", "0.12")  # the fork of another test has no EGL
    stdout, stderr = process.communicate(timeout=200)
    assert "robot.webp: 3 pictures" in stdout, stderr
    assert (runner.folder / "robot.webp").read_bytes().count(b"ANMF") == 3
    process = runner.start(*film, "--start", "100")
    _, stderr = process.communicate(timeout=200)
    assert process.returncode == 1 and "before the film began" in stderr.splitlines()[-1]
