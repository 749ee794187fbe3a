"""Tune the hyper-parameters of an algorithm file with Optuna.

Usage:
    from cleanrl_utils.tuner import Tuner

    tuner = Tuner(
        script="cleanrl/ppo.py",
        metric="charts/episodic_return",
        target_scores={"CartPole-v1": [0, 500], "Acrobot-v1": [-500, 0]},
        params_fn=lambda trial: {"learning-rate": trial.suggest_float("learning-rate", 3e-4, 3e-3, log=True)},
    )
    tuner.tune(num_trials=10, num_seeds=3, workers=2)

A trial is one set of parameters, trained on every environment with every seed, each training in its own process. While
they train, their TensorBoard curves are read and a hopeless trial is pruned. The study lives in a database: running the
same program again continues it, running it twice at a time shares it. See docs/get-started/tuner.md.
"""

import ctypes
import difflib
import hashlib
import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tqdm import tqdm

from cleanrl_utils.experiment import tail

if TYPE_CHECKING:
    import optuna

TENTHS = 10  # points of a training at which the pruner is asked
POLL = 0.3  # seconds between two looks at the running processes
HEARTBEAT = 15  # seconds between two signs of life of a trial in the database
OUTCOMES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}
AGGREGATIONS = {"average": np.mean, "median": np.median, "max": np.max, "min": np.min}
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent() -> None:
    """Called in a new process: Linux kills it when the tuner is gone, even if that was killed itself."""
    if LIBC:
        LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


@dataclass
class Experiment:
    """One training of a trial, in a process of its own."""

    env_id: str
    seed: int
    command: list[str]
    run_pattern: str
    """of the run's folder"""
    log: Path
    curve: list[float | None] = field(default_factory=list)
    """the mean of the metric's last values at each tenth of the training; None before the first value"""
    process: subprocess.Popen | None = None
    events: EventAccumulator | None = None
    total_timesteps: int = 0

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def unread(self) -> bool:
        """Started, and there is more to read; the last tenth is read after its end."""
        return self.process is not None and len(self.curve) < TENTHS

    def start(self, threads: int) -> None:
        """Run the script; a session of its own lets `stop` reach whatever it starts itself."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        environment = {"OMP_NUM_THREADS": str(threads), **os.environ, "PYTHONUNBUFFERED": "1"}
        with open(self.log, "wb") as log:
            settings = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "start_new_session": True}
            self.process = subprocess.Popen(self.command, env=environment, preexec_fn=die_with_parent, **settings)

    def stop(self) -> None:
        if self.process:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.process.wait()

    def read(self, metric: str, window: int) -> bool:
        """Extend the curve by what has been logged since the last look; returns whether that was the last."""
        finished = not self.running  # before reading: what is read then is all there is
        if self.events is None:
            run_dirs = sorted(Path("runs").glob(self.run_pattern), key=lambda path: path.stat().st_mtime)
            if not run_dirs:
                return finished
            try:
                args = json.loads((run_dirs[-1] / "args.json").read_text())
                self.total_timesteps = args.get("offline_steps", 0) + args["total_timesteps"]
            except (OSError, ValueError, KeyError):
                if not finished:  # not written yet; a script that never writes it is read at its end
                    return False
            self.events = EventAccumulator(str(run_dirs[-1]), size_guidance={"scalars": 0})
        self.events.Reload()
        if metric not in self.events.Tags()["scalars"]:
            return finished
        logged = self.events.Scalars(metric)
        total = self.total_timesteps or logged[-1].step
        while len(self.curve) < TENTHS:
            step = np.inf if len(self.curve) == TENTHS - 1 else total * (len(self.curve) + 1) / TENTHS
            if logged[-1].step < step and not finished:
                break
            last = [x.value for x in logged if x.step <= step][-window:]
            self.curve.append(float(np.mean(last)) if last else None)
        return finished


@dataclass
class Attempt:
    """A trial of this process: its experiments, seed by seed, and how many of its scores Optuna has been told."""

    trial: "optuna.Trial"
    experiments: list[Experiment]
    reported: int = 0
    wandb_run: Any = None

    def waiting(self, ahead: bool) -> list[Experiment]:
        """Experiments to start: those of the first unfinished seed, or of any seed."""
        unfinished = [x for x in self.experiments if len(x.curve) < TENTHS]
        return [x for x in unfinished if x.process is None and (ahead or x.seed == unfinished[0].seed)]

    def stop(self) -> None:
        for experiment in self.experiments:
            experiment.stop()
        if self.wandb_run:
            self.wandb_run.finish()


def requeue(study: "optuna.Study", trial: "optuna.trial.FrozenTrial") -> None:
    """Put an interrupted trial back: the next free worker continues it, without what it had finished."""
    import optuna

    study.add_trial(
        optuna.create_trial(
            state=optuna.trial.TrialState.WAITING,
            params=trial.params,
            distributions=trial.distributions,
            user_attrs=trial.user_attrs | {"continues": trial.number},
        )
    )


class Tuner:
    """Searches the parameters with which a script scores best over several environments and seeds."""

    def __init__(
        self,
        script: str,
        metric: str,
        target_scores: dict[str, Sequence[float] | None],
        params_fn: Callable[["optuna.Trial"], dict[str, Any]],
        direction: Literal["maximize", "minimize"] = "maximize",
        aggregation_type: Literal["average", "median", "max", "min"] = "average",
        metric_last_n_average_window: int = 50,
        sampler: "optuna.samplers.BaseSampler | None" = None,
        pruner: "optuna.pruners.BasePruner | None" = None,
        storage: "str | optuna.storages.BaseStorage" = "sqlite:///cleanrl_hpopt.db",
        study_name: str = "",
        wandb_kwargs: dict[str, Any] | None = None,
        workers: int = 1,
    ) -> None:
        """Describe a study.

        Args:
            script: the algorithm file
            metric: the TensorBoard scalar to optimize
            target_scores: for each environment the values of the metric that count as 0 and as 1; None leaves it as
                it is, which makes sense for a single environment only
            params_fn: from a trial to the script's parameters, suggested or fixed, named like its flags
            direction: whether the metric should be large or small
            aggregation_type: how the scores of the environments become one score; over the seeds it is averaged
            metric_last_n_average_window: how many of the last values of the metric are averaged
            sampler: an Optuna sampler; by default Optuna's
            pruner: an Optuna pruner; by default Optuna's. It is asked ten times during each seed
            storage: the URL of a database, or an Optuna storage
            study_name: by default derived from the arguments above, so that the same program continues its study
            wandb_kwargs: what to give to `wandb.init`: every trial becomes a run on Weights & Biases
            workers: how many trainings run at once
        """
        if not Path(script).is_file():
            raise ValueError(f"script: there is no file {script}")
        if not target_scores:
            raise ValueError("target_scores: name at least one environment")
        if len(target_scores) > 1 and None in target_scores.values():
            raise ValueError("target_scores: several environments need two scores each, else theirs do not compare")
        for env_id, scores in target_scores.items():
            if scores is not None and (len(scores) != 2 or scores[0] == scores[1]):
                raise ValueError(f"target_scores: {env_id} needs two different scores, not {scores}")
        if aggregation_type not in AGGREGATIONS:
            raise ValueError(f"aggregation_type: one of {', '.join(AGGREGATIONS)}, not {aggregation_type}")
        if direction not in ("maximize", "minimize"):
            raise ValueError(f"direction: maximize or minimize, not {direction}")
        if metric_last_n_average_window < 1 or workers < 1:
            raise ValueError("metric_last_n_average_window and workers: at least 1")
        self.script, self.metric, self.window = script, metric, metric_last_n_average_window
        self.target_scores, self.params_fn = target_scores, params_fn
        self.direction, self.aggregation_type = direction, aggregation_type
        self.sampler, self.pruner, self.storage, self.study_name = sampler, pruner, storage, study_name
        self.wandb_kwargs, self.workers = wandb_kwargs or {}, workers

    # What reaches the script

    def read_flags(self) -> dict[str, str]:
        """The flags that the script knows, from its --help, by their names with dashes."""
        environment = os.environ | {"COLUMNS": "200"}
        command = [sys.executable, self.script, "--help"]
        shown = subprocess.run(command, capture_output=True, text=True, env=environment)
        if shown.returncode:
            sys.exit(f"{self.script} --help fails: {(shown.stderr.strip() or 'without a word').splitlines()[-1]}")
        return {flag.replace("_", "-"): flag for flag in re.findall(r"(?<![\w-])--([a-zA-Z][\w-]*)", shown.stdout)}

    def to_flags(self, params: dict[str, Any]) -> list[str]:
        """Parameters as the script's flags; exits where it does not know one."""
        flags = []
        for key, value in params.items():
            name = key.lstrip("-").replace("_", "-")
            if name not in self.known:
                close = difflib.get_close_matches(name, self.known, 1)
                sys.exit(f"{self.script} has no --{name}" + (f"; did you mean --{close[0]}?" if close else ""))
            flag = f"--{self.known[name]}"
            if isinstance(value, bool | np.bool_) and f"no-{name}" in self.known:
                flags.append(flag if value else f"--{self.known[f'no-{name}']}")
            elif isinstance(value, list | tuple):
                flags += [flag, *map(str, value)]
            else:
                flags.append(f"{flag}={value}")
        return flags

    def make_attempt(self, trial: "optuna.Trial", num_seeds: int) -> Attempt:
        """A trial's experiments; what an interrupted predecessor had finished counts as done."""
        params = self.params_fn(trial)
        flags = self.to_flags(params)
        trial.set_user_attr("flags", shlex.join(flags))
        study = re.sub(r"[^\w.-]", "_", self.study_name)  # part of file names
        exp_name = f"{study}_trial{trial.number}"
        experiments = []
        # a checkpoint with its replay buffer is large, and trials are not resumed from one; a later flag wins
        first = ["--checkpoint-frequency=0"] if "checkpoint-frequency" in self.known else []
        for seed, env_id in itertools.product(range(1, num_seeds + 1), self.target_scores):
            folder = env_id.replace("/", "_")
            own = [f"--exp-name={exp_name}", f"--env-id={env_id}", f"--seed={seed}"]
            command = [sys.executable, self.script, *first, *flags, *own]
            log = Path("runs", "tuner", study, f"trial{trial.number}_{folder}_seed{seed}.log")
            curve = trial.user_attrs.get(f"{env_id} seed {seed}", [])
            experiments.append(Experiment(env_id, seed, command, f"{folder}__{exp_name}__{seed}__*", log, curve))
        attempt = Attempt(trial, experiments)
        if self.wandb_kwargs:
            import wandb

            names = {"name": f"{self.study_name}_{trial.number}", "group": self.study_name}
            attempt.wandb_run = wandb.init(**names | self.wandb_kwargs, config=params, reinit="create_new")
        return attempt

    # Scores

    def normalize(self, env_id: str, value: float) -> float:
        if self.target_scores[env_id] is None:
            return value
        low, high = self.target_scores[env_id]
        return (value - low) / (high - low)

    def score(self, experiments: list[Experiment], seed: int, tenth: int) -> float | None:
        """The score with `seed` at a tenth of its training and earlier seeds at their end; None where one has none.

        It depends on the curves only, not on when they were trained: trials compare, however their processes shared the
        machine.
        """
        by_seed: dict[int, list[float]] = {}
        for x in experiments[: seed * len(self.target_scores)]:
            value = x.curve[tenth if x.seed == seed else -1]
            if value is None:
                return None
            by_seed.setdefault(x.seed, []).append(self.normalize(x.env_id, value))
        return float(np.mean([AGGREGATIONS[self.aggregation_type](scores) for scores in by_seed.values()]))

    # The study

    def open_storage(self, url: str, tries: int = 10) -> "optuna.storages.RDBStorage":
        """The database at a URL. The first process to come makes its tables."""
        import optuna
        import sqlalchemy

        waits = {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {"pool_pre_ping": True}
        try:
            return optuna.storages.RDBStorage(
                url,
                engine_kwargs=waits,
                heartbeat_interval=HEARTBEAT,
                grace_period=4 * HEARTBEAT,
                heartbeat_stale_trial_callback=requeue,
            )
        except (sqlalchemy.exc.SQLAlchemyError, ImportError, optuna.exceptions.StorageInternalError) as error:
            cause = error.__cause__ or error
            # Another process made a table between our look and our attempt to make it as well: look again.
            overtaken = isinstance(error, sqlalchemy.exc.IntegrityError) or "already exists" in str(cause)
            if overtaken and tries > 1:
                time.sleep(0.1)
                return self.open_storage(url, tries - 1)
            sys.exit(f"cannot open the storage {self.shown_storage}: {str(cause).strip().splitlines()[0]}")

    def open_study(self, sample: dict[str, Any], num_seeds: int) -> "optuna.Study":
        """The study of this program, new or continued."""
        import optuna

        measure = {"script": Path(self.script).name, "metric": self.metric, "num_seeds": num_seeds}
        measure |= {"metric_last_n_average_window": self.window, "aggregation_type": self.aggregation_type}
        measure |= {"target_scores": {env_id: x and list(x) for env_id, x in self.target_scores.items()}}
        measure |= {"direction": self.direction}
        if not self.study_name:
            definition = json.dumps([measure, sample], default=str, sort_keys=True)
            digest = hashlib.sha256(definition.encode()).hexdigest()[:8]
            self.study_name = f"tuner_{Path(self.script).stem}_{digest}"
        storage = self.open_storage(self.storage) if isinstance(self.storage, str) else self.storage
        study = optuna.create_study(
            study_name=self.study_name,
            direction=self.direction,
            storage=storage,
            pruner=self.pruner,
            sampler=self.sampler,
            load_if_exists=True,
        )
        before = study.user_attrs.get("measure", measure)
        changed = [name for name in measure if measure[name] != before.get(name)]
        if changed:
            sys.exit(
                f"the study {self.study_name} was scored with another {', '.join(changed)}: choose another study_name"
            )
        study.set_user_attr("measure", measure)
        return study

    @property
    def shown_storage(self) -> str:
        """The storage without its password."""
        return re.sub(r"(://[^:@/]*):[^@/]*@", r"\1:***@", self.storage if isinstance(self.storage, str) else "storage")

    def tune(self, num_trials: int, num_seeds: int, workers: int | None = None) -> "optuna.trial.FrozenTrial":
        """Run trials until the study has `num_trials`, those of earlier and of parallel calls included.

        Returns the best trial. Ctrl+C stops all processes; the trials they belong to are continued next time.
        """
        try:
            import optuna
            import sqlalchemy
        except ImportError:
            sys.exit('the tuner needs Optuna: pip install "cleanrl[optuna]"')
        if min(num_trials, num_seeds, workers or self.workers) < 1:
            raise ValueError("num_trials, num_seeds and workers: at least 1")
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        warnings.filterwarnings("ignore", message="Heartbeat of storage is supposed")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.known = self.read_flags()
        sample = self.params_fn(optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0)).ask())
        own = {"exp-name", "env-id", "seed"}
        if own & {key.replace("_", "-") for key in sample}:
            sys.exit("params_fn: exp-name, env-id and seed are the tuner's own")
        self.to_flags(sample | dict.fromkeys(own))  # before the first trial: does the script know them all?

        study = self.open_study(sample, num_seeds)
        session = Session(self, study, num_trials, num_seeds, workers or self.workers)
        main_thread = threading.current_thread() is threading.main_thread()
        if main_thread:
            before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            session.run()
        except KeyboardInterrupt:
            sys.exit(f"\nstopped; run the same program again to continue the study {self.study_name}")
        except (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
            reason = str(error.__cause__ or error).strip().splitlines()[0]
            sys.exit(f"lost the storage {self.shown_storage}: {reason}; run the same program again to continue")
        finally:
            session.stop()
            if main_thread:
                signal.signal(signal.SIGTERM, before)
        return session.finish()


class Session:
    """The work of one process on a study: starts experiments, watches them, and tells Optuna."""

    def __init__(self, tuner: Tuner, study: "optuna.Study", num_trials: int, num_seeds: int, workers: int) -> None:
        self.tuner, self.study = tuner, study
        self.num_trials, self.num_seeds, self.workers = num_trials, num_seeds, workers
        self.threads = max(1, (os.cpu_count() or 1) // workers)
        self.attempts: list[Attempt] = []
        self.failures = 0
        self.last_beat, self.waiting = -np.inf, False
        self.heartbeats = isinstance(tuner.storage, str)
        self.progress = tqdm(total=num_trials, unit="trial", disable=None, dynamic_ncols=True)

    def counts(self) -> tuple[int, int]:
        """How many trials the study has behind it, and how many it has running, in all processes."""
        trials = self.study.get_trials(deepcopy=False)
        continued = {trial.user_attrs.get("continues") for trial in trials}
        done = sum(trial.state.is_finished() and trial.number not in continued for trial in trials)
        if not self.heartbeats:  # nobody knows whether the others' trials are alive
            return done, len(self.attempts)
        return done, sum(trial.state.name == "RUNNING" for trial in trials)

    def run(self) -> None:
        """Work until the study has all its trials."""
        import optuna

        tuner, (done, _) = self.tuner, self.counts()
        size = f"{len(tuner.target_scores) * self.num_seeds} trainings each, {self.workers} at once"
        self.progress.write(f"study {tuner.study_name}: {done} of {self.num_trials} trials done, {size}")
        if isinstance(tuner.storage, str) and tuner.storage.startswith("sqlite"):
            self.progress.write(f"watch:    optuna-dashboard {tuner.storage}")
        self.progress.update(done)
        while True:
            self.beat()
            # a process occupies its worker until its end has been looked at: a failure is known before the next start
            free = self.workers - sum(x.unread for attempt in self.attempts for x in attempt.experiments)
            while free > 0 and self.start_one():
                free -= 1
            if not self.attempts and self.wait_for_others():
                break
            for attempt in list(self.attempts):
                try:
                    self.advance(attempt)
                except optuna.exceptions.UpdateFinishedTrialError:  # this process was silent for too long
                    attempt.stop()
                    self.attempts.remove(attempt)
                    self.progress.write(f"trial {attempt.trial.number}  was taken over by another process")
            shares = {x.trial.number: x.reported / (TENTHS * self.num_seeds) for x in self.attempts}
            self.progress.set_postfix_str(", ".join(f"trial {number}: {share:.0%}" for number, share in shares.items()))
            time.sleep(POLL)

    def beat(self) -> None:
        """Show that our trials are alive, and requeue those of processes that are not."""
        import optuna

        if self.heartbeats and time.monotonic() - self.last_beat > HEARTBEAT:
            self.last_beat = time.monotonic()
            for attempt in self.attempts:
                self.study._storage.record_heartbeat(attempt.trial._trial_id)
            optuna.storages.fail_stale_trials(self.study)

    def start_one(self) -> bool:
        """Start an experiment: of the seeds at hand, else of a new trial, else of later seeds."""
        if self.start_waiting(ahead=False):
            return True
        if sum(self.counts()) < self.num_trials:
            self.ask()
            return self.start_waiting(ahead=False)
        return self.start_waiting(ahead=True)

    def start_waiting(self, ahead: bool) -> bool:
        for attempt in self.attempts:
            for experiment in attempt.waiting(ahead):
                experiment.start(self.threads)
                return True
        return False

    def ask(self) -> None:
        trial = self.study.ask()
        if self.heartbeats:
            self.study._storage.record_heartbeat(trial._trial_id)
        try:
            self.attempts.append(self.tuner.make_attempt(trial, self.num_seeds))
        except BaseException:
            self.study.tell(trial, state=self.state("FAIL"))
            raise

    def wait_for_others(self) -> bool:
        """Whether there is nothing left to do: all trials are there, and no other process is still at one."""
        done, running = self.counts()
        if done + running < self.num_trials:
            return False
        if running and not self.waiting:
            self.progress.write(f"waiting for {running} trials of other processes")
        self.waiting = True
        return not running

    @staticmethod
    def state(name: str) -> "optuna.trial.TrialState":
        import optuna

        return optuna.trial.TrialState[name]

    def advance(self, attempt: Attempt) -> None:
        """Read the curves, tell Optuna what is new, and end the trial if it is over."""
        for x in attempt.experiments:
            if not x.unread or not x.read(self.tuner.metric, self.tuner.window):
                continue
            if x.process.returncode:
                return self.fail(attempt, x, f"exited with code {x.process.returncode}")
            if not x.curve:
                return self.fail(attempt, x, f"logged no {self.tuner.metric}")
            if not np.isfinite(x.curve[-1]):
                return self.fail(attempt, x, f"ended with {self.tuner.metric} {x.curve[-1]}")
            attempt.trial.set_user_attr(f"{x.env_id} seed {x.seed}", x.curve)
            if attempt.wandb_run:
                attempt.wandb_run.log({f"{x.env_id}_return": x.curve[-1]})
        while attempt.reported < TENTHS * self.num_seeds:
            seed, tenth = attempt.reported // TENTHS + 1, attempt.reported % TENTHS
            of_seed = [x for x in attempt.experiments if x.seed <= seed]
            if any(len(x.curve) <= (tenth if x.seed == seed else TENTHS - 1) for x in of_seed):
                return None
            score = self.tuner.score(attempt.experiments, seed, tenth)
            attempt.reported += 1
            if score is None:  # no episode has ended yet
                continue
            attempt.trial.report(score, attempt.reported)
            if attempt.wandb_run:
                attempt.wandb_run.log({"aggregated_normalized_score": score})
            last = attempt.reported == TENTHS * self.num_seeds
            if not last and attempt.trial.should_prune():
                share = attempt.reported / (TENTHS * self.num_seeds)
                return self.end(attempt, "PRUNED", None, f"pruned at {score:.4g}, after {share:.0%}")
        return self.end(attempt, "COMPLETE", score, f"score {score:.4g}")

    def fail(self, attempt: Attempt, experiment: Experiment, reason: str) -> None:
        reason = f"{experiment.env_id} seed {experiment.seed} {reason}"
        log = textwrap.indent(tail(experiment.log, 8), "    | ")
        attempt.trial.set_user_attr("error", f"{reason}\n{log}")
        self.end(attempt, "FAIL", None, f"failed: {reason}; {experiment.log} ends with\n{log}")
        self.failures += 1
        if self.failures == max(3, self.workers) and not self.scored():
            sys.exit(f"the first {self.failures} trials have failed: see above")

    def end(self, attempt: Attempt, state: str, score: float | None, words: str) -> None:
        """Tell Optuna and the user how a trial went."""
        attempt.stop()
        self.study.tell(attempt.trial, score, state=self.state(state), skip_if_finished=True)
        self.attempts.remove(attempt)
        values = [f"{x:.4g}" if isinstance(x, float) else str(x) for x in attempt.trial.params.values()]
        params = " ".join(map("=".join, zip(attempt.trial.params, values)))
        done = self.counts()[0]
        self.progress.write(f"trial {attempt.trial.number}  [{done}/{self.num_trials}]  {params}  {words}")
        self.progress.update(done - self.progress.n)

    def scored(self) -> bool:
        return any(trial.state.name in ("COMPLETE", "PRUNED") for trial in self.study.get_trials(deepcopy=False))

    def stop(self) -> None:
        """Stop all processes; their trials go back into the queue."""
        attempts, self.attempts = self.attempts, []
        for attempt in attempts:
            attempt.stop()
        for attempt in attempts:
            try:
                requeue(self.study, self.study.tell(attempt.trial, state=self.state("FAIL")))
            except Exception as error:  # the storage is gone, or another process has taken the trial over
                print(f"trial {attempt.trial.number} stays as it was: {type(error).__name__}", file=sys.stderr)
        self.progress.close()

    def finish(self) -> "optuna.trial.FrozenTrial":
        """Say what is best, as commands to paste."""
        tuner = self.tuner
        trials = self.study.get_trials(deepcopy=False)
        if not any(trial.state.name == "COMPLETE" for trial in trials):
            sys.exit(f"no trial of the study {tuner.study_name} was trained to its end")
        best = self.study.best_trial
        continued = {trial.user_attrs.get("continues") for trial in trials}
        states = [trial.state.name for trial in trials if trial.number not in continued]
        counts = [f"{states.count(state)} {word}" for state, word in OUTCOMES.items() if state in states]
        print(f"\ntrials: {', '.join(counts)}; best: trial {best.number}, score {best.value:.4g}")
        command = f"python {tuner.script} {best.user_attrs['flags']}"
        print(f"train:    {command} --env-id {shlex.quote(next(iter(tuner.target_scores)))}")
        others = ["--num-seeds", str(self.num_seeds), "--start-seed", str(self.num_seeds + 1)]
        measure = shlex.join(["--env-ids", *tuner.target_scores, "--command", command, *others])
        print(f"measure:  python -m cleanrl_utils.benchmark {measure}")
        return best
