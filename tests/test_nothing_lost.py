"""Whatever ends a run, nothing is lost but the work since its last checkpoint, and the run says how to go on."""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import PPO, ROOT, SHORT, Runner, assert_same_run, curves
from safetensors.torch import safe_open

from cleanrl_utils.checkpoint import last_step

MODULES = ROOT / "tests" / "modules"
CHECKPOINTS = ["--checkpoint-frequency", "1"]  # after every iteration
LONG = [*SHORT, "--total-timesteps", 800 * 64]  # seconds, also on a fast machine
ENDLESS = [*SHORT, "--total-timesteps", 10**6]
ONE_ROLLOUT = [*SHORT, "--num-steps", 500_000, "--total-timesteps", 10**6]  # no checkpoint for minutes


def load(run_dir: Path) -> dict:
    return torch.load(run_dir / "checkpoint.pt", weights_only=False)


def read(run_dir: Path, name: str) -> dict:
    return json.loads((run_dir / f"{name}.json").read_text())


def wait_for_start(runner: Runner, process: subprocess.Popen, pattern: str = "runs/*") -> Path:
    """The folder of a run that has begun to train."""
    run_dir = runner.wait_for(f"{pattern}/events*", process).parent
    time.sleep(0.5)
    return run_dir


def assert_one_line(result: subprocess.CompletedProcess, *words: str) -> None:
    lines = result.stderr.strip().splitlines()
    assert result.returncode == 1 and len(lines) == 1, result.stderr
    for word in words:
        assert word in lines[0]


# Killed


def kill_and_resume(runner: Runner, *flags) -> Path:
    process = runner.start(PPO, *flags, *CHECKPOINTS)
    run_dir = runner.wait_for("runs/*killed*/checkpoint.pt", process).parent
    time.sleep(random.uniform(0, 0.3))
    process.kill()
    process.communicate()
    assert load(run_dir)["global_step"] < 100 * 64
    runner.run(PPO, "--resume", run_dir)
    return run_dir


@pytest.mark.parametrize(
    "env_id", ["CartPole-v1", "Acrobot-v1", pytest.param("MountainCar-v0", marks=pytest.mark.slow)]
)
def test_resumed_run_equals_one_that_never_stopped(runner, env_id):
    flags = [*SHORT, "--total-timesteps", 100 * 64, "--save-model", "--env-id", env_id]
    never_stopped = runner.train(*flags)
    assert_same_run(never_stopped, kill_and_resume(runner, *flags, "--exp-name", "killed"))


def test_run_with_video_resumes_exactly(runner):
    flags = [*SHORT, "--save-model", "--capture-video"]
    never_stopped = runner.train(*flags)
    assert_same_run(never_stopped, kill_and_resume(runner, *flags, "--exp-name", "killed"))
    assert list(never_stopped.glob("videos/*.mp4")) and list(never_stopped.glob("evaluation/videos/*.mp4"))


KILL_LOOP = """
import os, pathlib, random, runpy, signal, sys, time
import gymnasium, safetensors.torch, torch, torch.utils.tensorboard, tqdm, tyro
import cleanrl_utils.run
torch.set_num_threads(1)
script, flags = sys.argv[1], sys.argv[2:]
random.seed(1)
checkpoint, last = None, -1
for _ in range(50):
    child = os.fork()
    if not child:  # a fork of a process that has imported everything: fifty fresh ones would take minutes
        sys.argv[1:] = [*flags] if checkpoint is None else ["--resume", str(checkpoint.parent)]
        runpy.run_path(script, run_name="__main__")
        os._exit(0)
    started = os.stat(checkpoint).st_mtime_ns if checkpoint else 0
    while True:
        checkpoint = checkpoint or next(pathlib.Path("runs").glob("*/checkpoint.pt"), None)
        if checkpoint and os.stat(checkpoint).st_mtime_ns > started:
            break
        assert os.waitpid(child, os.WNOHANG)[0] == 0, "the run ended by itself"
        time.sleep(0.001)
    time.sleep(random.uniform(0, 0.05))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    step = torch.load(checkpoint, weights_only=False)["global_step"]
    assert step > last, (step, last)
    last = step
print(checkpoint.parent, last)
"""


def test_fifty_kills_while_checkpointing_leave_a_good_checkpoint_each_time(runner):
    flags = ["--no-cuda", "--num-envs", "1", "--num-steps", "8", "--num-minibatches", "1", "--update-epochs", "1"]
    flags += ["--no-anneal-lr", "--save-model"]
    killed, step = runner.run("-c", KILL_LOOP, PPO, *flags, *CHECKPOINTS).stdout.split()[-2:]
    total = ["--total-timesteps", int(step) + 800]
    runner.run(PPO, "--resume", killed, *total)
    never_stopped = runner.train(*flags, *total, "--exp-name", "never_stopped")
    assert_same_run(never_stopped, runner.folder / killed)


# Asked to stop


@pytest.mark.parametrize(
    "number, name, code, frequency",
    [
        (signal.SIGINT, "Ctrl+C", -signal.SIGINT, 100_000),  # in a shell, 130
        (signal.SIGTERM, "SIGTERM", 143, 0),
    ],
)
def test_run_that_is_asked_to_stop_saves_and_resumes_to_the_bit(runner, number, name, code, frequency):
    flags = [*LONG, "--save-model", "--checkpoint-frequency", frequency]
    process = runner.start(PPO, *flags, "--exp-name", "stopped")
    run_dir = wait_for_start(runner, process)
    assert not (run_dir / "checkpoint.pt").exists()
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == code, stderr
    step = load(run_dir)["global_step"]
    assert 0 < step < 800 * 64 and last_step(run_dir) == step
    asked, stopped = stderr.strip().splitlines()[-2:]
    assert asked == f"{name}: the run saves its state and stops (a second Ctrl+C stops it at once)"
    folder = run_dir.relative_to(runner.folder)
    assert stopped.startswith(f"stopped by {name}: step {step} is saved. Go on with: ")
    assert stopped.endswith(f"ppo.py --resume {folder}") and "Traceback" not in stdout + stderr
    runner.run(PPO, "--resume", folder)
    assert_same_run(runner.train(*flags), run_dir)


def test_closed_terminal_stops_a_run_like_sigterm_but_not_under_nohup(runner):
    inherited = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup
    process = runner.start(PPO, *ENDLESS)
    signal.signal(signal.SIGHUP, inherited)
    run_dir = wait_for_start(runner, process)
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=60)
    assert process.returncode == 129 and load(run_dir)["global_step"] > 0
    nohup = "import os, runpy, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); del sys.argv[0]; "
    nohup += "os.kill(os.getpid(), signal.SIGHUP); runpy.run_path(sys.argv[0], run_name='__main__'); "
    nohup += "assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN"
    runner.run("-c", nohup, PPO, *SHORT)


def test_second_ctrl_c_stops_at_once_and_sigterm_after_the_first_does_not(runner):
    process = runner.start(PPO, *ONE_ROLLOUT)
    wait_for_start(runner, process)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTERM):
        process.send_signal(number)
        time.sleep(0.3)
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT and "Traceback" not in stderr
    assert stderr.count("the run saves its state") == 1
    assert stderr.strip().splitlines()[-1] == "stopped: interrupted; there was no checkpoint yet"


def test_interactive_interpreter_keeps_the_variables_of_the_very_step_that_was_saved(runner):
    process = runner.start("-i", PPO, *ENDLESS, stdin=subprocess.PIPE)
    run_dir = wait_for_start(runner, process)
    process.send_signal(signal.SIGINT)
    runner.wait_for("runs/*/checkpoint.pt", process)
    time.sleep(0.5)
    # the interpreter is still there, but the run is not: it may be resumed elsewhere meanwhile
    step = load(run_dir)["global_step"]
    runner.run(PPO, "--resume", run_dir, "--total-timesteps", step + 64)
    commands = "import signal\nprint('SEEN', global_step, tuple(obs.shape), args.seed, recent_returns.maxlen)\n"
    commands += "print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)\n1 / 0\n"
    stdout, stderr = process.communicate(commands, timeout=60)
    assert f"SEEN {step} (32, 2, 4) 1 100\nTrue\n" in stdout
    assert "ZeroDivisionError" in stderr and stderr.count("stopped") == 1  # which is not taken for one of the run


SIGNAL_IN_EVALUATION = """
import os, runpy, signal, sys
from cleanrl_utils import run
def evaluate(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGTERM)
run.evaluate = evaluate
sys.argv[:] = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_signal_in_the_evaluation_stops_at_once_and_the_run_can_be_evaluated_later(runner):
    result = runner.run("-c", SIGNAL_IN_EVALUATION, PPO, *SHORT, "--save-model", check=False)
    (run_dir,) = runner.folder.glob("runs/*")
    assert result.returncode == 143
    line = result.stderr.strip().splitlines()[-1]
    assert line == f"stopped by SIGTERM: the training is complete, and --resume runs/{run_dir.name} evaluates it"
    result = runner.run(PPO, "--resume", run_dir)
    assert "nothing is left to train" in result.stdout and "evaluation: mean return" in result.stdout


def test_line_of_a_signal_in_the_evaluation_does_not_name_a_checkpoint_that_is_not_there(runner):
    flags = [*SHORT, "--save-model", "--checkpoint-frequency", "0"]
    result = runner.run("-c", SIGNAL_IN_EVALUATION, PPO, *flags, check=False)
    (run_dir,) = runner.folder.glob("runs/*")
    assert f"-m cleanrl_utils.evaluate runs/{run_dir.name} evaluates it" in result.stderr
    assert "mean return" in runner.run("-m", "cleanrl_utils.evaluate", run_dir).stdout


def test_mistake_after_a_complete_run_in_the_interpreter_is_not_taken_for_one_of_the_run(runner):
    process = runner.start("-i", PPO, *SHORT, stdin=subprocess.PIPE)
    _, stderr = process.communicate("1 / 0\n", timeout=60)
    assert "ZeroDivisionError" in stderr and "stopped" not in stderr


def test_largest_seed_is_evaluated_as_well(runner):
    assert "evaluation: mean return" in runner.run(PPO, *SHORT, "--save-model", "--seed", 2**32 - 1).stdout


def test_ctrl_c_before_the_run_has_begun_leaves_nothing_and_says_nothing(runner):
    process = runner.start(PPO, *SHORT)
    time.sleep(0.7)  # in the middle of the imports
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("", "") and process.returncode == -signal.SIGINT
    module = "import gymnasium as gym\nclass Slow(gym.Env):\n    def __init__(self):\n        raise KeyboardInterrupt\n"
    (runner.folder / "slow.py").write_text(module + "gym.register('Slow-v0', Slow)\n")
    result = runner.run(PPO, "--env-id", "slow:Slow-v0", modules=runner.folder, check=False)
    assert result.returncode != 0 and result.stderr == ""
    assert not (runner.folder / "runs").exists()


def test_interrupted_benchmark_loses_nothing(runner):
    command = ["-m", "cleanrl_utils.benchmark", "--env-ids", "CartPole-v1", "--num-seeds", "1", "--command"]
    command.append(f"python {PPO} --save-model " + " ".join(map(str, LONG)))
    process = runner.start(*command)
    run_dir = wait_for_start(runner, process, "runs/CartPole*")
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stdout + stderr
    step = load(run_dir)["global_step"]
    (log,) = runner.folder.glob("runs/benchmark/*/log.txt")
    assert f"step {step} is saved" in log.read_text() and "interrupted after" in log.read_text()
    assert "CartPole-v1 seed 1 resumes from" in runner.run(*command).stdout
    assert_same_run(runner.train(*LONG, "--save-model"), run_dir)


# Crashed


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="only Linux can fill the disk of another process")
def test_full_disk_keeps_the_last_checkpoint_and_says_so_in_one_line(runner):
    process = runner.start(PPO, *ENDLESS, *CHECKPOINTS)
    run_dir = runner.wait_for("runs/*/checkpoint.pt", process).parent
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (4096, 4096))  # from now on every file is full at 4 KiB
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Traceback" not in stderr and "File too large" in stderr
    folder = run_dir.relative_to(runner.folder)
    assert f"the last checkpoint is of step {load(run_dir)['global_step']}: " in stderr
    assert stderr.endswith(f"--resume {folder}\n") and not list(run_dir.glob("*.tmp"))


FULL_AT_THE_MODEL = """
import resource, runpy, sys
import safetensors.torch
save_file = safetensors.torch.save_file
def save_on_a_full_disk(*args):
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    save_file(*args)
safetensors.torch.save_file = save_on_a_full_disk
sys.argv[:] = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_full_disk_while_the_model_is_saved_is_told_in_one_line_and_can_be_made_good(runner):
    process = runner.start("-c", FULL_AT_THE_MODEL, PPO, *SHORT, "--save-model")
    stdout, stderr = process.communicate(timeout=100)
    (run_dir,) = runner.folder.glob("runs/*")
    assert process.returncode == 1 and "Traceback" not in stderr and "Exception" not in stderr, stderr
    assert "File too large" in stderr and "the last checkpoint is of step 1280: " in stderr
    assert not list(run_dir.glob("*.safetensors"))
    runner.run(PPO, "--resume", run_dir)
    assert (run_dir / "ppo.safetensors").exists()


def test_training_goes_on_when_nobody_reads_its_output_any_more(runner):
    process = runner.start(PPO, *SHORT, "--save-model")
    assert process.stdout.readline().startswith("global_step=")
    process.stdout.close()  # as `| head -1` does
    stderr = process.stderr.read()
    assert process.wait(timeout=60) == 0 and "Error" not in stderr
    (run_dir,) = runner.folder.glob("runs/*")
    assert len(curves(run_dir)["losses/value_loss"]) == 20 and (run_dir / "ppo.safetensors").exists()


def test_crash_of_the_environment_shows_its_traceback_and_how_to_go_on(runner):
    flags = [*SHORT, *CHECKPOINTS, "--env-id", "trap_envs:Exploding-v0"]
    result = runner.run(PPO, *flags, modules=MODULES, check=False)
    assert result.returncode != 0
    assert "the simulator exploded" in result.stderr and "Traceback" in result.stderr
    assert "stopped: RuntimeError; the last checkpoint is of step 192" in result.stderr


def test_non_finite_reward_stops_the_run_and_is_named(runner):
    result = runner.run(PPO, *SHORT, *CHECKPOINTS, "--env-id", "trap_envs:NaN-v0", modules=MODULES, check=False)
    assert result.returncode != 0 and "Traceback" not in result.stderr
    assert "rewards is not finite at global_step=256" in result.stderr
    assert "the last checkpoint is of step 192" in result.stderr


def test_diverged_run_stops_and_names_the_loss(runner):
    result = runner.run(PPO, *SHORT, "--learning-rate", "1e30", check=False)
    assert result.returncode != 0 and "Traceback" not in result.stderr
    assert "_loss is not finite at global_step=" in result.stderr
    assert "no checkpoint yet" in result.stderr


# One process to a folder


def test_second_process_in_a_run_folder_is_refused(runner):
    process = runner.start(PPO, *ENDLESS, *CHECKPOINTS)
    run_dir = runner.wait_for("runs/*/checkpoint.pt", process).parent
    refused = runner.run(PPO, "--resume", run_dir, check=False)
    assert_one_line(refused, f"{run_dir}: another process trains in this folder (process {process.pid} on ")
    assert process.poll() is None
    process.kill()  # leaves the file, but not the lock
    process.communicate()
    assert (run_dir / ".lock").exists()
    runner.run(PPO, "--resume", run_dir, "--total-timesteps", load(run_dir)["global_step"] + 64)
    assert not (run_dir / ".lock").exists()


FORK = """
import os, sys, time
from cleanrl_utils.lock import lock
lock(".")
if os.fork() == 0:
    time.sleep(20)
os._exit(0)
"""


def test_lock_does_not_live_on_in_a_fork_of_its_process(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", FORK], cwd=tmp_path, env=environment, check=True)
    take = "from cleanrl_utils.lock import lock; lock('.')"
    subprocess.run([sys.executable, "-c", take], cwd=tmp_path, env=environment, check=True)


# Resumed with other flags


@pytest.fixture(scope="module")
def complete_run(tmp_path_factory) -> Path:
    return Runner(tmp_path_factory.mktemp("complete")).train(*SHORT)


@pytest.fixture
def complete(complete_run, runner) -> Path:
    """A copy of a complete run, to be changed."""
    return Path(shutil.copytree(complete_run, runner.folder / "runs" / complete_run.name))


def test_complete_run_resumed_with_other_flags_still_tells_what_it_was_trained_with(runner, complete):
    before = {name: (complete / f"{name}.json").read_text() for name in ("args", "provenance")}
    result = runner.run(PPO, "--resume", complete, "--learning-rate", "0.5", "--no-clip-vloss", "--save-model")
    assert f"{complete} is complete at step 1280: nothing is left to train" in result.stdout
    assert "; without effect: --learning-rate, --clip-vloss" in result.stdout
    assert before == {name: (complete / f"{name}.json").read_text() for name in ("args", "provenance")}
    with safe_open(complete / "ppo.safetensors", "pt") as model:
        trained_with = json.loads(model.metadata()["args"])
        assert model.metadata()["global_step"] == "1280"
    assert (trained_with["learning_rate"], trained_with["clip_vloss"]) == (2.5e-4, True)
    assert "evaluation: mean return" in result.stdout


def test_complete_run_can_be_extended_and_its_sessions_are_told(runner, complete):
    runner.run(PPO, "--resume", complete, "--total-timesteps", 2560, "--learning-rate", "1e-3")
    runner.run(PPO, "--resume", complete, "--total-timesteps", 3200)
    assert [step for step, _ in curves(complete)["losses/value_loss"]] == list(range(64, 3201, 64))
    rates = dict(curves(complete)["charts/learning_rate"])
    assert rates[1344] == pytest.approx(1e-3 * 20 / 40) and rates[2624] == pytest.approx(1e-3 * 10 / 50)
    facts = read(complete, "provenance")
    assert {"commit", "versions", "hardware", "tags"} <= facts.keys()
    first, second, third = facts["sessions"]
    assert [session["from_step"] for session in facts["sessions"]] == [0, 1280, 2560]
    assert (first["args"]["total_timesteps"], first["args"]["learning_rate"]) == (1280, 2.5e-4)
    assert second["args"] == {"total_timesteps": 2560, "learning_rate": 1e-3, "num_iterations": 40}
    assert third["args"] == {"total_timesteps": 3200, "num_iterations": 50}
    assert first["script"] == second["script"] and first["versions"] == facts["versions"]
    assert facts["global_step"] == last_step(complete) == 3200
    assert read(complete, "args")["learning_rate"] == 1e-3


def test_session_that_was_killed_before_its_first_checkpoint_has_trained_nothing(runner, complete):
    process = runner.start(PPO, "--resume", complete, *ENDLESS, "--learning-rate", "0.5", "--exp-name", "ppo")
    for _ in range(1000):
        if len(list(complete.glob("events*"))) == 2:
            break
        time.sleep(0.02)
    process.kill()
    process.communicate()
    assert [session["args"].get("learning_rate") for session in read(complete, "provenance")["sessions"]] == [
        2.5e-4,
        0.5,
    ]
    runner.run(PPO, "--resume", complete, "--total-timesteps", 1920)
    sessions = read(complete, "provenance")["sessions"]
    assert [session["from_step"] for session in sessions] == [0, 1280] and "learning_rate" not in sessions[1]["args"]
    assert read(complete, "args")["learning_rate"] == 2.5e-4


def test_run_does_not_go_back_to_fewer_steps(runner, complete):
    result = runner.run(PPO, "--resume", complete, "--total-timesteps", 640, check=False)
    assert_one_line(result, "--total-timesteps 640: the run is at step 1280 already")


@pytest.mark.parametrize(
    "flag, value", [("--env-id", "Acrobot-v1"), ("--num-envs", "4"), ("--seed", "2"), ("--num-steps", "8")]
)
def test_resuming_does_not_change_what_the_checkpoint_fixes(runner, complete, flag, value):
    result = runner.run(PPO, "--resume", complete, flag, value, check=False)
    assert_one_line(result, f"{flag} is", "start a new run")


def test_bad_flags_beside_resume_are_refused_like_any_others(runner, complete):
    result = runner.run(PPO, "--resume", complete, "--gamma", "1.5", check=False)
    assert_one_line(result, "--gamma 1.5: must be between 0 and 1")


def test_model_can_be_read_by_whoever_may_read_other_files(runner):
    code = "import os, runpy, sys; os.umask(0o027); del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
    runner.run("-c", code, PPO, *SHORT, "--save-model")
    (model,) = runner.folder.glob("runs/*/*.safetensors")
    assert model.stat().st_mode & 0o777 == 0o640


# Something else than the run that was saved


def test_resuming_with_a_changed_file_says_so(runner, complete):
    script = Path(shutil.copy(PPO, runner.folder / "ppo.py"))
    script.write_text(script.read_text() + "\n# changed\n")
    result = runner.run(script, "--resume", complete, "--total-timesteps", 2560)
    assert "has changed since the run began" in result.stderr
    first, second = read(complete, "provenance")["sessions"]
    assert first["script"] != second["script"]


def test_resumed_file_trains_with_the_settings_of_the_optimizer_that_its_text_says(runner, complete):
    script = Path(shutil.copy(PPO, runner.folder / "ppo.py"))
    text = script.read_text()
    adam = "torch.optim.Adam(agent.parameters(), learning_rate, eps=1e-5, fused=True)"
    assert text.count(adam) == 1
    script.write_text(text.replace(adam, adam.replace("eps=1e-5", "eps=1e-3, betas=(0.5, 0.9)")))
    moments = load(complete)["optimizer"]["state"][0]["step"]
    runner.run(script, "--resume", complete, "--total-timesteps", 1920)
    saved = load(complete)["optimizer"]
    assert (saved["param_groups"][0]["eps"], saved["param_groups"][0]["betas"]) == (1e-3, (0.5, 0.9))
    assert saved["state"][0]["step"] > moments  # which go on
    script.write_text(text.replace(adam, "torch.optim.RMSprop(agent.parameters(), args.learning_rate)"))
    result = runner.run(script, "--resume", complete, "--total-timesteps", 2560, check=False)
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert "optimizer does not fit the checkpoint: it was an optimizer of another kind" in result.stderr


def test_setting_of_the_optimizer_that_the_training_changes_goes_on_from_its_last_value(runner):
    script = Path(shutil.copy(PPO, runner.folder / "ppo.py"))
    anchor = "        # Rollout: "
    text = script.read_text()
    assert text.count(anchor) == 1
    script.write_text(text.replace(anchor, '        optimizer.param_groups[0]["eps"] *= 2\n' + anchor))
    run_dir = runner.train(*SHORT, script=script)
    assert load(run_dir)["optimizer"]["param_groups"][0]["eps"] == 1e-5 * 2**20
    runner.run(script, "--resume", run_dir, "--total-timesteps", 1280 + 64)
    assert load(run_dir)["optimizer"]["param_groups"][0]["eps"] == 1e-5 * 2**21


def test_run_of_another_script_is_not_resumed(runner, complete):
    script = Path(shutil.copy(PPO, runner.folder / "dqn.py"))
    assert_one_line(runner.run(script, "--resume", complete, check=False), "a run of ppo.py, not of dqn.py")


def change(run_dir: Path, **fields) -> None:
    """Write other fields into a checkpoint; None removes one."""
    checkpoint = load(run_dir) | fields
    checkpoint = {name: value for name, value in checkpoint.items() if fields.get(name, value) is not None}
    torch.save(checkpoint, run_dir / "checkpoint.pt")


def test_checkpoint_that_is_damaged_or_lacks_something_is_refused_in_one_line(runner, complete):
    change(complete, optimizer=None)
    assert_one_line(runner.run(PPO, "--resume", complete, check=False), "the checkpoint lacks optimizer", "has changed")
    change(complete, optimizer="nonsense")
    assert_one_line(runner.run(PPO, "--resume", complete, check=False), "optimizer does not fit the checkpoint")
    change(complete, torch_random=None)
    assert_one_line(runner.run(PPO, "--resume", complete, check=False), "checkpoint.pt lacks torch_random")
    torch.save([1, 2, 3], complete / "checkpoint.pt")
    assert_one_line(runner.run(PPO, "--resume", complete, check=False), "checkpoint.pt lacks args")
    (complete / "checkpoint.pt").write_bytes(b"not a checkpoint")
    assert_one_line(runner.run(PPO, "--resume", complete, check=False), "cannot read checkpoint.pt")
    (complete / "checkpoint.pt").unlink()
    assert_one_line(runner.run(PPO, "--resume", complete, check=False), "the run has no checkpoint yet")


def test_flags_and_state_that_the_file_has_got_or_lost_since_are_told(runner, complete):
    args = load(complete)["args"]
    args["my_flag"] = args.pop("clip_vloss")
    change(complete, args=args, my_network={"weight": torch.zeros(3)})
    result = runner.run(PPO, "--resume", complete, "--total-timesteps", 1920)
    assert "it no longer has --my-flag, and it now has --clip-vloss" in result.stderr
    assert "the checkpoint also holds my_network, which this file leaves out" in result.stderr


ENVIRONMENT = """
import gymnasium as gym, numpy as np
class Mine(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, ({size},), np.float32)
    action_space = gym.spaces.Discrete({actions})
    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros({size}, np.float32), {{}}
    def step(self, action):
        return self.np_random.random({size}, np.float32), 1.0, False, False, {{}}
gym.register("Mine-v0", {make})
"""


def write_environment(folder: Path, size: int = 3, actions: int = 2, make: str = "Mine") -> None:
    (folder / "mine.py").write_text(ENVIRONMENT.format(size=size, actions=actions, make=make))


def test_environment_whose_shapes_have_changed_is_refused_in_one_line(runner):
    write_environment(runner.folder)
    run_dir = runner.train(*SHORT, "--env-id", "mine:Mine-v0", modules=runner.folder)
    resume = [PPO, "--resume", run_dir, "--total-timesteps", 1920]
    write_environment(runner.folder, size=4)
    result = runner.run(*resume, modules=runner.folder, check=False)
    assert_one_line(result, "next_obs does not fit the checkpoint: its shape was (2, 3) and is (2, 4) now")
    write_environment(runner.folder, actions=3)
    result = runner.run(*resume, modules=runner.folder, check=False)
    assert_one_line(result, "agent does not fit the checkpoint", "the environment or the file has changed since")
    write_environment(runner.folder, make="lambda: gym.wrappers.TransformReward(Mine(), abs)")
    result = runner.run(*resume, modules=runner.folder)
    assert "the saved environments do not fit the present ones" in result.stderr
    assert "their episodes start again" in result.stderr


def test_environments_that_cannot_be_saved_start_again_and_the_run_says_so(runner):
    run_dir = runner.train(*SHORT, "--env-id", "trap_envs:Unpicklable-v0", modules=MODULES)
    result = runner.run(PPO, "--resume", run_dir, "--total-timesteps", 2560, modules=MODULES)
    assert "these environments cannot be saved: their episodes start again" in result.stderr
