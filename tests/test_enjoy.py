"""Enjoy: watch a policy of one's own; tests/test_huggingface.py plays those of others."""

import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import ROOT, SHORT, Runner

from cleanrl_utils import enjoy
from cleanrl_utils.provenance import note_step


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    return Runner(tmp_path_factory.mktemp("trained")).train(*SHORT, "--save-model", "--seed", "3")


@pytest.fixture
def play(trained, monkeypatch, capsys):
    """The command line of enjoy, beside the trained run, in this process; returns what it prints."""
    monkeypatch.chdir(trained.parents[1])

    def call(*flags: str) -> str:
        enjoy.tyro.cli(enjoy.main, args=["--show", "nothing", *flags, "--no-cuda"])
        return capsys.readouterr().out

    return call


def test_the_program_plays_a_run_by_name_and_films_it(trained):
    flags = ["--exp-name", "ppo", "--env-id", "CartPole-v1", "--seed", "3", "--eval-episodes", "4"]
    done = Runner(trained.parents[1]).run("-m", "cleanrl_utils.enjoy", *flags, "--no-cuda")
    assert f"policy:  runs/{trained.name}\n" in done.stdout and ", 4 episodes" in done.stdout
    assert list(trained.glob("evaluation/videos/*.mp4")) and f"video:   runs/{trained.name}/evaluation" in done.stdout


@pytest.fixture
def screen(monkeypatch):
    """A screen that nobody sees; returns what pygame was asked to show."""
    import pygame

    monkeypatch.setattr(enjoy, "HAS_SCREEN", True)
    shown = SimpleNamespace(frames=[], rates=[], sizes=[], close_after=10**9)
    clock = SimpleNamespace(tick=shown.rates.append)
    monkeypatch.setattr(pygame.time, "Clock", lambda: clock)
    set_mode, flip, get = pygame.display.set_mode, pygame.display.flip, pygame.event.get

    def flip_and_keep():
        shown.frames.append(pygame.surfarray.array3d(pygame.display.get_surface()))
        shown.sizes.append(pygame.display.get_surface().get_size())
        flip()

    def get_and_close():
        closed = [pygame.event.Event(pygame.QUIT)] if len(shown.frames) >= shown.close_after else []
        return [*get(), *closed]

    monkeypatch.setattr(pygame.display, "set_mode", set_mode)
    monkeypatch.setattr(pygame.display, "flip", flip_and_keep)
    monkeypatch.setattr(pygame.event, "get", get_and_close)
    yield shown
    pygame.display.quit()


def test_where_there_is_a_screen_every_step_is_shown_in_a_window_at_the_pace_of_the_game(trained, screen, capsys):
    flags = [str(trained), "--eval-episodes", "2", "--no-cuda"]
    enjoy.tyro.cli(enjoy.main, args=flags)
    output = capsys.readouterr().out
    lengths = 2 * float(re.search(r"mean return ([\d.]+)", output)[1])  # a point for each step
    assert len(screen.frames) == lengths and set(screen.sizes) == {(600, 400)} and set(screen.rates) == {50}
    assert (screen.frames[0] != screen.frames[5]).any() and screen.frames[0].std() > 1  # a cart that moves
    assert "video" not in output and not list(trained.glob("videos"))


def test_a_window_that_is_closed_is_closed_and_the_score_comes_all_the_same(trained, screen, capsys):
    screen.close_after = 3
    enjoy.tyro.cli(enjoy.main, args=[str(trained), "--eval-episodes", "2", "--no-cuda"])
    assert len(screen.frames) == 3 and ", 2 episodes, trained" in capsys.readouterr().out


def test_an_environment_without_pictures_is_played_all_the_same_unless_they_were_asked_for(runner, monkeypatch, capsys):
    modules = ROOT / "tests" / "modules"
    monkeypatch.syspath_prepend(modules)
    run_dir = runner.train(*SHORT, "--env-id", "from_one:FromOne-v0", "--save-model", modules=modules)
    enjoy.tyro.cli(enjoy.main, args=[str(run_dir), "--eval-episodes", "2", "--no-cuda"])
    output = capsys.readouterr()
    assert output.err.startswith("note: no pictures (") and ", 2 episodes" in output.out and "video" not in output.out
    with pytest.raises(SystemExit, match=r"^cannot play: no pictures \(.*\); --show nothing plays without$"):
        enjoy.tyro.cli(enjoy.main, args=[str(run_dir), "--eval-episodes", "2", "--no-cuda", "--capture-video"])


def test_a_run_folder_and_its_name_are_the_same_policy(trained, play):
    by_name = play("--exp-name", "ppo", "--env-id", "CartPole-v1", "--seed", "3")
    by_folder = play(str(trained))
    assert by_name.splitlines()[1] == by_folder.splitlines()[1]
    assert play(str(trained), "--stochastic").splitlines()[1] != by_folder.splitlines()[1]


def test_the_newest_run_that_has_a_model_is_taken(trained, play):
    newer = trained.with_name("CartPole-v1__ppo__3__9999999999")
    newest = trained.with_name("CartPole-v1__ppo__3__99999999999")
    shutil.copytree(trained, newer)
    shutil.copytree(trained, newest)
    (newest / "ppo.safetensors").unlink()
    (newer / "ppo.safetensors").touch()
    try:
        assert newer.name in play("--exp-name", "ppo", "--env-id", "CartPole-v1", "--seed", "3", "--eval-episodes", "1")
    finally:
        shutil.rmtree(newer)
        shutil.rmtree(newest)


@pytest.mark.parametrize(
    "flags, message",
    [
        ([], "name a policy: RUN_DIR, or --exp-name and --env-id"),
        (["--exp-name", "ppo"], "name a policy"),
        (["--eval-episodes", "0"], "--eval-episodes must be at least 1"),
        (["--max-episode-steps", "0"], "--max-episode-steps must be at least 1"),
        (["nowhere"], "cannot play: nowhere is not a run folder"),
        (["without_model"], "cannot play: without_model has no model: train with --save-model"),
    ],
)
def test_what_is_missing_is_said_in_one_line(trained, play, flags, message):
    folder = trained.parents[1] / "without_model"
    if not folder.exists():
        shutil.copytree(trained, folder)
        (folder / "ppo.safetensors").unlink()
    with pytest.raises(SystemExit) as stop:
        play(*flags)
    assert message in str(stop.value) and "\n" not in str(stop.value)


def test_a_model_of_another_seed_is_named_before_the_hub_is_asked(trained, play, monkeypatch, capsys):
    def fail(name):
        raise enjoy.HubError(name)

    monkeypatch.setattr(enjoy, "pull_from_hub", fail)
    with pytest.raises(SystemExit, match="cannot play"):
        play("--exp-name", "ppo", "--env-id", "CartPole-v1", "--seed", "4")
    assert f"no model of seed 4, but runs/{trained.name}" in capsys.readouterr().err


def test_without_the_extra_the_hub_is_not_asked(play, monkeypatch):
    monkeypatch.setitem(enjoy.sys.modules, "huggingface_hub", None)
    with pytest.raises(SystemExit, match=r'cannot play: the hub needs an extra: pip install "cleanrl\[hub\]"'):
        play("--exp-name", "ppo", "--env-id", "Acrobot-v1")


def test_score_says_to_which_step_the_policy_was_trained_and_what_was_cut_off(trained, play):
    assert play(str(trained), "--eval-episodes", "2").endswith("2 episodes, trained to step 1280\n")
    output = play(str(trained), "--eval-episodes", "2", "--max-episode-steps", "5")
    assert "mean return 5.00" in output and "2 episodes (2 cut off after 5 steps)" in output


def test_policy_that_is_older_than_its_run_is_played_with_a_warning(trained, tmp_path, capsys):
    older = shutil.copytree(trained, tmp_path / "older")
    note_step(older, 5000)
    enjoy.tyro.cli(enjoy.main, args=[str(older), "--eval-episodes", "1", "--no-cuda", "--show", "nothing"])
    output = capsys.readouterr()
    assert output.err.startswith(
        "warning: the model was trained to step 1280, but the run has gone on to step 5000 (for"
    )
    assert len(output.err.splitlines()) == 1
    assert output.out.endswith("trained to step 1280 (the run is at step 5000)\n")


def test_policy_for_actions_that_are_counted_from_1_is_played_with_these(runner):
    modules = ROOT / "tests" / "modules"
    run_dir = runner.train(*SHORT, "--env-id", "from_one:FromOne-v0", "--save-model", modules=modules)
    done = runner.run("-m", "cleanrl_utils.enjoy", run_dir, "--no-cuda", modules=modules)
    assert "score:   mean return" in done.stdout and ", 10 episodes" in done.stdout
