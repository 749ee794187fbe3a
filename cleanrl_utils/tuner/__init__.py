"""Tune the hyper-parameters of an algorithm file with Optuna.

Usage: see tuner_example.py

A trial is one set of parameters, trained on every environment with every seed, each training in its own process. While
they train, their TensorBoard curves are read and a hopeless trial is pruned. The study lives in a database: running the
same program again continues it, running it twice at a time shares it. See docs/get-started/tuner.md.
"""

import difflib
import hashlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from cleanrl_utils.tuner.training import Training

if TYPE_CHECKING:
    import optuna

AGGREGATIONS = {"average": np.mean, "median": np.median, "max": np.max, "min": np.min}


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

    def make_trainings(self, trial: "optuna.Trial", flags: list[str], num_seeds: int) -> list[Training]:
        """All trainings of a trial, seed by seed."""
        study = re.sub(r"[^\w.-]", "_", self.study_name)  # part of file names
        exp_name = f"{study}_trial{trial.number}"
        trainings = []
        # a checkpoint with its replay buffer is large, and trials are not resumed from one; a later flag wins
        first = ["--checkpoint-frequency=0"] if "checkpoint-frequency" in self.known else []
        for seed, env_id in itertools.product(range(1, num_seeds + 1), self.target_scores):
            folder = env_id.replace("/", "_")
            own = [f"--exp-name={exp_name}", f"--env-id={env_id}", f"--seed={seed}"]
            command = [sys.executable, self.script, *first, *flags, *own]
            log = Path("runs", "tuner", study, f"trial{trial.number}_{folder}_seed{seed}.log")
            trainings.append(Training(env_id, seed, command, f"{folder}__{exp_name}__{seed}__*", log))
        return trainings

    # Scores

    def normalize(self, env_id: str, value: float) -> float:
        if self.target_scores[env_id] is None:
            return value
        low, high = self.target_scores[env_id]
        return (value - low) / (high - low)

    def score(self, trainings: list[Training], seed: int, tenth: int) -> float | None:
        """The score with `seed` at a tenth of its training and earlier seeds at their end; None where one has none.

        It depends on the curves only, not on when they were trained: trials compare, however their processes shared the
        machine.
        """
        by_seed: dict[int, list[float]] = {}
        for x in trainings[: seed * len(self.target_scores)]:
            value = x.curve[tenth if x.seed == seed else -1]
            if value is None:
                return None
            by_seed.setdefault(x.seed, []).append(self.normalize(x.env_id, value))
        return float(np.mean([AGGREGATIONS[self.aggregation_type](scores) for scores in by_seed.values()]))

    # The study

    def open_study(self, sample: dict[str, Any], num_seeds: int) -> "optuna.Study":
        """The study of this program, new or continued."""
        import optuna

        from cleanrl_utils.tuner.storage import open_storage

        measure = {"script": Path(self.script).name, "metric": self.metric, "num_seeds": num_seeds}
        measure |= {"metric_last_n_average_window": self.window, "aggregation_type": self.aggregation_type}
        measure |= {"target_scores": {env_id: x and list(x) for env_id, x in self.target_scores.items()}}
        measure |= {"direction": self.direction}
        if not self.study_name:
            definition = json.dumps([measure, sample], default=str, sort_keys=True)
            digest = hashlib.sha256(definition.encode()).hexdigest()[:8]
            self.study_name = f"tuner_{Path(self.script).stem}_{digest}"
        storage = open_storage(self.storage) if isinstance(self.storage, str) else self.storage
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

    def tune(self, num_trials: int, num_seeds: int, workers: int | None = None) -> "optuna.trial.FrozenTrial":
        """Run trials until the study has `num_trials`, those of earlier and of parallel calls included.

        Returns the best trial. Ctrl+C stops all processes; the trials they belong to are continued next time.
        """
        try:
            import optuna
            import sqlalchemy

            from cleanrl_utils.tuner.session import Session
            from cleanrl_utils.tuner.storage import without_password
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
            before = signal.signal(signal.SIGTERM, terminate)
        try:
            session.run()
        except KeyboardInterrupt as stop:
            print(f"\nstopped; run the same program again to continue the study {self.study_name}", file=sys.stderr)
            sys.exit(128 + (signal.SIGTERM if stop.args else signal.SIGINT))
        except (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
            reason = str(error.__cause__ or error).strip().splitlines()[0]
            lost = f"lost the storage {without_password(self.storage)}: {reason}"
            sys.exit(f"{lost}; run the same program again to continue")
        finally:
            session.stop()
            if main_thread:
                signal.signal(signal.SIGTERM, before)
        return session.finish()


def terminate(number: int, frame: FrameType | None) -> None:
    """SIGTERM stops a search as Ctrl+C does."""
    raise KeyboardInterrupt("SIGTERM")
