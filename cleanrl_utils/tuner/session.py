"""The work of one process on a study: it starts trainings, watches them, and tells Optuna."""

import difflib
import os
import shlex
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
from optuna.trial import TrialState
from tqdm import tqdm

from cleanrl_utils.logs import tail
from cleanrl_utils.tuner import storage
from cleanrl_utils.tuner.training import TENTHS, Training
from cleanrl_utils.words import duration, plural

if TYPE_CHECKING:
    from cleanrl_utils.tuner import Tuner

POLL = 0.3  # seconds between two looks at the running processes
OUTCOMES = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}


@dataclass(eq=False)
class Attempt:
    """A trial of this process: its trainings, seed by seed, and how many of its scores Optuna has been told."""

    trial: optuna.Trial
    trainings: list[Training]
    flags: str
    reported: int = 0
    wandb_run: Any = None
    twin: "Attempt | None" = None
    """another one with the same flags that is being trained: this one waits for what comes out"""

    def take_over(self, curves: dict[str, Any]) -> None:
        """What has been trained before with these flags is not trained again."""
        for training in self.trainings:
            training.curve = training.curve or list(curves.get(training.name, []))

    def waiting(self, ahead: bool) -> list[Training]:
        """Trainings to start: those of the first unfinished seed, or of any seed."""
        unfinished = [x for x in self.trainings if len(x.curve) < TENTHS and not self.twin]
        return [x for x in unfinished if x.process is None and (ahead or x.seed == unfinished[0].seed)]

    def stop(self) -> None:
        for training in self.trainings:
            training.stop()
        if self.wandb_run:
            self.wandb_run.finish()


class Session:
    def __init__(self, tuner: "Tuner", study: optuna.Study, num_trials: int, num_seeds: int, workers: int) -> None:
        self.tuner, self.study = tuner, study
        self.num_trials, self.num_seeds, self.workers = num_trials, num_seeds, workers
        self.threads = max(1, (os.cpu_count() or 1) // workers)
        self.attempts: list[Attempt] = []
        self.failures = 0
        self.last_beat, self.waiting = -np.inf, False
        self.heartbeats = isinstance(tuner.storage, str)
        self.metric_seen, self.best = self.scored(), self.find_best()
        self.started, self.done_before = time.monotonic(), self.counts()[0]
        self.progress = tqdm(total=num_trials, unit="trial", disable=None, dynamic_ncols=True)

    def counts(self) -> tuple[int, int]:
        """How many trials the study has behind it, and how many it has running, in all processes."""
        trials = self.study.get_trials(deepcopy=False)
        continued = storage.requeued(trials)
        done = sum(trial.state.is_finished() and trial.number not in continued for trial in trials)
        if not self.heartbeats:  # nobody knows whether the others' trials are alive
            return done, len(self.attempts)
        return done, sum(trial.state == TrialState.RUNNING for trial in trials)

    def run(self) -> None:
        """Work until the study has all its trials."""
        tuner, (done, _) = self.tuner, self.counts()
        size = f"{plural(len(tuner.target_scores) * self.num_seeds, 'training')} each, {self.workers} at once"
        self.progress.write(f"study {tuner.study_name}: {done} of {plural(self.num_trials, 'trial')} done, {size}")
        if isinstance(tuner.storage, str) and tuner.storage.startswith("sqlite"):
            self.progress.write(f"watch:    optuna-dashboard {tuner.storage}")
        self.progress.update(done)
        while True:
            self.beat()
            # a process occupies its worker until its end has been looked at: a failure is known before the next start
            free = self.workers - sum(x.unread for attempt in self.attempts for x in attempt.trainings)
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
            parts = [f"trial {number}: {share:.0%}" for number, share in shares.items()]
            self.progress.set_postfix_str(", ".join([self.best, *parts] if self.best else parts))
            time.sleep(POLL)

    def beat(self) -> None:
        """Show that our trials are alive, and requeue those of processes that are not."""
        if self.heartbeats and time.monotonic() - self.last_beat > storage.HEARTBEAT:
            self.last_beat = time.monotonic()
            for attempt in self.attempts:
                self.study._storage.record_heartbeat(attempt.trial._trial_id)
            optuna.storages.fail_stale_trials(self.study)

    def start_one(self) -> bool:
        """Start a training: of the seeds at hand, else of a new trial, else of later seeds."""
        if self.start_waiting(ahead=False):
            return True
        if sum(self.counts()) < self.num_trials:
            self.ask()
            return self.start_waiting(ahead=False)
        return self.start_waiting(ahead=True)

    def start_waiting(self, ahead: bool) -> bool:
        for attempt in self.attempts:
            for training in attempt.waiting(ahead):
                training.start(self.threads)
                return True
        return False

    def ask(self) -> None:
        trial = self.study.ask()
        if self.heartbeats:
            self.study._storage.record_heartbeat(trial._trial_id)
        try:
            attempt = self.make_attempt(trial)
        except BaseException:
            self.study.tell(trial, state=TrialState.FAIL)
            raise
        attempt.twin = next((other for other in self.attempts if other.flags == attempt.flags), None)
        self.attempts.append(attempt)
        if not attempt.twin:
            self.look_for_twins(attempt)

    def make_attempt(self, trial: optuna.Trial) -> Attempt:
        """A trial's trainings; what an interrupted predecessor had finished counts as done."""
        params = self.tuner.params_fn(trial)
        flags = self.tuner.to_flags(params)
        trainings = self.tuner.make_trainings(trial, flags, self.num_seeds)
        attempt = Attempt(trial, trainings, shlex.join(flags))
        attempt.take_over(trial.user_attrs)
        trial.set_user_attr("flags", attempt.flags)
        if self.tuner.wandb_kwargs:
            import wandb

            study = self.tuner.study_name
            names = {"name": f"{study}_{trial.number}", "group": study}
            attempt.wandb_run = wandb.init(**names | self.tuner.wandb_kwargs, config=params, reinit="create_new")
        return attempt

    def look_for_twins(self, attempt: Attempt) -> None:
        """Use what earlier trials with the same flags have found out: their curves, or that they were pruned."""
        for trial in self.study.get_trials(deepcopy=False):
            if trial.number == attempt.trial.number or trial.user_attrs.get("flags") != attempt.flags:
                continue
            if trial.state == TrialState.PRUNED:
                words = f"pruned, as trial {trial.number} with the same parameters"
                return self.end(attempt, TrialState.PRUNED, None, words)
            attempt.take_over(trial.user_attrs)
        return None

    def wait_for_others(self) -> bool:
        """Whether there is nothing left to do: all trials are there, and no other process is still at one."""
        done, running = self.counts()
        if done + running < self.num_trials:
            return False
        if running and not self.waiting:
            self.progress.write(f"waiting for {plural(running, 'trial')} of other processes")
        self.waiting = True
        return not running

    def advance(self, attempt: Attempt) -> None:
        """Read the curves, tell Optuna what is new, and end the trial if it is over."""
        if attempt.twin:
            if attempt.twin in self.attempts:
                return None
            attempt.twin = None
            self.look_for_twins(attempt)
            if attempt not in self.attempts:
                return None
        for x in attempt.trainings:
            if not x.unread:
                continue
            over = x.read(self.tuner.metric, self.tuner.window)
            self.check_metric(x, over)
            if not over:
                continue
            if x.process.returncode:
                return self.fail(attempt, x, f"exited with code {x.process.returncode}")
            if not x.curve:
                return self.fail(attempt, x, f"logged no {self.tuner.metric}")
            if not np.isfinite(x.curve[-1]):
                return self.fail(attempt, x, f"ended with {self.tuner.metric} {x.curve[-1]}")
            attempt.trial.set_user_attr(x.name, x.curve)
            if attempt.wandb_run:
                attempt.wandb_run.log({f"{x.env_id}_return": x.curve[-1]})
        while attempt.reported < TENTHS * self.num_seeds:
            seed, tenth = attempt.reported // TENTHS + 1, attempt.reported % TENTHS
            of_seed = [x for x in attempt.trainings if x.seed <= seed]
            if any(len(x.curve) <= (tenth if x.seed == seed else TENTHS - 1) for x in of_seed):
                return None
            score = self.tuner.score(attempt.trainings, seed, tenth)
            attempt.reported += 1
            if score is None:  # no episode has ended yet
                continue
            attempt.trial.report(score, attempt.reported)
            if attempt.wandb_run:
                attempt.wandb_run.log({"aggregated_normalized_score": score})
            last = attempt.reported == TENTHS * self.num_seeds
            if not last and attempt.trial.should_prune():
                share = attempt.reported / (TENTHS * self.num_seeds)
                return self.end(attempt, TrialState.PRUNED, None, f"pruned at {score:.4g}, after {share:.0%}")
        words = f"score {score:.4g}"
        if not any(x.process for x in attempt.trainings):
            words += ", from an earlier trial with the same parameters"
        return self.end(attempt, TrialState.COMPLETE, score, words)

    def check_metric(self, training: Training, over: bool) -> None:
        """End the search if the first curves are there, and neither are they the metric nor will it come later."""
        metric = self.tuner.metric
        self.metric_seen = self.metric_seen or metric in training.tags
        if self.metric_seen or not training.tags or (over and training.process.returncode):
            return
        is_mentioned = metric.rpartition("/")[2] in Path(self.tuner.script).read_text()
        if over or not is_mentioned:  # else it may be logged later, such as the return of a long episode
            close = difflib.get_close_matches(metric, training.tags, 1)
            guess = f" (did you mean {close[0]}?)" if close else ""
            sys.exit(f"{self.tuner.script} logs no {metric}{guess}; it logs {', '.join(training.tags)}")

    def fail(self, attempt: Attempt, training: Training, reason: str) -> None:
        reason = f"{training.name} {reason}"
        log = textwrap.indent(tail(training.log, 8), "    | ")
        attempt.trial.set_user_attr("error", f"{reason}\n{log}")
        self.end(attempt, TrialState.FAIL, None, f"failed: {reason}; {training.log} ends with\n{log}")
        self.failures += 1
        if self.failures == max(3, self.workers) and not self.scored():
            sys.exit(f"the first {self.failures} trials have failed: see above")

    def end(self, attempt: Attempt, state: TrialState, score: float | None, words: str) -> None:
        """Tell Optuna and the user how a trial went."""
        attempt.stop()
        self.study.tell(attempt.trial, score, state=state, skip_if_finished=True)
        self.attempts.remove(attempt)
        values = [f"{x:.4g}" if isinstance(x, float) else str(x) for x in attempt.trial.params.values()]
        params = " ".join(map("=".join, zip(attempt.trial.params, values)))
        done = self.counts()[0]
        self.best = self.find_best()
        outlook = ", ".join(filter(None, [self.best, self.time_left(done)]))
        line = f"trial {attempt.trial.number}  [{done}/{self.num_trials}]  {params}  {words}"
        self.progress.write(f"{line}  ({outlook})" if outlook else line)
        self.progress.update(done - self.progress.n)

    def find_best(self) -> str:
        """The best trial so far, in words; empty before the first that was trained to its end."""
        try:
            best = self.study.best_trial
        except ValueError:
            return ""
        return f"best: {best.value:.4g} of trial {best.number}"

    def time_left(self, done: int) -> str:
        """By the pace of all processes since this one has started."""
        if not self.done_before < done < self.num_trials:
            return ""
        seconds = (time.monotonic() - self.started) / (done - self.done_before)
        return f"about {duration(seconds * (self.num_trials - done))} left"

    def scored(self) -> bool:
        return bool(self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED)))

    def stop(self) -> None:
        """Stop all processes; their trials go back into the queue."""
        attempts, self.attempts = self.attempts, []
        for attempt in attempts:
            attempt.stop()
        for attempt in attempts:
            try:
                storage.requeue(self.study, self.study.tell(attempt.trial, state=TrialState.FAIL))
            except Exception as error:  # the storage is gone, or another process has taken the trial over
                print(f"trial {attempt.trial.number} stays as it was: {type(error).__name__}", file=sys.stderr)
        self.progress.close()

    def finish(self) -> optuna.trial.FrozenTrial:
        """Say what is best, as commands to paste."""
        tuner = self.tuner
        trials = self.study.get_trials(deepcopy=False)
        if not any(trial.state == TrialState.COMPLETE for trial in trials):
            sys.exit(f"no trial of the study {tuner.study_name} was trained to its end")
        best = self.study.best_trial
        continued = storage.requeued(trials)
        states = [trial.state for trial in trials if trial.number not in continued]
        counts = [f"{states.count(state)} {word}" for state, word in OUTCOMES.items() if state in states]
        print(f"\ntrials: {', '.join(counts)}; best: trial {best.number}, score {best.value:.4g}")
        command = f"python {tuner.script} {best.user_attrs['flags']}"
        print(f"train:    {command} --env-id {shlex.quote(next(iter(tuner.target_scores)))}")
        others = ["--num-seeds", str(self.num_seeds), "--start-seed", str(self.num_seeds + 1)]
        measure = shlex.join(["--env-ids", *tuner.target_scores, "--command", command, *others])
        print(f"measure:  python -m cleanrl_utils.benchmark {measure}")
        return best
