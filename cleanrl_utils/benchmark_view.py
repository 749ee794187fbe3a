"""What the user of `cleanrl_utils.benchmark` sees: how the experiments go, and at the end what came out."""

import time
from statistics import mean, pstdev

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cleanrl_utils.experiment import Experiment, State
from cleanrl_utils.logs import tail
from cleanrl_utils.system import Machine
from cleanrl_utils.words import duration, plural

STYLES = {"running": "cyan", "done": "green", "failed": "bold red", "interrupted": "yellow", "waiting": "dim"}


def seconds_left(states: list[State], workers: int) -> float | None:
    """How long the rest takes, by the pace so far; None while nothing is known."""
    lasts, remaining, waiting = [], [], 0
    for state in states:
        if state.status == "done" and state.seconds > 0:
            lasts.append(state.seconds)
        elif state.status == "running" and state.started:
            elapsed = time.time() - state.started
            if state.sps and state.total_steps:
                remaining.append(max(0, state.total_steps - state.step) / state.sps)
                lasts.append(state.seconds + elapsed + remaining[-1])
            else:
                remaining.append(-elapsed)  # to be counted from the usual duration
        waiting += state.status in ("waiting", "interrupted")
    if not remaining and not waiting:
        return 0.0
    if not lasts:
        return None
    usual = mean(lasts)
    remaining = [max(0.0, x if x >= 0 else usual + x) for x in remaining]
    return max([(sum(remaining) + usual * waiting) / workers, *remaining])


def number(x: float | None, digits: int = 1) -> str:
    return "" if x is None or x != x else f"{x:,.{digits}f}"


class View:
    """What the user sees: a live table in a terminal, otherwise a line for every event and one a minute."""

    def __init__(self, experiments: list[Experiment], states: dict[str, State], workers: int):
        self.experiments, self.states, self.workers = experiments, states, workers
        self.console = Console(highlight=False, soft_wrap=True)
        self.live = Live(console=self.console, auto_refresh=False) if self.console.is_terminal else None
        self.next_line = time.monotonic() + 60
        self.machine = Machine()

    def __enter__(self) -> "View":
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.update(self.table(), refresh=True)
            self.live.stop()

    def say(self, line: str, style: str = "") -> None:
        self.console.print(Text(line, style))

    def counts(self) -> str:
        statuses = [state.status for state in self.states.values()]
        parts = [f"{statuses.count(status)} {status}" for status in STYLES if status in statuses]
        sps = sum(state.sps or 0 for state in self.states.values() if state.status == "running")
        if sps:
            parts.append(f"{sps:,.0f} steps/s")
        if {"running", "waiting"} & set(statuses):
            parts.append(f"{duration(seconds_left(list(self.states.values()), self.workers))} left")
        return ", ".join(parts)

    def event(self, experiment: Experiment, state: State) -> None:
        """Something has changed about an experiment."""
        label = f"{experiment.env_id} seed {experiment.seed}"
        if state.status == "failed":
            self.say(f"failed: {label}: {state.reason}; the last lines of {experiment.log}:", "bold red")
            self.say("\n".join(f"    {line}" for line in tail(experiment.log).splitlines()) or "    (nothing)")
        elif not self.live and state.status == "running":
            self.say(f"started: {label}, log in {experiment.log}")
        elif not self.live:
            score = f"return {number(state.episodic_return)}, " if state.episodic_return is not None else ""
            self.say(f"{state.status}: {label}: {score}{duration(state.seconds)} ({self.counts()})")

    def refresh(self) -> None:
        if self.live:
            self.live.update(self.table(), refresh=True)
        elif time.monotonic() > self.next_line:
            self.next_line = time.monotonic() + 60
            self.say(", ".join(filter(None, [f"{time.strftime('%H:%M:%S')} {self.counts()}", str(self.machine)])))

    def table(self) -> Group:
        """Running and failed experiments first, as many as fit on the screen."""
        table = Table(box=None, header_style="bold", pad_edge=False)
        table.add_column("environment")
        usage = ("CPU", "memory") if self.console.width >= 100 else ()  # the name of the environment comes first
        for name in ("seed", "state", "steps", "SPS", "return", "time", "left", *usage):
            table.add_column(name, justify="left" if name == "state" else "right")
        order = {status: place for place, status in enumerate(("running", "failed", "interrupted", "done", "waiting"))}
        rows = sorted(self.experiments, key=lambda experiment: order[self.states[experiment.name].status])
        room = max(3, self.console.height - 6)
        for experiment in rows[:room]:
            state = self.states[experiment.name]
            running = state.status == "running"
            steps = f"{state.step:,}" if state.step else ""
            if running and state.step and state.total_steps:
                steps += f" {100 * state.step / state.total_steps:3.0f}%"
            elapsed = state.seconds + (time.time() - (state.started or time.time()) if running else 0)
            used = [f"{state.cpu:.0f}%", f"{state.memory / 1e9:.1f} GB"] if state.memory else ["", ""]
            table.add_row(
                experiment.env_id,
                str(experiment.seed),
                Text(state.status + (f" ({state.attempts}x)" if state.attempts > 1 else ""), STYLES[state.status]),
                steps,
                number(state.sps, 0),
                number(state.episodic_return),
                duration(elapsed) if elapsed else "",
                duration(seconds_left([state], 1)) if running and state.sps and state.total_steps else "",
                *used[: len(usage)],
            )
        more = [Text(f"... and {len(rows) - room} more")] if len(rows) > room else []
        return Group(table, *more, Text(self.counts(), "bold"), Text(str(self.machine), "dim"))


def print_summary(
    console: Console, experiments: list[Experiment], states: dict[str, State], refused: bool = False
) -> None:
    """Each environment's seeds in a row, then what did not work and what to do about it."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("environment")
    for name in ("done", "return, mean ± std", "SPS", "time"):
        table.add_column(name, justify="right")
    for env_id in dict.fromkeys(experiment.env_id for experiment in experiments):
        group = [states[experiment.name] for experiment in experiments if experiment.env_id == env_id]
        done = [state for state in group if state.status == "done"]
        returns = [state.episodic_return for state in done if state.episodic_return is not None]
        speeds = [state.sps for state in done if state.sps]
        table.add_row(
            env_id,
            f"{len(done)}/{len(group)}",
            mean_and_std(returns),
            number(mean(speeds), 0) if speeds else "",
            duration(mean(state.seconds for state in done)) if done else "",
        )
    console.print()
    console.print(table)
    failed = [experiment for experiment in experiments if states[experiment.name].status == "failed"]
    for experiment in failed:
        line = f"failed: {experiment.env_id} seed {experiment.seed}: {states[experiment.name].reason}; {experiment.log}"
        console.print(Text(line, "bold red"))
    missing = sum(state.status != "done" for state in states.values())
    if refused:
        console.print("nothing was trained: correct --command, the script does not take it as it is")
    elif missing:
        # Ended by itself and without a run folder: a wrong environment, a package that is missing
        futile = [state for state in states.values() if state.exit_code and state.exit_code > 0 and not state.run_dir]
        advice = "the same command goes on" if missing > len(futile) else "correct what the log says"
        console.print(f"not done: {missing} of {plural(len(states), 'experiment')}; {advice}")


def mean_and_std(values: list[float]) -> str:
    if not values:
        return ""
    return number(mean(values)) + (f" ± {number(pstdev(values))}" if len(values) > 1 else "")
