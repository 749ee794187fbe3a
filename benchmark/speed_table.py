"""The page "Speed": every measurement of benchmark/results/speed*.csv in one table.

Usage:
    python benchmark/speed_table.py     # writes what is between <!-- speeds --> and <!-- end of speeds -->

A file has a row for each measurement. Its last column is the speed, and `round` counts repetitions. `version` (of the
contestant) and `hardware` are shown where a file has these columns. What it does not say about itself is in MEASURED.
"""

import csv
import re
import statistics

from results import RESULTS, ROOT

PAGE = ROOT / "docs" / "speed.md"
MARKED = re.compile(r"(<!-- speeds -->\n).*?(<!-- end of speeds -->)", re.DOTALL)
HEAD = ["task", "program", "version", "rounds", "steps per second", "x the first", "hardware", "measurements"]
CPU = "one core of an AMD EPYC"
# What was measured, and where, in files without such columns.
MEASURED = {
    "speed": ("PPO, CartPole-v1, 4 environments", CPU),
    "speed_halfcheetah": ("PPO, HalfCheetah-v4", CPU),
    "speed_dqn": ("DQN, CartPole-v1", CPU),
    "speed_td3": ("TD3, HalfCheetah-v4", CPU),
    "speed_sac": ("SAC, HalfCheetah-v4", CPU),
    "speed_jax": ("PPO in JAX", CPU),
    "speed_jax_games": ("PPO in JAX with games on EnvPool", "NVIDIA H200, 16 vCPUs"),
    "speed_jax_robots": ("PPO in JAX with MJX", "NVIDIA H200, 16 vCPUs"),
    "speed_jax_seeds": ("PPO in JAX, seeds per hour", "NVIDIA H200, 16 vCPUs"),
    "speed_atari": ("games on EnvPool", "NVIDIA H200, 16 vCPUs"),
}


def read_sessions(name: str) -> dict[str, list[list[dict]]]:
    """The measurements of a file by task and session: a new one begins where a contestant's round comes up again."""
    with open(RESULTS / f"{name}.csv", newline="") as file:
        measurements = list(csv.DictReader(file))
    title, machine = MEASURED.get(name, (name.removeprefix("speed_"), ""))
    *_, speed_column = measurements[0]
    tasks: dict[str, list[list[dict]]] = {}
    seen: set[tuple] = set()
    for row in measurements:
        task = ", ".join(filter(None, [title, row.get("env_id")]))
        if row.get("num_envs"):
            task += f", {row['num_envs']} environments"
        contestant = row.get("contestant") or row["what"]
        key = task, contestant, row["round"]
        if key in seen or task not in tasks:
            tasks.setdefault(task, []).append([])
            seen = {other for other in seen if other[0] != task}
        seen.add(key)
        facts = {"contestant": contestant, "speed": float(row[speed_column])}
        facts |= {"version": row.get("version") or "", "hardware": row.get("hardware") or machine}
        tasks[task][-1].append(facts)
    return tasks


def read_speeds(name: str) -> list[list[str]]:
    """The rows that a file gives: medians over the rounds of a session, and their ratios to its first contestant."""
    lines = []
    for task, sessions in read_sessions(name).items():
        for number, session in enumerate(sessions, 1):
            title = f"{task}, session {number}" if len(sessions) > 1 else task
            speeds: dict[str, list[float]] = {}
            for row in session:
                speeds.setdefault(row["contestant"], []).append(row["speed"])
            base = statistics.median(speeds[session[0]["contestant"]])
            facts = {row["contestant"]: row for row in session}
            for contestant, values in speeds.items():
                median = statistics.median(values)
                cells = [title, contestant, facts[contestant]["version"], str(len(values))]
                cells += [f"{median:,.0f}", f"{median / base:.2f}", facts[contestant]["hardware"]]
                lines.append([*cells, f"[`{name}.csv`](../benchmark/results/{name}.csv)"])
    return lines


def make_table() -> list[str]:
    names = sorted(path.stem for path in RESULTS.glob("speed*.csv"))
    rows = [row for name in names for row in read_speeds(name)]
    lines = ["| " + " | ".join(cells) + " |" for cells in (HEAD, *rows)]
    lines.insert(1, "|" + "---|" * len(HEAD))
    return ['<div class="sortable" markdown>', "", *lines, "", "</div>"]


def regenerated(page: str) -> str:
    """The page with its table made anew."""
    return MARKED.sub(lambda match: "\n".join([match[1], *make_table(), "", match[2]]), page)


def main() -> None:
    before = PAGE.read_text()
    after = regenerated(before)
    if after != before:
        PAGE.write_text(after)
        print(f"{PAGE.relative_to(ROOT)}: table made anew")


if __name__ == "__main__":
    main()
