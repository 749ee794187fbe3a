"""cleanrl_utils.benchmark elsewhere: a real Slurm and a real Ray cluster on this machine, and moto instead of AWS.

Slurm needs the Debian packages slurmctld, slurmd, slurm-client and munge, Ray the extra `ray`.
"""

import getpass
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from conftest import ROOT
from test_benchmark import STAND_IN, history, is_running, states, sweep, wait_until

from cleanrl_utils import benchmark
from cleanrl_utils.experiment import Experiment, State, write_state

SLURM_PATH = f"{os.environ['PATH']}:/usr/sbin"
slurm_only = pytest.mark.skipif(
    not all(shutil.which(program, path=SLURM_PATH) for program in ("munged", "slurmctld", "slurmd", "sbatch")),
    reason="no Slurm here: apt-get install slurmctld slurmd slurm-client munge",
)
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
SchedulerParameters=sched_interval=1,batch_sched_delay=0
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=main Nodes=node1 Default=YES MaxTime=INFINITE State=UP
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """A Slurm cluster of one node, this machine; its programs find it through SLURM_CONF."""
    folder = tmp_path_factory.mktemp("slurm")
    for path in [folder, *folder.parents][:3]:
        path.chmod(path.stat().st_mode | 0o711)  # munged's socket must be reachable
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o400)
    values = {"host": socket.gethostname(), "ports": (free_port(), free_port()), "user": getpass.getuser()}
    (folder / "slurm.conf").write_text(CONFIGURATION.format(folder=folder, cpus=os.cpu_count(), **values))
    munge = ["--force", "--foreground", f"--socket={folder}/munge.socket", f"--key-file={folder}/munge.key"]
    munge += [f"--{name}-file={folder}/munged.{name}" for name in ("pid", "log", "seed")]
    patch = pytest.MonkeyPatch()
    patch.setenv("SLURM_CONF", f"{folder}/slurm.conf")
    patch.setenv("PATH", SLURM_PATH)
    daemons = []
    with open(folder / "daemons.log", "w") as log:
        for command in (["munged", *munge], ["slurmctld", "-D"], ["slurmd", "-D", "-N", "node1"]):
            daemons.append(subprocess.Popen(command, stdout=log, stderr=log))
            time.sleep(0.5)
        for _ in range(60):
            nodes = subprocess.run(["sinfo", "--noheader", "--format=%t"], capture_output=True, text=True).stdout
            if nodes.strip() == "idle":
                break
            time.sleep(0.5)
        else:
            raise TimeoutError((folder / "daemons.log").read_text())
        yield
        subprocess.run(["scancel", f"--user={getpass.getuser()}"])
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(timeout=20)
    patch.undo()


def queue() -> list[str]:
    return subprocess.run(["squeue", "-h", "-r", "-o", "%i %t"], capture_output=True, text=True).stdout.splitlines()


@slurm_only
def test_slurm_runs_an_array_job_and_reports_what_failed(slurm, runner):
    flags = ["--engine", "slurm", "--timeout", 1, "--retries", 1, "--slurm-job-name", "test"]
    result = runner.run(*sweep("ok", "exit1", "hang", "flaky", seeds=1, flags=flags), check=False)
    assert result.returncode == 1
    assert "done: ok seed 1: return 51.0" in result.stdout and "done: flaky seed 1" in result.stdout
    assert "failed: exit1 seed 1: exit code 1" in result.stdout and "this environment cannot be made" in result.stdout
    assert "failed: hang seed 1: timed out after 1 s" in result.stdout
    assert {state["attempts"] for state in states(runner.folder).values() if state["status"] == "failed"} == {2}
    script = next(runner.folder.glob("runs/benchmark/slurm/test-*.sbatch")).read_text()
    assert "#SBATCH --array=0-3%2" in script and "gpus" not in script
    again = runner.run(*sweep("ok", "flaky", flags=["--engine", "slurm"]))
    assert "2 experiments finished earlier" in again.stdout


@slurm_only
def test_slurm_starts_nothing_more_after_a_flag_that_the_script_does_not_know(slurm, runner):
    wrong = f"python {STAND_IN} --wrong 1"
    flags = ["--engine", "slurm"]
    result = runner.run(*sweep("ok", command=wrong, seeds=12, workers=1, flags=flags), check=False)
    after = result.stdout.partition("the others are not started")[2]
    assert after and "correct --command" in after and "goes on" not in after
    for _ in range(600):  # Slurm has been told to cancel the job, and takes its time
        if not queue():
            break
        time.sleep(0.1)
    assert not queue()
    assert 1 <= sum(state["attempts"] for state in states(runner.folder).values()) < 6


@slurm_only
def test_slurm_jobs_go_on_without_the_benchmark_and_a_cancelled_one_resumes(slurm, runner):
    command = sweep(
        "ok", command=f"python {STAND_IN} --steps 40 --delay 0.1", seeds=2, flags=["--engine", "slurm", "--no-wait"]
    )
    submitted = runner.run(*command)
    assert "scancel" in submitted.stdout
    job = submitted.stdout.split("scancel ")[1].split()[0]
    for _ in range(200):
        if len([path for path in runner.folder.glob("runs/ok*/checkpoint.pt")]) == 2:
            break
        time.sleep(0.1)
    assert "2 experiments submitted earlier" in runner.run(*command).stdout  # and not again
    assert len(queue()) == 2
    subprocess.run(["scancel", f"{job}_0"], check=True)
    for _ in range(100):
        statuses = [state["status"] for state in states(runner.folder).values()]
        if "interrupted" in statuses and len(queue()) == 1:  # Slurm, too, knows that it has ended
            break
        time.sleep(0.1)
    following = runner.run(*command[:-1])
    assert "resumes from" in following.stdout and following.returncode == 0
    starts = Counter((line[1], line[2]) for line in history(runner.folder))
    assert starts[("1", "start")] == 2 and starts[("2", "start")] == 1 and not starts[("1", "overlap")]
    assert int(next(line[3] for line in reversed(history(runner.folder)) if line[2] == "start")) > 0
    assert starts[("1", "end")] == starts[("2", "end")] == 1


def test_a_slurm_template_is_checked_and_filled_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "sbatch").write_text('#!/bin/sh\ncp "$2" submitted\necho "7;cluster"\n')
    (programs / "squeue").write_text("#!/bin/sh\nexit 0\n")
    for program in programs.iterdir():
        program.chmod(0o755)
    arguments = ["--env-ids", "a", "--command", f"python {STAND_IN}", "--no-wait", "--slurm-template-path"]
    flags = ["--slurm-gpus-per-task", "2", "--slurm-total-cpus", "8", "--slurm-ntasks", "2", "--slurm-nodes", "1"]
    template = ROOT / "benchmark" / "cleanrl_1gpu.slurm_template"

    def submit(*more):
        monkeypatch.setattr(sys, "argv", ["benchmark", *arguments, *map(str, more)])
        with pytest.raises(SystemExit) as exit:
            benchmark.main()
        return exit.value.code

    monkeypatch.setenv("PATH", "/nowhere")
    assert "there is no sbatch here" in submit(template)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}:/usr/bin:/bin")
    assert "there is no file nowhere" in submit("nowhere")
    (tmp_path / "mine").write_text("#SBATCH --qos={{quality}}\n")
    assert "{{quality}} is not one of job_name, array" in submit("mine")
    assert submit(template, *flags) == 0
    lines = (tmp_path / "submitted").read_text().splitlines()
    for line in ("--array=0-2", "--ntasks=2", "--cpus-per-task=4", "--gpus-per-task=2", "--nodes=1"):
        assert f"#SBATCH {line}" in lines
    assert (next(tmp_path.glob("runs/benchmark/a__*__1__*")) / "job").read_text() == "7_0"
    (programs / "sbatch").write_text('#!/bin/sh\necho "no such partition" >&2\nexit 1\n')
    assert submit(template, "--restart") == "--engine slurm: sbatch: no such partition"


def test_ray_runs_retries_reports_and_stops(runner, monkeypatch):
    pytest.importorskip("ray", reason='no Ray here: pip install "cleanrl[ray]"')
    monkeypatch.setenv("WANDB_API_KEY", "not-to-be-written-down")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    slow = f"python {STAND_IN} --steps 30 --delay 0.1"
    engine = ["--engine", "ray", "--ray-num-cpus", 1]
    process = runner.start(*sweep("flaky", "exit1", "family", command=slow, workers=3, flags=[*engine, "--retries", 1]))
    wait_until(lambda: {"child", "end"} <= {line[2] for line in history(runner.folder)}, process)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stdout + stderr
    assert "failed: exit1 seed 1: exit code 1" in stdout and "Traceback" not in stderr
    found = {name.split("__")[0]: state for name, state in states(runner.folder).items()}
    assert {name: state["status"] for name, state in found.items()} == {
        "flaky": "done",
        "exit1": "failed",
        "family": "interrupted",
    }
    assert found["flaky"]["attempts"] == found["exit1"]["attempts"] == 2
    (child,) = [int(line[3]) for line in history(runner.folder) if line[2] == "child"]
    assert not is_running(child)
    (surroundings,) = runner.folder.glob("runs/flaky*/surroundings.json")
    assert json.loads(surroundings.read_text())["WANDB_API_KEY"] == "not-to-be-written-down"
    surroundings.unlink()
    assert not holds(runner.folder, b"not-to-be-written-down")


def holds(folder: Path, secret: bytes) -> list[Path]:
    """The files below a folder that contain a secret."""
    return [path for path in folder.rglob("*") if path.is_file() and secret in path.read_bytes()]


def test_an_engine_that_is_not_installed_names_its_extra(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for engine, module, extra in (("ray", "ray", "ray"), ("aws", "boto3", "cloud")):
        monkeypatch.setitem(sys.modules, module, None)  # importing it fails
        monkeypatch.setattr(
            sys, "argv", ["benchmark", "--env-ids", "a", "--command", f"python {STAND_IN}", "--engine", engine]
        )
        with pytest.raises(SystemExit, match=rf'--engine {engine}: pip install "cleanrl\[{extra}\]"'):
            benchmark.main()


@pytest.fixture
def aws(tmp_path, monkeypatch):
    """AWS Batch as moto imitates it, with a queue and a definition; a job's command really runs, in `container`."""
    pytest.importorskip("boto3")
    moto = pytest.importorskip("moto")
    import boto3
    from moto.batch_simple.models import BatchSimpleBackend

    from cleanrl_utils.engines.aws import AwsEngine

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.setattr(AwsEngine, "interval", 0.1)
    container = tmp_path / "container"
    container.mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    submitted = []

    def run_job(self, include_start_attempt, job):
        overrides = job.container_overrides
        submitted.append(overrides)
        command = [sys.executable if word == "python" else word for word in overrides["command"]]
        variables = {pair["name"]: pair["value"] for pair in overrides["environment"]}
        bare = {name: value for name, value in os.environ.items() if name not in variables}
        result = subprocess.run(command, cwd=container, env=bare | variables, capture_output=True, text=True)
        self.backend._jobs[job.job_id] = job
        job._start_attempt()
        job.log_stream_name = f"cleanrl/default/{job.job_id}"
        job._log_backend.ensure_log_group("/aws/batch/job")
        job._log_backend.create_log_stream("/aws/batch/job", job.log_stream_name)
        events = [{"timestamp": int(time.time() * 1000), "message": line} for line in result.stdout.splitlines()]
        job._log_backend.put_log_events("/aws/batch/job", job.log_stream_name, events)
        job._mark_stopped(success=result.returncode == 0)

    monkeypatch.setattr(BatchSimpleBackend, "_mark_job_as_finished", run_job)
    with moto.mock_aws(config={"batch": {"use_docker": False}}):
        iam, ec2, batch = boto3.client("iam"), boto3.client("ec2"), boto3.client("batch")
        role = iam.create_role(RoleName="batch", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
        subnet = ec2.describe_subnets()["Subnets"][0]["SubnetId"]
        group = ec2.describe_security_groups()["SecurityGroups"][0]["GroupId"]
        place = batch.create_compute_environment(
            computeEnvironmentName="cleanrl",
            type="MANAGED",
            state="ENABLED",
            computeResources={"type": "FARGATE", "maxvCpus": 4, "subnets": [subnet], "securityGroupIds": [group]},
            serviceRole=role,
        )["computeEnvironmentArn"]
        order = [{"order": 1, "computeEnvironment": place}]
        batch.create_job_queue(jobQueueName="cleanrl", state="ENABLED", priority=1, computeEnvironmentOrder=order)
        batch.register_job_definition(
            jobDefinitionName="cleanrl",
            type="container",
            containerProperties={"image": "cleanrl", "vcpus": 1, "memory": 4000, "command": ["true"]},
        )
        yield submitted, container


def run_on_aws(monkeypatch, capsys, *arguments):
    monkeypatch.setenv("WANDB_TAGS", "")  # the benchmark sets it: put back afterwards
    monkeypatch.setattr(sys, "argv", ["benchmark", "--engine", "aws", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit:
        benchmark.main()
    return exit.value.code, capsys.readouterr().out


def test_aws_batch_runs_a_job_for_each_experiment(aws, tmp_path, monkeypatch, capsys):
    submitted, container = aws
    monkeypatch.setenv("WANDB_API_KEY", "not-to-be-written-down")
    arguments = ["--env-ids", "ok", "exit1", "--command", f"python {STAND_IN}", "--num-seeds", 2, "--aws-vcpus", 2]
    code, said = run_on_aws(monkeypatch, capsys, *arguments, "--aws-memory", 8000, "--aws-gpus", 1)
    assert code == 1
    assert "done: ok seed 2: return 52.0" in said and "failed: exit1 seed 1" in said
    assert "this environment cannot be made" in said  # from CloudWatch
    needs = {need["type"]: need["value"] for need in submitted[0]["resourceRequirements"]}
    assert needs == {"VCPU": "2", "MEMORY": "8000", "GPU": "1"}
    assert {"name": "WANDB_API_KEY", "value": "not-to-be-written-down"} in submitted[0]["environment"]
    assert len(list(container.glob("runs/ok__stand_in__*"))) == 2
    for path in container.glob("runs/*/surroundings.json"):
        path.unlink()  # where the stand-in shows that it has got the key
    assert not holds(tmp_path, b"not-to-be-written-down")
    code, said = run_on_aws(monkeypatch, capsys, *arguments)
    assert "2 experiments finished earlier" in said
    assert sum(line[2] == "start" for line in history(container)) == 2


def test_aws_is_told_to_forget_the_jobs_that_wait_when_the_script_does_not_take_the_command(tmp_path, monkeypatch):
    from cleanrl_utils.engines.aws import AwsEngine

    monkeypatch.chdir(tmp_path)
    failed, waiting = (Experiment("python x.py --wrong", "ok", seed) for seed in (1, 2))
    write_state(failed, State("failed", exit_code=2))
    write_state(waiting, State("waiting"))
    engine, requests = object.__new__(AwsEngine), []
    engine.batch, engine.call = "batch", lambda *request, **details: requests.append((*request, details))
    engine.experiments, engine.living = [failed, waiting], {failed.name, waiting.name}
    engine.jobs = {failed.name: "job-1", waiting.name: "job-2"}
    engine.drop_waiting()
    assert requests == [("batch", "cancel_job", {"jobId": "job-2", "reason": "not started"})]
    assert engine.living == {failed.name} and engine.jobs == {failed.name: "job-1"} and engine.experiments == [failed]


def test_aws_learns_from_the_exit_code_that_the_script_does_not_take_the_command(aws, monkeypatch, capsys):
    code, said = run_on_aws(monkeypatch, capsys, "--env-ids", "ok", "--command", f"python {STAND_IN} --wrong 1")
    assert code == 1 and "unrecognized arguments: --wrong 1" in said
    spec = json.dumps({"command": f"{sys.executable} {STAND_IN} --wrong 1", "env_id": "ok", "seed": 9})
    done = subprocess.run([sys.executable, "-m", "cleanrl_utils.supervisor", spec], capture_output=True)
    assert done.returncode == 2


def test_aws_jobs_that_ended_while_nobody_looked_are_found_finished(aws, monkeypatch, capsys):
    _, container = aws
    arguments = ["--env-ids", "ok", "--command", f"python {STAND_IN}", "--num-seeds", 2]
    code, said = run_on_aws(monkeypatch, capsys, *arguments, "--no-wait")
    assert code == 0 and "terminate-job" in said
    code, said = run_on_aws(monkeypatch, capsys, *arguments)
    assert code == 0 and "2 experiments submitted earlier" in said and "51.5 ± 0.5" in said
    assert sum(line[2] == "start" for line in history(container)) == 2


def test_what_aws_refuses_is_told_in_one_line(aws, monkeypatch, capsys):
    arguments = ["--env-ids", "ok", "--command", f"python {STAND_IN}"]
    code, _ = run_on_aws(monkeypatch, capsys, *arguments, "--aws-job-queue", "nowhere")
    assert code.startswith("--engine aws: ") and "nowhere" in code and "\n" not in code
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    code, _ = run_on_aws(monkeypatch, capsys, *arguments)
    assert code == "--engine aws: You must specify a region."
