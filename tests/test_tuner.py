"""The tuner: every parameter reaches the script, scores are what they are said to be, and nothing gets lost."""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT

optuna = pytest.importorskip("optuna", reason="the extra optuna is not installed")
from cleanrl_utils.tuner import Tuner, session, storage  # noqa: E402
from cleanrl_utils.tuner.storage import open_storage  # noqa: E402
from cleanrl_utils.tuner.training import TENTHS, Training  # noqa: E402

# Trains like an algorithm file, as far as a tuner can see, but needs no PyTorch: the return is `quality` x progress.
SCRIPT = """
import argparse, json, os, sys, time

parser = argparse.ArgumentParser()
for name, default in {"exp-name": "stand_in", "env-id": "A-v0", "seed": 1, "quality": 1.0, "pause": 0.0,
                      "fail-on": "", "total-timesteps": 1000, "names_with_underscores": 0}.items():
    parser.add_argument(f"--{name}", type=type(default), default=default)
parser.add_argument("--sizes", type=int, nargs="+")
parser.add_argument("--anneal", action=argparse.BooleanOptionalAction, default=True)
args = parser.parse_args()
from tensorboard.compat.proto.event_pb2 import Event  # after --help, which need not wait for it
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
run_dir = f"runs/{args.env_id}__{args.exp_name}__{args.seed}__{int(time.time())}"
os.makedirs(run_dir)
with open("calls.txt", "a") as calls:
    calls.write(json.dumps({"argv": sys.argv[1:], "pid": os.getpid(), "start": time.time()}) + "\\n")
if args.fail_on == args.env_id:
    sys.exit("no luck today")
with open(f"{run_dir}/args.json", "w") as file:
    json.dump(vars(args), file)
writer = EventFileWriter(run_dir)
for step in range(100, args.total_timesteps + 1, 100):
    value = Summary.Value(tag="charts/episodic_return", simple_value=args.quality * step / args.total_timesteps)
    writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=[value])))
    writer.flush()
    time.sleep(args.pause)
writer.close()
with open("calls.txt", "a") as calls:
    calls.write(json.dumps({"argv": sys.argv[1:], "pid": os.getpid(), "end": time.time()}) + "\\n")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    (tmp_path / "stand_in.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session, "POLL", 0.05)
    return tmp_path


def make(params_fn=lambda trial: {"quality": trial.suggest_float("quality", 0, 1)}, **kwargs) -> Tuner:
    settings = {"script": "stand_in.py", "metric": "charts/episodic_return", "target_scores": {"A-v0": None}}
    settings |= {"metric_last_n_average_window": 1, "params_fn": params_fn}
    return Tuner(**settings | kwargs)


def calls(folder: Path, kind: str = "start") -> list[dict]:
    """The trainings that were started, or those that came to their end."""
    lines = map(json.loads, (folder / "calls.txt").read_text().splitlines())
    return [line for line in lines if kind in line]


def trials_of(url: str = "sqlite:///cleanrl_hpopt.db") -> list:
    (study,) = optuna.get_all_study_names(url)
    return optuna.load_study(study_name=study, storage=url).trials


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except OSError:
        return False


def wait_until(condition, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def test_every_parameter_reaches_the_script_and_seeds_start_at_1(folder):
    params = {"quality": 0.5, "anneal": False, "sizes": [3, 4], "names-with-underscores": 7, "total_timesteps": 300}
    make(lambda trial: params, target_scores={"A-v0": [0, 1], "B-v0": [0, 1]}).tune(num_trials=1, num_seeds=2)
    expected = ["--quality=0.5", "--no-anneal", "--sizes", "3", "4"]
    expected += ["--names_with_underscores=7", "--total-timesteps=300"]
    assert [call["argv"][:7] for call in calls(folder)] == [expected] * 4
    tails = [[re.sub("=.*_trial", "=trial", flag) for flag in call["argv"][7:]] for call in calls(folder)]
    assert tails == [
        ["--exp-name=trial0", f"--env-id={env_id}", f"--seed={seed}"] for seed in (1, 2) for env_id in ("A-v0", "B-v0")
    ]


@pytest.mark.parametrize("aggregation_type, expected", [("average", 1.5), ("median", 1.5), ("max", 2.5), ("min", 0.5)])
def test_scores_are_normalized_aggregated_over_environments_and_averaged_over_seeds(folder, aggregation_type, expected):
    targets = {"A-v0": [0, 10], "B-v0": [-10, 10]}
    tuner = make(target_scores=targets, aggregation_type=aggregation_type)
    # A scores 0 and 1 with seeds 1 and 2, B scores 2 and 3
    values = {("A-v0", 1): 0, ("B-v0", 1): 30, ("A-v0", 2): 10, ("B-v0", 2): 50}
    trainings = [Training(*key, [], "", Path(), [None] * 9 + [value]) for key, value in values.items()]
    assert tuner.score(trainings, seed=2, tenth=TENTHS - 1) == expected
    assert tuner.score(trainings, seed=2, tenth=3) is None  # no episode had ended there


def test_the_score_is_the_mean_of_the_last_values_of_the_metric(folder):
    best = make(lambda trial: {"quality": 10}, metric_last_n_average_window=3).tune(num_trials=1, num_seeds=1)
    assert best.value == pytest.approx(np.mean([8, 9, 10]))
    expected = {tenth: np.mean(np.arange(max(1, tenth - 2), tenth + 1)) for tenth in range(1, 11)}
    assert best.intermediate_values == pytest.approx(expected)


def test_the_best_parameters_are_printed_as_commands_that_run(folder, capsys):
    best = make(direction="minimize").tune(num_trials=3, num_seeds=1)
    assert best.value == min(trial.value for trial in trials_of())
    output = capsys.readouterr().out
    command = shlex.split(re.search("train: *python (.*)", output)[1])
    subprocess.run([sys.executable, *command], check=True)
    assert calls(folder)[-1]["argv"] == [f"--quality={best.params['quality']}", "--env-id", "A-v0"]
    assert "--num-seeds 1 --start-seed 2" in output  # measured with seeds that were not tuned on


def test_a_script_may_name_its_environment_in_its_own_way(folder):
    """As the files on EnvPool do, to which BreakoutNoFrameskip-v4 is Breakout-v5: it notes where its run is."""
    text = SCRIPT.replace("os.makedirs(run_dir)", "run_dir = run_dir.replace('A-v0', 'B-v5')\nos.makedirs(run_dir)\n"
                          "open(os.environ['CLEANRL_RUN_DIR_FILE'], 'w').write(run_dir)")  # fmt: skip
    (folder / "stand_in.py").write_text(text)
    make().tune(num_trials=1, num_seeds=1)
    (trial,) = trials_of()
    assert trial.value == pytest.approx(trial.params["quality"])


def test_workers_train_at_once(folder):
    make(lambda trial: {"quality": trial.number, "pause": 0.1}, workers=2).tune(num_trials=2, num_seeds=1)
    first, second = calls(folder)
    assert second["start"] < min(call["end"] for call in calls(folder, "end"))


def test_a_hopeless_trial_is_pruned_while_it_trains(folder, capsys):
    def params_fn(trial):  # the third trial is bad, and would take minutes
        return {"quality": 1.0 - 0.45 * trial.number, "pause": 0 if trial.number < 2 else 30}

    start = time.monotonic()
    pruner = optuna.pruners.MedianPruner(n_startup_trials=2)
    make(params_fn, pruner=pruner).tune(num_trials=3, num_seeds=1)
    assert [trial.state.name for trial in trials_of()] == ["COMPLETE", "COMPLETE", "PRUNED"]
    assert trials_of()[2].last_step == 1  # at the first tenth
    assert time.monotonic() - start < 20 and not alive(calls(folder)[2]["pid"])
    assert "pruned at 0.01, after 10%" in capsys.readouterr().out


def test_a_parameter_that_the_script_does_not_know_is_refused_before_the_first_trial(folder):
    with pytest.raises(SystemExit, match="stand_in.py has no --qualty; did you mean --quality?"):
        make(lambda trial: {"qualty": 1}).tune(num_trials=1, num_seeds=1)
    assert not list(folder.glob("*.db")) and not (folder / "runs").exists()


def test_a_failed_trial_is_reported_with_its_log_and_not_scored(folder, capsys):
    def params_fn(trial):
        return {"quality": trial.number, "fail-on": "B-v0" if trial.number == 1 else ""}

    best = make(params_fn, target_scores={"A-v0": [0, 1], "B-v0": [0, 1]}).tune(num_trials=3, num_seeds=1)
    assert [trial.state.name for trial in trials_of()] == ["COMPLETE", "FAIL", "COMPLETE"] and best.number == 2
    assert "no luck today" in trials_of()[1].user_attrs["error"]
    assert re.search(r"failed: B-v0 seed 1 exited with code 1;.*\n    \| no luck today", capsys.readouterr().out)


def test_when_every_trial_fails_the_search_stops(folder):
    with pytest.raises(SystemExit, match="the first 3 trials have failed"):
        make(lambda trial: {"fail-on": "A-v0", "quality": trial.number}).tune(num_trials=50, num_seeds=1)
    assert len(trials_of()) == 3


def test_a_metric_that_nobody_logs_stops_the_search_at_the_first_curve(folder):
    def tune(metric, pause):
        with pytest.raises(SystemExit) as stop:
            make(lambda trial: {"quality": 1, "pause": pause}, metric=metric).tune(num_trials=9, num_seeds=2)
        return str(stop.value)

    start = time.monotonic()
    guess = "(did you mean charts/episodic_return?); it logs charts/episodic_return"
    assert tune("charts/episodic_retrun", 30) == f"stand_in.py logs no charts/episodic_retrun {guess}"
    assert time.monotonic() - start < 20  # the training would take minutes
    # a name that the script mentions may be logged at the end
    assert tune("eval/episodic_return", 0).startswith("stand_in.py logs no eval/episodic_return (did")
    assert len(calls(folder)) == 2 and not any(alive(call["pid"]) for call in calls(folder))


def test_parameters_that_were_tried_before_are_not_trained_again(folder, capsys):
    def params_fn(trial):
        return {"quality": 0.25 if trial.number < 3 else 0.5}

    make(params_fn, pruner=optuna.pruners.NopPruner(), workers=2).tune(num_trials=6, num_seeds=2)
    assert len(calls(folder)) == 4  # two sets of parameters with two seeds, though both workers asked for one at once
    assert [trial.value for trial in trials_of()] == pytest.approx([0.25] * 3 + [0.5] * 3)
    assert all(len(trial.intermediate_values) == 2 * TENTHS for trial in trials_of())
    assert capsys.readouterr().out.count("from an earlier trial with the same parameters") == 4


def test_parameters_that_were_pruned_before_are_pruned_at_once(folder, capsys):
    qualities = [1.0, 1.1, 0.1, 0.1]

    def params_fn(trial):
        return {"quality": qualities[trial.number], "pause": 0 if trial.number < 2 else 30}

    pruner = optuna.pruners.MedianPruner(n_startup_trials=2)
    make(params_fn, pruner=pruner).tune(num_trials=4, num_seeds=1)
    assert [trial.state.name for trial in trials_of()] == ["COMPLETE", "COMPLETE", "PRUNED", "PRUNED"]
    assert len(calls(folder)) == 3
    assert "pruned, as trial 2 with the same parameters" in capsys.readouterr().out


def test_every_line_tells_the_best_so_far_and_the_time_left(folder, capsys):
    make(lambda trial: {"quality": [3, 5, 4][trial.number]}).tune(num_trials=3, num_seeds=1)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("trial ")]
    assert re.search(r"score 3  \(best: 3 of trial 0, about \d+s left\)$", lines[0])
    assert re.search(r"score 5  \(best: 5 of trial 1, about \d+s left\)$", lines[1])
    assert lines[2].endswith("score 4  (best: 5 of trial 1)")


# A search as a program of its own, to be killed and started again.
PROGRAM = """
import optuna
from cleanrl_utils.tuner import Tuner, session, storage
session.POLL, storage.HEARTBEAT = 0.05, 1
params_fn = lambda trial: {"quality": trial.suggest_float("quality", 0, 1), "pause": PAUSE}
settings = {"pruner": optuna.pruners.NopPruner(), "workers": 2}
tuner = Tuner("stand_in.py", "charts/episodic_return", {"A-v0": None}, params_fn, STORAGE **settings)
tuner.tune(num_trials=TRIALS, num_seeds=2)
"""


def start_program(folder: Path, pause: float = 0.1, storage: str = "", trials: int = 3) -> subprocess.Popen:
    storage = f"storage={storage!r}," if storage else ""
    program = PROGRAM.replace("PAUSE", str(pause)).replace("STORAGE", storage).replace("TRIALS", str(trials))
    (folder / "program.py").write_text(program)
    command = [sys.executable, "-c", "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "]
    command[-1] += "import runpy; runpy.run_path('program.py', run_name='__main__')"
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.parametrize(
    "how", [*(pytest.param(x, marks=pytest.mark.slow) for x in (signal.SIGINT, signal.SIGTERM)), signal.SIGKILL]
)
def test_a_stopped_search_leaves_no_processes_and_continues_where_it_was(folder, how):
    process = start_program(folder)
    wait_until(lambda: (folder / "calls.txt").exists() and len(calls(folder, "end")) >= 2)
    wait_until(lambda: len(calls(folder)) >= 4)  # two seeds are finished, two more begin
    finished = {tuple(call["argv"]) for call in calls(folder, "end")}
    os.kill(process.pid, how)
    output = process.communicate(timeout=30)[0]
    assert process.returncode == (-how if how == signal.SIGKILL else 128 + how) and "Traceback" not in output, output
    assert how == signal.SIGKILL or "run the same program again" in output
    wait_until(lambda: not any(alive(call["pid"]) for call in calls(folder)))
    before = len(calls(folder))
    process = start_program(folder)
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 0 and "best: trial" in output, output
    trials = trials_of()
    continued = storage.requeued(trials)
    assert continued and len(trials) == 3 + len(continued)
    for trial in trials:
        assert trial.state.name == ("FAIL" if trial.number in continued else "COMPLETE")
        for number in storage.requeued([trial]):
            assert trial.params == trials[number].params
    # nothing that was finished is trained again: 3 trials x 2 seeds, less those
    assert len(calls(folder)) - before == 6 - len(finished)


@pytest.mark.slow
def test_a_trial_that_another_process_has_taken_over_is_dropped(folder):
    """As after a computer has slept: its trials were given up."""
    process = start_program(folder, pause=0.3)
    wait_until(lambda: (folder / "calls.txt").exists() and len(calls(folder)) == 2)
    (name,) = optuna.get_all_study_names("sqlite:///cleanrl_hpopt.db")
    study = optuna.load_study(study_name=name, storage="sqlite:///cleanrl_hpopt.db")
    study.tell(0, state=optuna.trial.TrialState.FAIL)
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 0 and "trial 0  was taken over by another process" in output, output
    assert [trial.state.name for trial in trials_of()] == ["FAIL", "COMPLETE", "COMPLETE"]


def test_a_name_with_strange_characters_is_no_path(folder):
    make(study_name="a/b c", script="stand_in.py").tune(num_trials=1, num_seeds=1)
    assert (folder / "runs" / "tuner" / "a_b_c").is_dir()


def test_the_folder_of_the_database_is_made(folder):
    make(storage="sqlite:///new/folder/study.db").tune(num_trials=1, num_seeds=1)
    assert len(trials_of("sqlite:///new/folder/study.db")) == 1


def test_a_finished_study_is_not_run_again(folder, capsys):
    make().tune(num_trials=2, num_seeds=1)
    best = make().tune(num_trials=2, num_seeds=1)
    assert len(calls(folder)) == 2 and best.value == max(trial.value for trial in trials_of())
    assert "2 of 2 trials done" in capsys.readouterr().out
    make().tune(num_trials=3, num_seeds=1)
    assert len(calls(folder)) == 3


def test_other_parameters_are_another_study_and_another_measure_needs_another_name(folder):
    make(lambda trial: {"quality": 1}).tune(num_trials=1, num_seeds=1)
    make(lambda trial: {"quality": 2}).tune(num_trials=1, num_seeds=1)
    assert len(optuna.get_all_study_names("sqlite:///cleanrl_hpopt.db")) == 2
    make(study_name="mine").tune(num_trials=1, num_seeds=1)
    with pytest.raises(SystemExit, match="mine was scored with another num_seeds, metric_last_n_average_window"):
        make(study_name="mine", metric_last_n_average_window=9).tune(num_trials=1, num_seeds=2)


def test_a_journal_file_is_a_storage_too(folder):
    backend = optuna.storages.journal.JournalFileBackend("study.log")
    best = make(storage=optuna.storages.JournalStorage(backend)).tune(num_trials=2, num_seeds=1)
    assert best.value == pytest.approx(best.params["quality"])


def test_optuna_dashboard_shows_the_study(folder):
    make(study_name="shown").tune(num_trials=2, num_seeds=1)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    dashboard = Path(sys.executable).with_name("optuna-dashboard")
    if not dashboard.exists():
        pytest.skip("optuna-dashboard is not installed")
    command = [str(dashboard), "sqlite:///cleanrl_hpopt.db", "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}/api/studies"
        wait_until(lambda: answers(url))
        (study,) = json.load(urllib.request.urlopen(url))["study_summaries"]
        assert study["study_name"] == "shown"
        detail = json.load(urllib.request.urlopen(f"{url}/{study['study_id']}?after=0"))
        assert [len(trial["intermediate_values"]) for trial in detail["trials"]] == [TENTHS, TENTHS]
    finally:
        server.kill()
        server.wait()


def answers(url: str) -> bool:
    try:
        return urllib.request.urlopen(url, timeout=5).status == 200
    except OSError:
        return False


@pytest.mark.parametrize(
    "kwargs, message",
    [
        ({"script": "absent.py"}, "there is no file absent.py"),
        ({"target_scores": {}}, "at least one environment"),
        ({"target_scores": {"A-v0": None, "B-v0": [0, 1]}}, "need two scores each"),
        ({"target_scores": {"A-v0": [1, 1]}}, "two different scores"),
        ({"aggregation_type": "mean"}, "one of average, median, max, min"),
        ({"direction": "up"}, "maximize or minimize"),
        ({"workers": 0}, "at least 1"),
    ],
)
def test_wrong_arguments_are_explained(folder, kwargs, message):
    with pytest.raises(ValueError, match=message):
        make(**kwargs)


def test_problems_with_the_surroundings_take_one_line(folder, monkeypatch):
    with pytest.raises(SystemExit, match="exp-name, env-id and seed are the tuner's own"):
        make(lambda trial: {"seed": 3}).tune(num_trials=1, num_seeds=1)
    with pytest.raises(SystemExit) as stop:
        make(storage="postgresql://me:secret@127.0.0.1:1/none").tune(num_trials=1, num_seeds=1)
    assert "cannot open the storage postgresql://me:***@127.0.0.1:1/none" in str(stop.value)
    assert "secret" not in str(stop.value) and "\n" not in str(stop.value)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(SystemExit, match=r'pip install "cleanrl\[optuna\]"'):
        make().tune(num_trials=1, num_seeds=1)


@pytest.fixture
def postgres(tmp_path_factory):
    """A PostgreSQL server of this test's own, on a data folder that is thrown away."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb")) or [Path(shutil.which("initdb") or "")]
    if not programs[-1].is_file():
        pytest.skip("no PostgreSQL server is installed (Debian: apt-get install postgresql)")
    pytest.importorskip("psycopg", reason="psycopg, of the extra optuna, is not installed")
    programs = programs[-1].parent
    data = Path("/tmp", f"cleanrl_postgres_{os.getpid()}")  # short: a socket's path may have 107 characters
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir()
    user = {"user": "postgres"} if os.getuid() == 0 else {}  # the server refuses to run as root
    if user:
        shutil.chown(data, "postgres")
    quiet = {"cwd": data, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL} | user
    subprocess.run([programs / "initdb", "-D", data / "db", "-U", "tuner", "-A", "trust"], check=True, **quiet)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [programs / "postgres", "-D", data / "db", "-p", str(port), "-k", data, "-F"]
    server = subprocess.Popen(command, **quiet)
    ready = [programs / "pg_isready", "-h", "127.0.0.1", "-p", str(port), "-q"]
    wait_until(lambda: subprocess.run(ready).returncode == 0)
    yield types.SimpleNamespace(url=f"postgresql://tuner@127.0.0.1:{port}/postgres", server=server)
    server.send_signal(signal.SIGINT)
    server.wait()
    shutil.rmtree(data, ignore_errors=True)


def test_two_processes_share_a_study_on_a_postgresql_server(folder, postgres):
    processes = [start_program(folder, 0.05, postgres.url, trials=6) for _ in range(2)]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert all(process.returncode == 0 for process in processes), outputs
    lists = [re.findall(r"^trial (\d+)  \[", output, re.MULTILINE) for output in outputs]
    assert min(map(len, lists)) >= 1 and not set(lists[0]) & set(lists[1])  # both have worked, on different trials
    trials = trials_of(postgres.url)
    # both may take the last trial in the same moment
    assert {trial.state.name for trial in trials} == {"COMPLETE"} and 6 <= len(trials) <= 7
    assert sorted(int(number) for numbers in lists for number in numbers) == list(range(len(trials)))
    bests = [re.search("; best: (.*)", output)[1] for output in outputs]
    assert len(trials) == 7 or bests[0] == bests[1]


def test_several_may_be_the_first_on_a_postgresql_server(folder, postgres):
    """All look for the tables, find none, and make them: all but one come too late."""
    together = threading.Barrier(6)

    def be_first(_):
        together.wait()
        open_storage(postgres.url)  # ends with SystemExit if it fails

    with ThreadPoolExecutor(together.parties) as pool:
        list(pool.map(be_first, range(together.parties)))


@pytest.mark.slow
def test_two_processes_share_a_study_in_a_file(folder):
    processes = [start_program(folder, trials=6) for _ in range(2)]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert all(process.returncode == 0 for process in processes), outputs
    assert {trial.state.name for trial in trials_of()} == {"COMPLETE"} and 6 <= len(trials_of()) <= 7


@pytest.mark.slow
def test_when_the_server_dies_the_tuner_says_so_and_leaves_no_processes(folder, postgres):
    process = start_program(folder, 1, postgres.url)
    wait_until(lambda: (folder / "calls.txt").exists() and len(calls(folder)) == 2)
    postgres.server.kill()
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 1 and "lost the storage postgresql://" in output and "Traceback" not in output, output
    assert not any(alive(call["pid"]) for call in calls(folder))


def test_the_documented_example_is_the_file():
    page = (ROOT / "docs" / "get-started" / "tuner.md").read_text()
    assert f"```python\n{(ROOT / 'tuner_example.py').read_text()}```\n" in page


@pytest.mark.slow
def test_the_example_tunes_ppo(folder):
    """As documented, shortened: fewer steps, trials and seeds, and without Acrobot, whose first episode is longer."""
    shutil.copytree(ROOT / "cleanrl", folder / "cleanrl")
    example = (ROOT / "tuner_example.py").read_text()
    short = example.replace("100000", "2560").replace("num_trials=100, num_seeds=3", "num_trials=1, num_seeds=1")
    short = re.sub(r' *"Acrobot-v1".*\n', "", short)
    assert short.count("2560") == 1 and "num_trials=1," in short and "Acrobot" not in short
    (folder / "tuner_example.py").write_text(short)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "tuner_example.py"], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    (trial,) = trials_of()
    args = json.loads(next(folder.glob("runs/CartPole-v1__*/args.json")).read_text())
    for name, value in trial.params.items():
        assert args[name.replace("-", "_")] == value
    assert args["num_envs"] == 16 and args["seed"] == 1 and 0 < trial.value < 1


@pytest.mark.slow
def test_weights_and_biases_gets_a_run_for_every_trial(folder, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    make(wandb_kwargs={"project": "p"}, workers=2).tune(num_trials=2, num_seeds=1)
    assert len(list(folder.glob("wandb/offline-run-*"))) == 2
