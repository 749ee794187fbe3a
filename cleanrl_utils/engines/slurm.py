"""The experiments as the tasks of an array job of Slurm. The nodes share this folder, as they usually do."""

import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from cleanrl_utils.engines import Engine, read_job, spec, supervisor, write_job
from cleanrl_utils.experiment import ROOT, Experiment, read_state
from cleanrl_utils.logs import tail

TEMPLATE = Path(__file__).parents[2] / "benchmark" / "cleanrl_1gpu.slurm_template"


def slurm(*command: str) -> str:
    """What a program of Slurm prints; its complaint ends the benchmark."""
    if not shutil.which(command[0]):
        sys.exit(f"--engine slurm: there is no {command[0]} here; run this where jobs are submitted")
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"--engine slurm: {command[0]}: {result.stderr.strip()}")
    return result.stdout


class SlurmEngine(Engine):
    detaches = True
    interval = 3.0
    patience = 35.0  # seconds until the last state of a task that was killed is sure to be visible over NFS

    def __init__(self, args: Any):
        super().__init__(args)
        self.jobs: dict[str, str] = {}  # the name of each experiment: job_task
        self.last_seen: dict[str, float] = {}
        self.next_listing = 0.0
        self.template = args.slurm_template_path or TEMPLATE
        if not self.template.exists():
            sys.exit(f"--slurm-template-path: there is no file {self.template}")

    def attach(self, experiments: list[Experiment]) -> set[str]:
        jobs = {x.name: job for x in experiments if (job := read_job(x))}
        queued = self.queue() if jobs else set()
        self.jobs = {name: job for name, job in jobs.items() if job in queued}
        self.experiments = [x for x in experiments if x.name in self.jobs]
        self.last_seen = dict.fromkeys(self.jobs.values(), time.monotonic())
        return set(self.jobs)

    @classmethod
    def preview(cls, args: Any, experiments: list[Experiment]) -> str:
        """The batch script, and what its tasks run."""
        commands = super().preview(args, experiments).splitlines()
        tasks = [f"# task {number}: {command}" for number, command in enumerate(commands)]
        return cls(args).fill_in(experiments, "TIME") + "\n".join(tasks)

    def submit(self, experiments: list[Experiment]) -> None:
        text = self.fill_in(experiments, str(time.time_ns()))
        script = Path(f"{self.base}.sbatch")
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(text)
        Path(f"{self.base}.jsonl").write_text("".join(spec(experiment) + "\n" for experiment in experiments))
        job = slurm("sbatch", "--parsable", str(script)).strip().split(";")[0]
        self.experiments += experiments
        for task, experiment in enumerate(experiments):
            self.jobs[experiment.name] = f"{job}_{task}"
            write_job(experiment, f"{job}_{task}")
        self.last_seen = dict.fromkeys(self.jobs.values(), time.monotonic())

    def fill_in(self, experiments: list[Experiment], moment: str) -> str:
        """The template with its blanks filled in. The names of all files of the job begin with `base`."""
        args = self.args
        job_name = args.slurm_job_name or experiments[0].name.split("__")[1]
        self.base = ROOT.absolute() / "slurm" / f"{job_name}-{moment}"
        gpus, throttle = args.slurm_gpus_per_task, f"%{args.workers}" if args.workers else ""
        blanks = {
            "job_name": job_name,
            "array": f"0-{len(experiments) - 1}{throttle}",
            "output": f"{self.base}-%a.out",
            "ntasks": args.slurm_ntasks,
            "cpus_per_task": max(1, args.slurm_total_cpus // args.slurm_ntasks),
            "cpus_per_gpu": max(1, args.slurm_total_cpus // max(1, gpus * args.slurm_ntasks)),
            "gpus_per_task": gpus,
            "gpus": f"#SBATCH --gpus-per-task={gpus}" if gpus else "",
            "nodes": f"#SBATCH --nodes={args.slurm_nodes}" if args.slurm_nodes else "",
            "command": f'{shlex.join(supervisor(f"{self.base}.jsonl"))} "$SLURM_ARRAY_TASK_ID"',
        }
        text = self.template.read_text()
        if unknown := set(re.findall(r"{{(\w+)}}", text)) - blanks.keys():
            sys.exit(f"{self.template}: {{{{{unknown.pop()}}}}} is not one of {', '.join(blanks)}")
        return re.sub(r"{{(\w+)}}", lambda blank: str(blanks[blank[1]]), text)

    def queue(self) -> set[str]:
        """The tasks of ours that Slurm still knows, as job_task."""
        return set(slurm("squeue", "--me", "--array", "--noheader", "--format=%i").split())

    def alive(self) -> set[str]:
        now = time.monotonic()
        if now >= self.next_listing:
            try:
                self.last_seen |= dict.fromkeys(self.queue(), now)
            except SystemExit as error:  # a busy controller is no reason to give up
                self.last_seen = dict.fromkeys(self.last_seen, now)
                print(error, file=sys.stderr)
            self.next_listing, self.listed_at = now + self.interval, now
        return {x.name for x in self.experiments if self.is_alive(x)}

    def is_alive(self, experiment: Experiment) -> bool:
        final = read_state(experiment).status in ("done", "failed", "interrupted")
        return self.last_seen[self.jobs[experiment.name]] >= self.listed_at - (0 if final else self.patience)

    def drop_waiting(self) -> None:
        slurm("scancel", "--state=PENDING", *{job.split("_")[0] for job in self.jobs.values()})
        for experiment in self.experiments:
            if read_state(experiment).status == "waiting":
                self.last_seen[self.jobs[experiment.name]] = -float("inf")

    def reason(self, name: str) -> str:
        task = self.jobs[name].split("_")[1]
        words = tail(Path(f"{self.base}-{task}.out"), 3).replace("\n", " / ") if hasattr(self, "base") else ""
        return f"job {self.jobs[name]} of Slurm ended without a result: {words or 'see sacct'}"

    def farewell(self) -> str:
        jobs = " ".join(sorted({job.split("_")[0] for job in self.jobs.values()}))
        return f"the jobs go on; the same command follows them, and this ends them: scancel {jobs}"
