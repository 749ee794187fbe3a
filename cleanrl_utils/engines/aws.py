"""The experiments as jobs of AWS Batch, in the container that `Dockerfile` builds; `cloud/` makes queue and definition.

Region and credentials come from the environment, as boto3 finds them.
"""

import json
import sys
import time
from typing import Any

from cleanrl_utils.engines import Engine, handed_on, read_job, spec, supervisor, write_job
from cleanrl_utils.experiment import Experiment, State, forget, read_state, write_state
from cleanrl_utils.supervisor import TOLD

STATUSES = {"RUNNING": "running", "SUCCEEDED": "done", "FAILED": "failed"}  # all others wait
LOG_GROUP = "/aws/batch/job"
LOG_LINES = 200


def request(args: Any, experiment: Experiment, variables: dict[str, str]) -> dict:
    """What AWS Batch is asked to run."""
    needs = {"VCPU": args.aws_vcpus, "MEMORY": args.aws_memory, "GPU": args.aws_gpus}
    return {
        "jobName": experiment.name.replace(".", "_")[:128],
        "jobQueue": args.aws_job_queue,
        "jobDefinition": args.aws_job_definition,
        "containerOverrides": {
            "command": supervisor(spec(experiment), "--echo", python="python"),
            "environment": [{"name": name, "value": value} for name, value in variables.items()],
            "resourceRequirements": [{"type": kind, "value": str(n)} for kind, n in needs.items() if n],
        },
        # The container retries what fails in it; Batch what was lost with its machine, as on spot instances
        "retryStrategy": {
            "attempts": 5,
            "evaluateOnExit": [
                {"onStatusReason": "Host EC2*", "action": "RETRY"},
                {"onReason": "*", "action": "EXIT"},
            ],
        },
    }


class AwsEngine(Engine):
    detaches = True
    interval = 10.0

    @classmethod
    def preview(cls, args: Any, experiments: list[Experiment]) -> str:
        """The jobs as JSON, without the keys that they are given."""
        hidden = dict.fromkeys(handed_on(), "***")
        return json.dumps([request(args, experiment, hidden) for experiment in experiments], indent=2)

    def __init__(self, args: Any):
        super().__init__(args)
        try:
            import boto3
            from botocore.exceptions import BotoCoreError, ClientError
        except ImportError:
            sys.exit('--engine aws: pip install "cleanrl[cloud]"')
        self.errors = (BotoCoreError, ClientError)
        self.jobs: dict[str, str] = {}  # the name of each experiment: the job's id
        self.experiments: list[Experiment] = []
        self.living: set[str] = set()
        self.next_look, self.submitted = 0.0, time.monotonic()
        try:
            self.batch, self.logs = boto3.client("batch"), boto3.client("logs")
        except self.errors as error:  # no region
            sys.exit(f"--engine aws: {error}")

    def call(self, client: Any, name: str, **request: Any) -> dict:
        """A request to AWS; its refusal ends the benchmark in one line."""
        try:
            return getattr(client, name)(**request)
        except self.errors as error:
            sys.exit(f"--engine aws: {error}")

    def attach(self, experiments: list[Experiment]) -> set[str]:
        """What an earlier benchmark submitted: waiting, running, or finished while nobody looked."""
        self.jobs = {x.name: job for x in experiments if (job := read_job(x)) and read_state(x).status != "failed"}
        found = self.describe()
        self.jobs = {
            name: job for name, job in self.jobs.items() if found.get(job, {}).get("status", "FAILED") != "FAILED"
        }
        self.experiments = [x for x in experiments if x.name in self.jobs]
        return set(self.jobs)

    def submit(self, experiments: list[Experiment]) -> None:
        for experiment in experiments:
            job = self.call(self.batch, "submit_job", **request(self.args, experiment, handed_on()))["jobId"]
            self.jobs[experiment.name] = job
            write_job(experiment, job)
        self.experiments += experiments

    def describe(self) -> dict[str, dict]:
        """The jobs by their ids, asked a hundred at a time as AWS wants it; those of last week are gone."""
        ids = list(self.jobs.values())
        parts = [self.call(self.batch, "describe_jobs", jobs=ids[i : i + 100])["jobs"] for i in range(0, len(ids), 100)]
        return {job["jobId"]: job for part in parts for job in part}

    def alive(self) -> set[str]:
        if time.monotonic() >= self.next_look:
            self.next_look = time.monotonic() + self.interval
            unknown = {"status": "FAILED" if time.monotonic() > self.submitted + 300 else "SUBMITTED"}
            try:
                found = self.describe()
            except SystemExit as error:  # the jobs go on without us, and the network may come back
                print(error, file=sys.stderr)
                return self.living
            for experiment in self.experiments:
                self.update(experiment, found.get(self.jobs[experiment.name], unknown))
        return self.living

    def update(self, experiment: Experiment, job: dict) -> None:
        """Write the experiment's state from what AWS tells of its job, and its log from CloudWatch."""
        state = read_state(experiment)
        if state.status in ("done", "failed") and experiment.name not in self.living:
            return
        state.status = STATUSES.get(job["status"], "waiting")
        container = job.get("container", {})
        if state.status != "waiting":
            self.fetch_log(experiment, state, container.get("logStreamName"))
            state.started = job.get("startedAt", 0) / 1000 or None
            state.attempts = max(1, len(job.get("attempts", ())))
        if state.status in ("done", "failed"):
            state.seconds = (job.get("stoppedAt", 0) - job.get("startedAt", 0)) / 1000
        if state.status == "failed":
            state.exit_code = container.get("exitCode")
            state.reason = container.get("reason") or job.get("statusReason") or "AWS Batch no longer knows the job"
        if job["status"] in ("SUCCEEDED", "FAILED"):
            self.living.discard(experiment.name)
        else:
            self.living.add(experiment.name)
        write_state(experiment, state)

    def fetch_log(self, experiment: Experiment, state: State, stream: str | None) -> None:
        """The last lines of a container's output; without them the benchmark goes on."""
        if not stream:
            return
        try:
            events = self.logs.get_log_events(
                logGroupName=LOG_GROUP, logStreamName=stream, limit=LOG_LINES, startFromHead=False
            )["events"]
        except self.errors:  # not there yet, or not allowed
            return
        text = "".join(event["message"].rstrip("\n") + "\n" for event in events)
        experiment.log.write_text(text)
        told = [line.removeprefix(TOLD) for line in text.splitlines() if line.startswith(TOLD)]
        if told:
            state.update(json.loads(told[-1]))

    def drop_waiting(self) -> None:
        waiting = [x for x in self.experiments if read_state(x).status == "waiting"]
        for experiment in waiting:
            self.call(self.batch, "cancel_job", jobId=self.jobs.pop(experiment.name), reason="not started")
            self.experiments.remove(experiment)
            self.living.discard(experiment.name)
            forget(experiment)

    def farewell(self) -> str:
        return (
            "the jobs go on; the same command follows them, and this ends one: "
            f"aws batch terminate-job --reason stopped --job-id {next(iter(self.jobs.values()), 'ID')}"
        )
