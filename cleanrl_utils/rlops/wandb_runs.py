"""Read runs from Weights & Biases, as flags of rlops or as the filters of openrlbenchmark describe them."""

import shlex
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import numpy as np

from cleanrl_utils.rlops.events import Curve
from cleanrl_utils.rlops.runs import RETURN, Run, Warn, finite

PROJECT_KEYS = {"we": "entity", "wpn": "project", "ceik": "key of the environment", "cen": "key of the name"}
PROJECT_KEYS |= {"metric": "what to compare"}
RUN_KEYS = {"tag": "a tag", "user": "who ran it", "cl": "name in the comparison"}

FOREIGN_FLAGS = {"--check-empty-runs", "--no-check-empty-runs", "--rliable"}


@dataclass
class Query:
    """Which runs of a project to read."""

    where: str
    """the project, as entity/project or project"""
    metric: str
    exp_names: list[str] = field(default_factory=list)
    env_ids: list[str] = field(default_factory=list)
    tags: list[list[str]] = field(default_factory=list)
    """runs that have all tags of one of these lists"""
    user: str = ""
    label: str = ""
    """what its runs are compared as; by default the name of the experiment"""
    env_key: str = "env_id"
    name_key: str = "exp_name"

    def conditions(self) -> dict:
        """The query in the language of W&B."""
        found = [{f"config.{self.name_key}.value": {"$in": self.exp_names}}] if self.exp_names else []
        found += [{f"config.{self.env_key}.value": {"$in": self.env_ids}}] if self.env_ids else []
        found += [{"$or": [{"$and": [{"tags": tag} for tag in group]} for group in self.tags]}] if self.tags else []
        found += [{"username": self.user}] if self.user else []
        return {"$and": found} if found else {}


def split_filter(text: str, known: dict[str, str]) -> tuple[str, dict[str, list[str]]]:
    """The name before the question mark, and the keys and values after it."""
    name, _, query = text.partition("?")
    values = parse_qs(query)
    for key in values:
        if key not in known:
            there = ", ".join(f"{key} ({meaning})" for key, meaning in known.items())
            raise ValueError(f"--filters {shlex.quote(text)}: no such key {key}; there are {there}")
    return name, values


def parse_filters(filters: list[list[str]], env_ids: list[str]) -> list[Query]:
    """`?we=ENTITY&wpn=PROJECT&ceik=env_id&cen=exp_name&metric=TAG`, then any number of `NAME?tag=TAG&cl=LABEL`."""
    queries = []
    for first, *names in filters:
        if not first.startswith("?"):
            raise ValueError(f"--filters {shlex.quote(first)}: the first is the project, '?we=ENTITY&wpn=PROJECT'")
        project = {key: values[0] for key, values in split_filter(first, PROJECT_KEYS)[1].items()}
        if "we" not in project and "wpn" not in project:
            raise ValueError(
                f"--filters {shlex.quote(first)} names no project on W&B (we=ENTITY&wpn=PROJECT); "
                f"with local runs: {local_command([split_filter(name, RUN_KEYS) for name in names], env_ids)}"
            )
        where = "/".join(filter(None, (project.get("we"), project.get("wpn", "cleanrl"))))
        for text in names:
            name, values = split_filter(text, RUN_KEYS)
            tags = values.get("tag", [])
            label = values.get("cl", [f"{name} ({';'.join(tags)})" if tags else name])[0]
            queries.append(
                Query(
                    where,
                    project.get("metric", RETURN),
                    [name],
                    env_ids,
                    [tags] if tags else [],
                    values.get("user", [""])[0],
                    label,
                    project.get("ceik", "env_id"),
                    project.get("cen", "exp_name"),
                )
            )
    if not queries:
        raise ValueError("--filters: name the experiments after the project, e.g. 'ppo?tag=pr-424'")
    return queries


def merge_repeated(words: list[str], warn: Warn) -> list[str]:
    """The command line as this program takes it, of one that was written for openrlbenchmark.

    There, --env-ids is given once for each --filters, and further flags say how to draw.
    """
    merged, env_ids, flag = [], [], ""
    for word in words:
        if word.startswith("--"):
            flag = word
        if flag.partition("=")[0] in FOREIGN_FLAGS or flag.startswith(("--pc.", "--rc.")):
            if word == flag:
                warn(f"{flag} is a flag of openrlbenchmark; not needed here")
        elif flag == "--env-ids":
            env_ids += [word] if word != flag else []
        else:
            merged.append(word)
    return merged + (["--env-ids", *dict.fromkeys(env_ids)] if "--env-ids" in words else [])


def local_command(names: list[tuple[str, dict[str, list[str]]]], env_ids: list[str], metric: str = RETURN) -> str:
    """The command that makes the same comparison of runs in `runs/`."""
    words = ["python", "-m", "cleanrl_utils.rlops"]
    words += ["--exp-name", *dict.fromkeys(name for name, _ in names)] if names else []
    tags = dict.fromkeys(";".join(values["tag"]) for _, values in names if "tag" in values)
    words += ["--tags", *tags] if tags else []
    words += ["--env-ids", *env_ids] if env_ids else []
    words += ["--metric", metric] if metric != RETURN else []
    return shlex.join(words)


def read_query(api: Any, query: Query, metric: str, scan_history: bool, warn: Warn) -> list[Run]:
    """The runs of a query, sampled histories or with `scan_history` whole ones; its metric is called `metric`."""
    runs = []
    keys = ["global_step", "_runtime", query.metric]
    for found in api.runs(query.where, filters=query.conditions()):
        rows = found.scan_history(keys=keys) if scan_history else found.history(samples=10_000, keys=keys, pandas=False)
        points = [[float(row[x]) for x in keys] for row in rows if all(row.get(x) is not None for x in keys)]
        curves = finite(found.name, {metric: Curve(*np.array(points).T)} if points else {}, warn)
        if not curves:
            warn(f"{found.name} on W&B: has no {query.metric}; left out")
            continue
        config = found.config
        if missing := [name for name in (query.name_key, query.env_key, "seed") if name not in config]:
            warn(f"{found.name} on W&B: has no {missing[0]}; left out")
            continue
        name = query.label or config[query.name_key]
        run = Run(found.name, name, config[query.env_key], config["seed"], curves, config)
        run.tags, run.commit, run.source = list(found.tags), (found.commit or "")[:7], found.url
        run.status = found.state
        runs.append(run)
    return runs


def read_wandb(queries: list[Query], metric: str, scan_history: bool, warn: Warn) -> list[Run]:
    """The runs of some queries; ValueError says in a line what went wrong, and what does the same with local runs."""
    names = [(name, {"tag": tags} if tags else {}) for x in queries for name in x.exp_names for tags in x.tags or [[]]]
    instead = f"the same with local runs: {local_command(names, queries[0].env_ids, queries[0].metric)}"
    runs, where = [], queries[0].where
    try:
        import wandb

        api = wandb.Api()
        for query in queries:
            where = query.where
            runs += read_query(api, query, metric, scan_history, warn)
    except Exception as error:  # whatever the network and the service raise
        reason = " ".join(str(error).split()).rstrip(".")
        raise ValueError(f"W&B, {where}: {reason}; {instead}") from error
    if not runs:
        raise ValueError(f"W&B, {where}: no runs match the filters; {instead}")
    return runs
