"""Which runs are compared, and in which groups."""

import re
from collections import defaultdict
from dataclasses import replace

from cleanrl_utils.rlops.runs import Run, Warn
from cleanrl_utils.words import plural

FACTS = ("commit", "versions", "hardware")  # what --group-by knows besides arguments


def select(runs: list[Run], exp_names: list[str], env_ids: list[str], metric: str, warn: Warn) -> list[Run]:
    """The runs asked for; ValueError says what there is instead."""
    if not runs:
        raise ValueError("no runs found: train first, e.g. python cleanrl/ppo.py, or compare the committed --results")
    for flag, wanted, there in (
        ("--exp-name", exp_names, {run.algorithm for run in runs}),
        ("--env-ids", env_ids, {run.env_id for run in runs}),
    ):
        if missing := [x for x in wanted if x not in there]:
            raise ValueError(f"{flag} {' '.join(missing)}: no such runs; there are {', '.join(sorted(there))}")
    runs = [run for run in runs if run.algorithm in (exp_names or [run.algorithm])]
    runs = [run for run in runs if run.env_id in (env_ids or [run.env_id])]
    if not runs:
        raise ValueError(f"no runs of {', '.join(exp_names)} on {', '.join(env_ids)}")
    with_metric = [run for run in runs if metric in run.curves]
    if not with_metric:
        there = sorted({tag for run in runs for tag in run.curves})
        raise ValueError(f"--metric {metric}: no run has it; there are {', '.join(there)}")
    for name in dict.fromkeys(run.algorithm for run in runs if metric not in run.curves):
        warn(f"runs of {name} without {metric}: left out")
    return with_metric


def match_tags(runs: list[Run], tags: list[str]) -> list[Run]:
    """The runs with each tag (or of each commit), named after it; "a;b" asks for both."""
    chosen = []
    for tag in tags:
        mine = [run for run in runs if all(part in (*run.tags, run.commit) for part in tag.split(";"))]
        if not mine:
            there = sorted({x for run in runs for x in (*run.tags, run.commit) if x})
            raise ValueError(f"--tags {tag}: no such runs; tags and commits there are {', '.join(there) or 'none'}")
        chosen += [replace(run, group=f"{run.algorithm} ({tag})") for run in mine]
    return chosen


def drop_repeats(runs: list[Run], warn: Warn) -> list[Run]:
    """The latest of the runs with the same seed and arguments: they are one sample, not several."""
    cells = defaultdict(list)
    for run in runs:
        cells[run.group, run.env_id, run.seed, run.commit, str(run.settings)].append(run)
    for (name, env_id, seed, *_), same in cells.items():
        same.sort(key=lambda run: run.name)
        if len(same) > 1:
            warn(f"{name} on {env_id} has seed {seed} {len(same)} times; only the latest, {same[-1].name}, is used")
    return [same[-1] for same in cells.values()]


def differences(runs: list[Run]) -> dict[str, list[str]]:
    """In which arguments runs differ, and in which values; one that is not given has its default."""
    found = {}
    for name in dict.fromkeys(name for run in runs for name in run.settings):
        found[name] = list(dict.fromkeys(run.settings.get(name, "default") for run in runs))
    found["commit"] = list(dict.fromkeys(run.commit for run in runs if run.commit))
    return {name: values for name, values in found.items() if len(values) > 1}


def by_cell(runs: list[Run]) -> dict[tuple[str, str], list[Run]]:
    """The runs of each group in each environment."""
    cells = defaultdict(list)
    for run in runs:
        cells[run.group, run.env_id].append(run)
    return cells


def split_repeats(runs: list[Run], warn: Warn) -> None:
    """Where a group has a seed more than once, its runs differ in something else: name their groups after that."""
    apart = defaultdict(dict)  # group: names of what tells its runs of one seed apart
    for (name, _), mine in by_cell(runs).items():
        seeds = defaultdict(list)
        for run in mine:
            seeds[run.seed].append(run)
        for same in seeds.values():
            found = differences(same)
            if len(found) > 1:  # a commit tells runs apart where nothing else does
                found.pop("commit", None)
            apart[name] |= found
    for run in runs:
        settings = run.settings | {"commit": run.commit}
        mine = [f" {name}={settings.get(name, 'default')}" for name in apart.get(run.group, {})]
        run.group += "".join(mine)
    for name, found in apart.items():
        if found:
            warn(f"{name} has runs of one seed that differ in {', '.join(found)}: groups of their own")


def warn_of_mixtures(runs: list[Run], warn: Warn) -> None:
    """Say which groups hold runs that differ in more than their seed."""
    for (name, env_id), mine in by_cell(runs).items():
        for argument, values in differences(mine).items():
            warn(f"{name} on {env_id} mixes {argument} {', '.join(values)}; separate with --group-by {argument}")


def keep_finished(runs: list[Run], warn: Warn) -> list[Run]:
    """The runs that have reached their last step."""
    finished = [run for run in runs if run.status == "finished"]
    unfinished = [run for run in runs if run.status != "finished"]
    if not finished:
        first = f"{unfinished[0].name} is {unfinished[0].status}"
        raise ValueError(f"no run has finished ({first}); --no-finished-only compares them as they are")
    if unfinished:
        are = "is" if len(unfinished) == 1 else "are"
        warn(f"{plural(len(unfinished), 'run')} {are} not finished: left out; --no-finished-only shows them")
    return finished


def natural(name: str) -> list:
    """A key to sort by: numbers inside of names count as such, so that batch_size=64 comes before batch_size=128."""
    parts = re.split(r"(\d+\.?\d*(?:e[-+]?\d+)?)", name)
    return [float(part) if i % 2 else part for i, part in enumerate(parts)]


def group(runs: list[Run], tags: list[str], by: list[str], warn: Warn) -> list[Run]:
    """Name the group of each run: its algorithm, with tag, arguments and source where they tell groups apart."""
    unknown = [name for name in by if not any(name in (*FACTS, *run.args, *run.settings) for run in runs)]
    if unknown:
        raise ValueError(f"--group-by {' '.join(unknown)}: no run has such an argument")
    folders, files = ({run.algorithm for run in runs if (run.episodes is None) == x} for x in (True, False))
    for run in runs:
        both = run.algorithm in folders & files
        run.group = f"{run.algorithm} (results)" if both and run.episodes is not None else run.algorithm
    runs = match_tags(runs, tags) if tags else runs
    for run in runs:
        known = {fact: getattr(run, fact) for fact in FACTS} | run.settings | run.args
        run.group += "".join(f" {name}={known.get(name, 'default')}" for name in by)
    runs = drop_repeats(runs, warn)
    split_repeats(runs, warn)
    warn_of_mixtures(runs, warn)
    return sorted(runs, key=lambda run: (natural(run.group), run.env_id, run.seed))
