"""The tables of speeds: every measurement of benchmark/results/speed*.csv, in README, docs/ and on its page "Speed".

Usage:
    python benchmark/speed_table.py     # writes what is between such marks and <!-- end of speeds -->

`<!-- speeds: all -->` becomes a table of all comparisons, `<!-- speeds: speed_sac.csv -->` one of that file's latest
session, `<!-- speeds: training -->` one with a row for each task of benchmark/speed.py on a CPU, and
`<!-- speeds: files -->` one with a row for each algorithm file that benchmark/speed_files.py has measured.

A file has a row for each measurement. Its last column is the speed, and `round` counts repetitions. `version` (of the
contestant) and `hardware` are shown where a file has these columns. What it does not say about itself is in MEASURED.
"""

import csv
import re
import statistics
from pathlib import Path

from results import RESULTS, ROOT

PAGE = ROOT / "docs" / "speed.md"
MARKED = re.compile(r"(<!-- speeds: (\S+) -->\n).*?(<!-- end of speeds -->)", re.DOTALL)
PEERS = {"stable-baselines3": "Stable-Baselines3", "sbx": "SBX"}
HEAD = ["task", "program", "version", "rounds", "steps per second", "x the first", "hardware", "measurements"]
CPU = "one core of an AMD EPYC"
# What was measured, and where, in files without such columns.
MEASURED = {
    "speed": ("PPO, CartPole-v1, 4 environments", CPU),
    "speed_halfcheetah": ("PPO, HalfCheetah-v4", CPU),
    "speed_dqn": ("DQN, CartPole-v1", CPU),
    "speed_ddpg": ("DDPG, HalfCheetah-v4", CPU),
    "speed_td3": ("TD3, HalfCheetah-v4", CPU),
    "speed_sac": ("SAC, HalfCheetah-v4", CPU),
    "speed_sac_h200": ("SAC on a GPU, HalfCheetah-v4", "NVIDIA H200, 16 vCPUs"),
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


def medians(session: list[dict]) -> dict[str, float]:
    """The speed of each contestant over the rounds of a session."""
    speeds: dict[str, list[float]] = {}
    for row in session:
        speeds.setdefault(row["contestant"], []).append(row["speed"])
    return {contestant: statistics.median(values) for contestant, values in speeds.items()}


def read_speeds(name: str) -> list[list[str]]:
    """The rows that a file gives: medians over the rounds of a session, and their ratios to its first contestant."""
    lines = []
    for task, sessions in read_sessions(name).items():
        for number, session in enumerate(sessions, 1):
            title = f"{task}, session {number}" if len(sessions) > 1 else task
            facts = {row["contestant"]: row for row in session}
            speeds = medians(session)
            base = speeds[session[0]["contestant"]]
            for contestant, speed in speeds.items():
                rounds = sum(row["contestant"] == contestant for row in session)
                cells = [title, contestant, facts[contestant]["version"], str(rounds)]
                cells += [f"{speed:,.0f}", f"{speed / base:.2f}", facts[contestant]["hardware"]]
                lines.append([*cells, f"[`{name}.csv`](../benchmark/results/{name}.csv)"])
    return lines


def latest(name: str) -> dict[str, float]:
    """The speeds of the latest session of a file."""
    *_, sessions = read_sessions(name).values()
    return medians(sessions[-1])


def make_table(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *rows)]
    lines.insert(1, "|" + "---|" * len(head))
    return lines


def make_table_of_all() -> list[str]:
    names = sorted(path.stem for path in RESULTS.glob("speed*.csv") if path.stem != "speed_files")
    rows = [row for name in names for row in read_speeds(name)]
    return ['<div class="sortable" markdown>', "", *make_table(HEAD, rows), "", "</div>"]


def make_table_of_file(name: str, page: Path) -> list[str]:
    """Its latest session, for a page that says how it was measured."""
    speeds = latest(name)
    peers = [peer for peer in PEERS if peer in speeds]
    compared = peers or list(speeds)[:1]
    rows = []
    for contestant, speed in speeds.items():
        script = contestant.removesuffix(".py")
        text = PEERS.get(contestant, f"`{contestant}`")
        if script != page.stem and (page.parent / f"{script}.md").exists():
            text = f"[{text}]({script}.md)"
        rows.append([text, f"{speed:,.0f}", *(f"{speed / speeds[other]:.2f}" for other in compared)])
    heads = [f"x {PEERS[peer]}" for peer in peers] or ["x the first"]
    return make_table(["", "steps per second", *heads], rows)


def make_table_of_training() -> list[str]:
    """A row for each task of benchmark/speed.py on a CPU, with ratios to its first contestant."""
    rows = []
    for name, (title, machine) in MEASURED.items():
        speeds = latest(name)
        if machine != CPU or not speeds.keys() >= PEERS.keys():
            continue
        script = next(contestant for contestant in speeds if contestant.endswith(".py"))
        twin = script.replace(".py", "_jax.py")
        base = speeds["stable-baselines3"]
        cells = [title, f"{base:,.0f}"]
        for contestant in ("sbx", script, f"{script} --accelerate off", f"{script} --compile", twin):
            speed = speeds.get(contestant)
            cells.append(f"{speed:,.0f} ({speed / base:.2f}x)" if speed else "")
        rows.append(cells)
    head = ["", *PEERS.values(), "this repository", "with `--accelerate off`", "with `--compile`", "in JAX"]
    return make_table(head, rows)


def make_table_of_files() -> list[str]:
    """The latest speed of each algorithm file on a CPU core and on a GPU."""
    speeds: dict[tuple[str, str], dict[bool, str]] = {}
    with open(RESULTS / "speed_files.csv", newline="") as file:
        for row in csv.DictReader(file):
            script = row["contestant"].removesuffix(".py")
            text = f"[`{row['contestant']}`](rl-algorithms/{script}.md)"
            here = speeds.setdefault((text, row["env_id"]), {})
            here["NVIDIA" in row["hardware"]] = f"{float(row['steps_per_second']):,.0f}"
    on_gpu = [kind for kind in (False, True) if any(kind in here for here in speeds.values())]
    rows = [[*task, *(here.get(kind, "") for kind in on_gpu)] for task, here in sorted(speeds.items())]
    table = make_table(["file", "task", *("H200" if kind else "one CPU core" for kind in on_gpu)], rows)
    return ['<div class="sortable" markdown>', "", *table, "", "</div>"]


def regenerated(text: str, page: Path = PAGE) -> str:
    """The text of a page with its tables made anew."""

    def replace(match: re.Match) -> str:
        if match[2] == "all":
            lines = make_table_of_all()
        elif match[2] == "training":
            lines = make_table_of_training()
        elif match[2] == "files":
            lines = make_table_of_files()
        elif (RESULTS / match[2]).exists():
            lines = make_table_of_file(match[2].removesuffix(".csv"), page)
        else:
            raise ValueError(f"{page.name}: no {match[2]} in benchmark/results/")
        return "\n".join([match[1], *lines, "", match[3]])

    return MARKED.sub(replace, text)


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def main() -> None:
    for page in pages():
        before = page.read_text()
        after = regenerated(before, page)
        if after != before:
            page.write_text(after)
            print(f"{page.relative_to(ROOT)}: speeds made anew")


if __name__ == "__main__":
    main()
