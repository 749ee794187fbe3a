"""The database that a study lives in, shared by all processes that work on it."""

import re
import sys
import time
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy

HEARTBEAT = 15  # seconds between two signs of life of a trial in the database


def open_storage(url: str, tries: int = 10) -> optuna.storages.RDBStorage:
    """The database at a URL. The first process to come makes its tables."""
    if url.startswith("sqlite:///"):
        Path(url.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
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
            return open_storage(url, tries - 1)
        sys.exit(f"cannot open the storage {without_password(url)}: {str(cause).strip().splitlines()[0]}")


def without_password(storage: Any) -> str:
    return re.sub(r"(://[^:@/]*):[^@/]*@", r"\1:***@", storage) if isinstance(storage, str) else "storage"


def requeue(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
    """Put an interrupted trial back: the next free worker continues it, without what it had finished."""
    optuna.storages.RetryHeartbeatStaleTrialCallback()(study, trial)


def requeued(trials: list[optuna.trial.FrozenTrial]) -> set[int]:
    """The numbers of the trials that were put back: others continue them."""
    history = optuna.storages.RetryHeartbeatStaleTrialCallback.retry_history
    return {number for trial in trials for number in history(trial)}
