"""A mistake on the command line gets one line that says what to do, and exit code 2."""

import subprocess
import sys

import pytest
from conftest import ROOT

from cleanrl_utils.command_line import one_line_errors, run, shortened

PPO = ["cleanrl/ppo.py"]


@pytest.mark.parametrize(
    "words, line",
    [
        ([*PPO, "--accelerate", "fast"], "invalid choice 'fast' for argument '--accelerate'. Expected one of"),
        ([*PPO, "--seed"], "Missing value for argument '--seed'"),
        ([*PPO, "--seed", "x"], "Error parsing --seed: invalid literal for int() with base 10: 'x'"),
        ([*PPO, "--sede", "1"], "Unrecognized options: --sede, 1; perhaps you meant --seed (all flags: python "),
        ([*PPO, "--learning-rate", "1,5"], "Error parsing --learning-rate: could not convert string to float: '1,5'"),
        (["-m", "cleanrl_utils.evaluate", "--episode", "3"], "Unrecognized options: --episode, 3; perhaps you meant"),
        (["-m", "cleanrl_utils.enjoy", "--foo"], "Unrecognized options: --foo"),
        (["-m", "cleanrl_utils.export"], "Missing from python -m cleanrl_utils"),
        (["-m", "cleanrl_utils.huggingface"], "Missing from python -m cleanrl_utils"),
        (["-m", "cleanrl_utils.benchmark", "--foo"], "Missing from python -m cleanrl_utils.benchmark: --env-ids"),
        (["-m", "cleanrl_utils.rlops", "--foo"], "Unrecognized options: --foo"),
        (["benchmark/speed.py", "--rounds", "x"], "Error parsing --rounds"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_mistake_gets_one_line(words, line):
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith(line), done.stderr


def test_help_is_whole():
    done = subprocess.run([sys.executable, *PPO, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stderr == "" and "--target-kl" in done.stdout


def test_what_a_function_prints_and_how_it_ends_is_left_alone(capsys):
    def main(number: int = 1) -> None:
        print(f"number {number}", file=sys.stderr)
        sys.exit(2)

    with pytest.raises(SystemExit):
        run(main, args=["--number", "7"])
    assert capsys.readouterr().err == "number 7\n"


def test_warning_while_flags_are_read_is_not_swallowed(capsys):
    with one_line_errors():
        print("a warning", file=sys.stderr)
    assert capsys.readouterr().err == "a warning\n"


def test_text_that_is_no_box_is_kept():
    assert shortened("something else\nin two lines\n") == "something else\nin two lines"


def test_evaluate_without_a_run_says_what_to_name(runner):
    done = runner.run("-m", "cleanrl_utils.evaluate", check=False)
    assert done.returncode == 1 and done.stderr.startswith("name the folder of at least one run")
