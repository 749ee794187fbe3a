"""cleanrl_utils.benchmark on this machine: what happens to experiments that fail, hang, flood, or are killed."""

import json
import os
import pty
import re
import resource
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import PPO, ROOT, curves, heed_interrupts
from tensorboard.backend.event_processing.io_wrapper import GetLogdirSubdirectories

from cleanrl_utils import benchmark
from cleanrl_utils.benchmark_view import View, mean_and_std, seconds_left
from cleanrl_utils.engines import spec
from cleanrl_utils.engines.local import share
from cleanrl_utils.experiment import Experiment, State, read_state
from cleanrl_utils.logs import CappedLog
from cleanrl_utils.system import gpus, group_usage

STAND_IN = ROOT / "tests" / "stand_in.py"


def sweep(*env_ids, command=f"python {STAND_IN}", seeds=1, workers=2, flags=()):
    """The arguments of a benchmark."""
    return [
        *("-m", "cleanrl_utils.benchmark", "--env-ids", *env_ids, "--command", command),
        *("--num-seeds", seeds, "--workers", workers, *flags),
    ]


def history(folder: Path) -> list[list[str]]:
    """What the stand-ins tell of themselves: environment, seed, event, detail."""
    path = folder / "history.txt"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def states(folder: Path) -> dict[str, dict]:
    found = [
        json.loads(path.read_text()) | {"name": path.parent.name} for path in folder.glob("runs/benchmark/*/state.json")
    ]
    return {state["name"]: state for state in found}


def wait_until(condition, process, seconds=60):
    for _ in range(seconds * 50):
        if condition():
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    raise TimeoutError


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")")[1].split()[0] not in "ZX"
    except OSError:
        return False


def test_every_environment_runs_with_every_seed_and_the_same_command_again_runs_nothing(runner):
    command = sweep("ok", "fine", seeds=3, flags=["--start-seed", 4])
    first = runner.run(*command)
    ends = [(env_id, seed) for env_id, seed, event, _ in history(runner.folder) if event == "end"]
    assert sorted(ends) == [(env_id, seed) for env_id in ("fine", "ok") for seed in "456"]
    assert "55.0 ± 0.8" in first.stdout  # the mean over seeds of 5 * 10 + seed
    again = runner.run(*command)
    assert "6 experiments finished earlier" in again.stdout and "55.0 ± 0.8" in again.stdout
    more = runner.run(*sweep("ok", "fine", seeds=4, flags=["--start-seed", 4]))
    assert "6 experiments finished earlier" in more.stdout
    assert len([event for *_, event, _ in history(runner.folder) if event == "start"]) == 8


def test_a_failed_a_hanging_and_a_killed_experiment_are_reported_and_do_not_stop_the_others(runner):
    result = runner.run(*sweep("exit1", "hang", "killed", "ok", flags=["--timeout", 3]), check=False)
    assert result.returncode == 1
    assert "failed: exit1 seed 1: exit code 1" in result.stdout and "this environment cannot be made" in result.stdout
    assert "failed: hang seed 1: timed out after 3 s" in result.stdout and "    hanging" in result.stdout
    assert "failed: killed seed 1: killed by SIGKILL" in result.stdout
    assert "done: ok seed 1: return 51.0" in result.stdout
    assert "not done: 3 of 4 experiments; the same command goes on" in result.stdout


def test_an_environment_that_does_not_exist_is_nothing_to_go_on_with(runner):
    result = runner.run(*sweep("exit1", "ok", seeds=2), check=False)
    assert result.returncode == 1
    assert "not done: 2 of 4 experiments; correct what the log says" in result.stdout
    assert "goes on" not in result.stdout


def test_gigabytes_of_output_leave_a_small_log_and_do_not_stop_the_others(runner):
    command = f"python {STAND_IN} --gigabytes 3"
    result = runner.run(*sweep("flood", "exit1", "ok", command=command, flags=["--max-log-mb", 1]), check=False)
    assert "done: flood seed 1: return 51.0" in result.stdout and "done: ok seed 1" in result.stdout
    (log,) = runner.folder.glob("runs/benchmark/flood*/log.txt")
    text = log.read_text()
    assert len(text) < 1.1e6 and "the flood begins" in text and "left out" in text
    assert "the flood has ended" in text and "global_step=5" in text


def test_a_failed_experiment_is_retried_from_its_checkpoint(runner):
    result = runner.run(*sweep("flaky", flags=["--retries", 1]))
    assert [line[2:] for line in history(runner.folder)] == [["start", "0"], ["start", "1"], ["end", "5"]]
    assert "done: flaky" in result.stdout and "failed" not in result.stdout
    (state,) = states(runner.folder).values()
    assert state["attempts"] == 2


def test_a_failed_experiment_is_tried_again_by_the_same_command(runner):
    assert runner.run(*sweep("flaky", "ok"), check=False).returncode == 1
    result = runner.run(*sweep("flaky", "ok"))
    assert "1 experiment finished earlier" in result.stdout and "flaky seed 1 resumes from" in result.stdout
    assert [line[2] for line in history(runner.folder) if line[0] == "ok"] == ["start", "end"]


def test_a_finished_experiment_whose_run_folder_is_gone_runs_again_and_so_does_everything_on_restart(runner):
    runner.run(*sweep("ok", "fine"))
    for path in runner.folder.glob("runs/ok__*"):
        path.rename(runner.folder / "elsewhere")
    assert "1 experiment finished earlier" in runner.run(*sweep("ok", "fine")).stdout
    runner.run(*sweep("ok", "fine", flags=["--restart"]))
    starts = [env_id for env_id, _, event, _ in history(runner.folder) if event == "start"]
    assert sorted(starts) == ["fine"] * 2 + ["ok"] * 3
    assert {step for *_, event, step in history(runner.folder) if event == "start"} == {"0"}


@pytest.mark.parametrize("supervisors_too", [False, True])
def test_after_kill_9_the_same_command_finishes_and_nothing_runs_twice(runner, supervisors_too):
    # Silent: whoever prints to a supervisor that is no more dies of that
    slow = f"python {STAND_IN} --steps 40 --delay 0.05" + " --quiet" * supervisors_too
    command = sweep("a", "b", command=slow, seeds=2)
    process = runner.start(*command)

    def events(name):
        return [line for line in history(runner.folder) if line[2] == name]

    wait_until(lambda: len(events("end")) == 2 and len(events("start")) == 4, process)
    time.sleep(0.5)
    victims = [process.pid]
    if supervisors_too:
        victims += [state["pid"] for state in states(runner.folder).values() if state["status"] == "running"]
        assert len(victims) == 3
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    process.wait()
    result = runner.run(*command)
    assert "2 experiments finished earlier" in result.stdout
    assert not events("overlap")
    assert sorted(line[:2] for line in events("end")) == [["a", "1"], ["a", "2"], ["b", "1"], ["b", "2"]]
    resumed = [int(line[3]) for line in events("start")[4:]]
    assert len(resumed) == 2 and min(resumed) > 0
    assert all(state["status"] == "done" for state in states(runner.folder).values())
    assert len(list(runner.folder.glob("runs/*__stand_in__*"))) == 4


def test_ctrl_c_stops_whole_families_and_the_same_command_goes_on(runner):
    slow = f"python {STAND_IN} --steps 40 --delay 0.05"
    process = runner.start(*sweep("family", "ok", "later", command=slow))
    wait_until(lambda: {"child", "start"} <= {line[2] for line in history(runner.folder)}, process)
    time.sleep(0.5)
    start = time.time()
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stdout + stderr
    assert time.time() - start < 30 and "Traceback" not in stdout + stderr
    (child,) = [int(line[3]) for line in history(runner.folder) if line[2] == "child"]
    assert not is_running(child)
    found = {name.split("__")[0]: state["status"] for name, state in states(runner.folder).items()}
    assert found == {"family": "interrupted", "ok": "interrupted", "later": "waiting"}
    result = runner.run(*sweep("ok", "later", command=slow))
    assert "ok seed 1 resumes from" in result.stdout
    assert min(int(line[3]) for line in history(runner.folder)[-4:] if line[:3] == ["ok", "1", "start"]) > 0


def test_two_benchmarks_at_once_share_the_work(runner):
    command = sweep("a", "b", command=f"python {STAND_IN} --steps 20", seeds=2)
    both = [runner.start(*command) for _ in range(2)]
    for process in both:
        stdout, stderr = process.communicate(timeout=60)
        assert process.returncode == 0, stdout + stderr
    assert sorted(line[2] for line in history(runner.folder)) == ["end"] * 4 + ["start"] * 4


def test_what_ignores_every_signal_is_killed(runner):
    spec = json.dumps({"command": f"python {STAND_IN}", "env_id": "stubborn", "seed": 1, "timeout": 1})
    impatient = "import cleanrl_utils.supervisor as supervisor; supervisor.GRACE = 0.3; supervisor.main()"
    assert runner.run("-c", impatient, spec, check=False).returncode == 1
    (state,) = states(runner.folder).values()
    assert (state["status"], state["reason"], state["exit_code"]) == ("failed", "timed out after 1 s", -9)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system cannot pin processes")
def test_workers_have_their_own_cpus_threads_and_gpus(runner, monkeypatch):
    for variable in ("OMP_NUM_THREADS", "WANDB_TAGS"):
        monkeypatch.delenv(variable, raising=False)
    command = [sys.executable, *map(str, sweep("a", "b", command=f"python {STAND_IN} --steps 20"))]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "3,5", "WANDB_TAGS": "", "GIT_CEILING_DIRECTORIES": "/"}
    subprocess.run(command, cwd=runner.folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    found = [json.loads(path.read_text()) for path in runner.folder.glob("runs/*/surroundings.json")]
    cpus = sorted(os.sched_getaffinity(0))
    assert {x["OMP_NUM_THREADS"] for x in found} == {str(max(1, len(cpus) // 2))}
    assert sorted(x["CUDA_VISIBLE_DEVICES"] for x in found) == ["3", "5"]
    assert {x["WANDB_TAGS"] for x in found} == {None}  # no git, no tags: an empty one would end the run
    if len(cpus) >= 2:
        assert sorted(cpu for x in found for cpu in x["cpus"]) == cpus


def test_experiments_get_the_tags_of_their_commit_beside_the_users(runner, monkeypatch):
    monkeypatch.setenv("WANDB_TAGS", "mine")
    identity = ["-c", "user.name=x", "-c", "user.email=x@y.z"]
    subprocess.run(["git", "init", "-q"], cwd=runner.folder, check=True)
    subprocess.run(["git", *identity, "commit", "-q", "--allow-empty", "-m", "x"], cwd=runner.folder, check=True)
    runner.run(*sweep("ok"))
    runner.run(*sweep("fine", flags=["--no-auto-tag"]))
    found = {
        path.parent.name[:2]: json.loads(path.read_text()) for path in runner.folder.glob("runs/*/surroundings.json")
    }
    assert re.fullmatch(r"mine,[0-9a-f]{7,}", found["ok"]["WANDB_TAGS"]) and found["fi"]["WANDB_TAGS"] == "mine"


def test_every_cpu_belongs_to_one_worker():
    for workers in range(1, 8):
        shares = [share(list(range(7)), workers, slot) for slot in range(workers)]
        assert sorted(sum(shares, [])) == list(range(7)) and max(map(len, shares)) - min(map(len, shares)) <= 1
    assert share([4, 6], 3, 2) == [4, 6]


@pytest.mark.parametrize(
    "command, flags, message",
    [
        ("python nowhere.py", [], "there is no file nowhere.py"),
        ("nosuchprogram x", [], "there is no program nosuchprogram"),
        ("python 'x", [], "--command: No closing quotation"),
        (f"python {STAND_IN} --seed 3", [], "--command has --seed: leave it out"),
        (f"python {STAND_IN}", ["--workers", "0"], "--workers must be at least 1"),
        (f"python {STAND_IN}", ["--num-seeds", "0"], "--num-seeds must be at least 1"),
        (f"python {STAND_IN}", ["--timeout", "0"], "--timeout must be more than 0"),
        (f"python {STAND_IN}", ["--env-ids"], "--env-ids"),
    ],
)
def test_bad_arguments_end_in_one_line_before_anything_starts(tmp_path, monkeypatch, capsys, command, flags, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["benchmark", "--env-ids", "ok", "--command", command, *flags])
    with pytest.raises(SystemExit) as exit:
        benchmark.main()
    said = str(exit.value.code) + "".join(capsys.readouterr())
    assert exit.value.code not in (0, None) and message in said and "Traceback" not in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("workers", [1, 2])
def test_after_a_flag_the_script_does_not_know_nothing_is_started_and_nothing_is_to_go_on(runner, workers):
    command = sweep("ok", command=f"python {STAND_IN} --wrong 1", seeds=6, workers=workers)
    result = runner.run(*command, check=False)
    assert result.returncode == 1
    assert "unrecognized arguments: --wrong 1" in result.stdout
    after = result.stdout.partition("the others are not started")[2]
    assert after and "started: " not in after and "goes on" not in after and "correct --command" in after
    assert sum(state["attempts"] for state in states(runner.folder).values()) == workers


def test_a_run_that_is_abandoned_is_kept_where_tensorboard_does_not_see_it(runner):
    result = runner.run(*sweep("early", flags=["--retries", 1]))
    assert "done: early seed 1: return 51.0" in result.stdout
    (abandoned,) = runner.folder.glob("runs/benchmark/early*/abandoned/early__*")
    assert (abandoned / "args.json").exists() and (abandoned / "events.out.abandoned.1.host").read_text() == "a curve"
    (current,) = runner.folder.glob("runs/early__*")
    assert list(GetLogdirSubdirectories(str(runner.folder / "runs"))) == [str(current)]


def test_a_running_experiment_tells_what_it_uses(runner, monkeypatch):
    monkeypatch.chdir(runner.folder)
    experiment = Experiment(f"{sys.executable} {STAND_IN} --steps 400", "busy", 1)
    fast = "import cleanrl_utils.supervisor as supervisor; supervisor.MEASURE = 0.2; supervisor.main()"
    process = runner.start("-c", fast, spec(experiment))
    wait_until(lambda: (read_state(experiment).memory or 0) > 0, process)
    state = read_state(experiment)
    assert 5e6 < state.memory < 5e8 and 0 <= state.cpu < 150 and state.total_steps == 400
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert read_state(experiment).memory is None and read_state(experiment).status == "interrupted"


def test_usage_is_that_of_the_whole_group():
    busy = "bytearray(60_000_000)\nimport time\nend = time.time() + 60\nwhile time.time() < end: pass"
    family = f"import subprocess, sys\nx = {busy.splitlines()[0]}\nsubprocess.run([sys.executable, '-c', {busy!r}])"
    process = subprocess.Popen([sys.executable, "-c", family], process_group=0)
    try:
        wait_until(lambda: group_usage(process.pid)[0] > 0.5, process)
        before, start = group_usage(process.pid)[0], time.monotonic()
        time.sleep(1)
        seconds, num_bytes = group_usage(process.pid)
        assert 60e6 < num_bytes < 300e6 and 0.1 < seconds - before <= 1.1 * (time.monotonic() - start)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert group_usage(process.pid)[1] == 0


def test_the_load_of_gpus_is_shown_where_nvidia_smi_tells_it(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nprintf '45, 3174, 81559\\n0, 0, 81559\\n'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus() == ["GPU 0 45%, 3.1 of 79.6 GB", "GPU 1 0%, 0.0 of 79.6 GB"]
    program.write_text("#!/bin/sh\necho 'No devices were found'\nexit 6\n")
    assert gpus() == []


@pytest.mark.parametrize("width, has_room", [(80, False), (110, True)])
def test_a_narrow_terminal_shows_names_in_full_rather_than_what_is_used(width, has_room, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    experiment = Experiment("python ppo_atari.py", "BreakoutNoFrameskip-v4", 1)
    running = {"step": 75_064, "total_steps": 10**7, "sps": 12345, "episodic_return": 423.5, "started": time.time()}
    view = View([experiment], {experiment.name: State("running", **running, cpu=187.4, memory=3_400_000_000)}, 1)
    view.console.print(view.table())
    shown = capsys.readouterr().out
    assert "BreakoutNoFrameskip-v4" in shown and ("187%  3.4 GB" in shown) == ("memory\n" in shown) == has_room


def test_one_seed_has_no_deviation():
    assert (mean_and_std([27.4]), mean_and_std([1.0, 2.0]), mean_and_std([])) == ("27.4", "1.5 ± 0.5", "")


def test_a_terminal_shows_a_live_table_and_its_ctrl_c_stops_the_benchmark(runner):
    command = [sys.executable, *map(str, sweep("ok", "exit1", command=f"python {STAND_IN} --steps 500"))]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(runner.folder)
        heed_interrupts()
        os.execve(command[0], command, environment)
    screen, pressed = b"", False
    while select.select([terminal], [], [], 30)[0]:
        try:
            screen += os.read(terminal, 1 << 16)
        except OSError:  # it is closed
            break
        if re.search(rb"\d+% +50 ", screen) and b"GB" in screen and b"exit code 1" in screen and not pressed:
            os.write(terminal, b"\x03")
            pressed = True
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    text = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", screen.decode())  # colours and movements
    assert re.search(r"ok +1 +running +\d+ +\d+% +50 +\d", text), text
    assert re.search(r"exit1 +1 +failed", text) and re.search(r"ok +1 +interrupted", text)
    assert "1 running, 1 failed" in text and " left" in text and "this environment cannot be made" in text
    assert re.search(r"CPU \d+%, memory [\d.]+ of [\d.]+ GB", text)  # of the machine


def test_a_dry_run_prints_commands_and_leaves_nothing(runner):
    result = runner.run(*sweep("a", "b", command="python x/ppo.py --track", flags=["--dry-run"]), check=False)
    assert "no file x/ppo.py" in result.stderr
    result = runner.run(*sweep("a", "b", command=f"python {STAND_IN} --steps 3", flags=["--dry-run"]))
    assert result.stdout.splitlines() == [
        f"python {STAND_IN} --steps 3 --env-id {env_id} --seed 1" for env_id in ("a", "b")
    ]
    assert not list(runner.folder.iterdir())


def test_a_dry_run_prints_what_slurm_and_aws_would_be_given(runner, monkeypatch):
    """Without either of them here, and without keys."""
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "")
    command = sweep("a", "b", flags=["--engine", "slurm", "--slurm-gpus-per-task", 1, "--dry-run"])
    script = runner.run(*command).stdout
    assert script.startswith("#!/bin/") and "#SBATCH --array=0-1%2\n" in script and "--gpus-per-task=1" in script
    assert f"# task 1: python {STAND_IN} --env-id b --seed 1\n" in script and "cleanrl_utils.supervisor" in script
    jobs = json.loads(runner.run(*sweep("a", "b", flags=["--engine", "aws", "--aws-vcpus", 3, "--dry-run"])).stdout)
    assert [job["jobName"].split("__")[0] for job in jobs] == ["a", "b"]
    overrides = jobs[0]["containerOverrides"]
    assert {"type": "VCPU", "value": "3"} in overrides["resourceRequirements"]
    assert {"name": "WANDB_API_KEY", "value": "***"} in overrides["environment"] and "secret" not in str(jobs)
    assert not list(runner.folder.iterdir())


@pytest.mark.parametrize("lines_a_write", [1, 100, 5000])
def test_a_log_keeps_its_beginning_and_its_end(tmp_path, lines_a_write):
    log = CappedLog(tmp_path / "log.txt", limit=10_000)
    lines = [b"line %d\n" % number for number in range(5_000)]
    for start in range(0, 5_000, lines_a_write):
        log.write(b"".join(lines[start : start + lines_a_write]))
    text = (tmp_path / "log.txt").read_text()
    assert len(text) < 10_200 and text.startswith("line 0\n") and text.endswith("line 4999\n")
    assert text.count("bytes left out") == 1
    dropped = int(text.split("[... ")[1].split()[0])
    gap = text[text.index("\n[...") : text.index("...]\n") + 5]
    assert len(text) - len(gap) + dropped == sum(map(len, lines))


def test_a_full_disk_ends_the_log_but_not_the_training(tmp_path, capsys):
    log = CappedLog(Path("/dev/full"), limit=10_000)
    log.write(b"nothing fits")
    assert "No space left" in capsys.readouterr().err


def test_time_left_follows_the_pace_so_far():
    now = time.time()
    done = State(status="done", seconds=100)
    half = State(status="running", started=now - 50, step=500, total_steps=1000, sps=10)
    assert seconds_left([done, done], 2) == 0
    assert seconds_left([State()], 2) is None
    assert seconds_left([done, half, half, State(), State()], 2) == pytest.approx(150, abs=1)
    assert seconds_left([done, State(status="running", started=now - 30)], 1) == pytest.approx(70, abs=1)


def test_other_flags_are_another_experiment_but_other_limits_are_not():
    one, other = (Experiment(f"python ppo.py --gamma {gamma}", "A/B-v1", 1) for gamma in (0.9, 0.99))
    assert one.name != other.name and one.name.startswith("A_B-v1__ppo__1__")
    assert one.name == Experiment("python  ppo.py  --gamma 0.9", "A/B-v1", 1, timeout=5, retries=2).name


def test_a_damaged_state_file_counts_as_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    experiment = Experiment("python ppo.py", "x", 1)
    experiment.folder.mkdir(parents=True)
    (experiment.folder / "state.json").write_text('{"status": "do')
    assert read_state(experiment) == State()


def test_tags_come_from_git_and_never_raise(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_REF", raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert benchmark.find_tags() == []
    identity = ["-c", "user.name=x", "-c", "user.email=x@y.z"]
    subprocess.run(["git", "init", "-q", "-b", "feature"], check=True)
    subprocess.run(["git", *identity, "commit", "-q", "--allow-empty", "-m", "One (#12)"], check=True)
    commit = benchmark.git("rev-parse", "--short", "HEAD")
    assert benchmark.find_tags() == [commit, "pr-12"]
    subprocess.run(["git", "tag", "v1.2"], check=True)
    subprocess.run(["git", *identity, "commit", "-q", "--allow-empty", "-m", "Two"], check=True)
    described, commit = benchmark.find_tags()
    assert described == f"v1.2-1-g{commit}"
    subprocess.run(["git", "config", "branch.feature.merge", "refs/pull/34/head"], check=True)
    assert benchmark.find_tags()[-1] == "pr-34"
    monkeypatch.setenv("PATH", "")
    assert benchmark.find_tags() == []


def test_ppo_killed_in_the_middle_of_a_benchmark_goes_on_from_its_checkpoint(runner):
    flags = "--no-cuda --num-envs 2 --num-steps 32 --num-minibatches 2 --total-timesteps 6400"
    command = sweep("CartPole-v1", command=f"python {PPO} {flags} --checkpoint-frequency 640", workers=1)
    process = runner.start(*command)
    runner.wait_for("runs/*/checkpoint.pt", process)
    process.kill()
    process.wait()
    result = runner.run(*command)
    assert "CartPole-v1 seed 1 resumes from" in result.stdout and "done: CartPole-v1 seed 1: return" in result.stdout
    (run_dir,) = runner.folder.glob("runs/*__ppo__*")
    (log,) = runner.folder.glob("runs/benchmark/*/log.txt")
    assert log.read_text().count("attempt") == 2 and "--resume" in log.read_text()
    assert [step for step, _ in curves(run_dir)["charts/SPS"]] == list(range(64, 6401, 64))
    (state,) = states(runner.folder).values()
    last = [value for _, value in curves(run_dir)["charts/episodic_return"]][-100:]
    assert (state["step"], state["total_steps"]) == (6400, 6400) and state["sps"] > 0
    assert state["episodic_return"] == pytest.approx(sum(last) / len(last))
    assert "1 experiment finished earlier" in runner.run(*command).stdout


@pytest.mark.slow
def test_twelve_experiments_with_two_workers_lose_under_five_percent_of_the_machine(runner):
    script = f"{STAND_IN} --steps 60 --delay 0.1"  # sleeps: what is used beyond it is used by the tool

    def cost(command):
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(command, cwd=runner.folder, check=True, stdout=subprocess.DEVNULL)
        after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - start
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall

    by_hand = f"seq 12 | xargs -P 2 -I SEED {sys.executable} {script} --env-id ok --seed SEED"
    hand_cpu, hand_wall = cost(["bash", "-c", by_hand])
    arguments = sweep("ok", command=f"python {script}", seeds=12)
    tool_cpu, tool_wall = cost([sys.executable, *map(str, arguments)])
    print(f"by hand {hand_wall:.2f} s, CPU {hand_cpu:.2f} s; benchmark {tool_wall:.2f} s, CPU {tool_cpu:.2f} s")
    assert tool_wall < 1.05 * hand_wall
    assert tool_cpu - hand_cpu < 0.05 * 2 * tool_wall
    assert sum(line[2] == "end" for line in history(runner.folder)) == 24
