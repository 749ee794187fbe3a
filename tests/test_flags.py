"""Flags of long ago, and flags without effect, get a line that says what to write now."""

import pytest
import tyro
from conftest import ROOT

from cleanrl.ppo import Args
from cleanrl_utils.flags import RENAMED, find_computed, find_old_spelling, parse_args


@pytest.mark.parametrize(
    "words, write",
    [
        ("--cuda False", "write --no-cuda"),
        ("--cuda=False", "write --no-cuda"),
        ("--cuda false", "write --no-cuda"),
        ("--cuda True", "write --cuda (or nothing: that is the default)"),
        ("--cuda 0", "write --no-cuda"),
        ("--no-cuda True", "write --no-cuda"),
        ("--no-cuda False", "write --cuda (or nothing: that is the default)"),
        ("--no_cuda=true", "write --no-cuda"),
        ("--torch-deterministic False", "write --no-torch-deterministic"),
        ("--torch_deterministic False", "write --no-torch-deterministic"),
        ("--seed 2 --track True --env-id Acrobot-v1", "write --track"),
        ("--track False", "write --no-track (or nothing: that is the default)"),
        ("--capture_video=maybe", "write --capture-video or --no-capture-video"),
        ("--gym-id CartPole-v1", "write --env-id"),
        ("--gym_id=CartPole-v1", "write --env-id"),
        ("--prod-mode", "write --track"),
    ],
)
def test_old_spelling_is_answered_with_the_new_one(words, write):
    line = find_old_spelling(Args, words.split())
    assert line.endswith(write) and "\n" not in line and line.startswith("--")


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--no-cuda",
        "--no_cuda",
        "--track --seed 1",
        "--env_id CartPole-v1",
        "--exp-name False",
        "--seed 0",
        "--help",
    ],
)
def test_what_is_right_is_left_to_the_parser(words):
    assert find_old_spelling(Args, words.split()) is None


@pytest.mark.parametrize("words", ["--no-cuda", "--track", "--no-torch-deterministic", "--env-id X", "--target-kl 0.1"])
def test_what_is_recommended_is_understood(words):
    tyro.cli(Args, args=words.split())


def test_renamed_flags_are_none_of_today():
    for name in RENAMED:
        with pytest.raises(SystemExit):
            tyro.cli(Args, args=[f"--{name}", "X"], console_outputs=False)


def test_program_ends_with_the_line(monkeypatch):
    monkeypatch.setattr("sys.argv", ["ppo.py", "--cuda", "False"])
    with pytest.raises(SystemExit, match="^--cuda False: a switch takes no value; write --no-cuda$"):
        parse_args(Args)


@pytest.mark.parametrize("script", sorted((ROOT / "cleanrl").glob("[!_]*.py")), ids=lambda script: script.stem)
def test_every_file_looks_for_old_spellings_before_it_parses(script):
    text = script.read_text()
    assert text.count("args = run.parse_args(Args)\n") == text.count("args = tyro.cli(Args)\n") == 1


def test_old_spelling_ends_a_script_with_the_line(runner):
    result = runner.run(ROOT / "cleanrl" / "ppo.py", "--cuda", "False", check=False)
    assert result.returncode == 1
    assert result.stderr.strip() == "--cuda False: a switch takes no value; write --no-cuda"
    assert not list(runner.folder.glob("runs/*"))


# Flags without effect


@pytest.mark.parametrize(
    "words, flag, formula",
    [
        ("--minibatch-size 64", "--minibatch-size", "batch_size // num_minibatches"),
        ("--seed 2 --batch_size=64", "--batch_size", "num_envs * num_steps"),
        ("--num-iterations 3", "--num-iterations", "total_timesteps // batch_size"),
    ],
)
def test_flag_that_the_script_computes_itself_is_refused(words, flag, formula):
    line = find_computed((ROOT / "cleanrl" / "ppo.py").read_text(), words.split())
    assert line == f"{flag}: has no effect, as the script computes it: {formula}"


@pytest.mark.parametrize(
    "source",
    [
        "    args.batch_size = max(args.batch_size, 32)\n",  # it has an effect
        "    if args.batch_size == 0:\n        args.batch_size = 32\n",
        "    args.batch_sizes = 3\n",
        "    batch_size = 3\n",
    ],
)
def test_flag_with_an_effect_is_accepted(source):
    assert find_computed(source, ["--batch-size", "64", "--seed", "1"]) is None


def test_batch_size_of_dqn_is_its_own():
    assert find_computed((ROOT / "cleanrl" / "dqn.py").read_text(), ["--batch-size", "64"]) is None


def test_flag_without_effect_ends_a_script_with_the_line(runner):
    result = runner.run(ROOT / "cleanrl" / "ppo.py", "--minibatch-size", "64", check=False)
    assert result.returncode == 1
    assert result.stderr.startswith("--minibatch-size: has no effect") and result.stderr.count("\n") == 1
