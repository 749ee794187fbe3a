"""Compare versions or algorithms: learning curves, scores with intervals, summaries over environments, and whether
there is a difference, as a PNG, a Markdown table and one HTML page that works offline.

Usage:
    python -m cleanrl_utils.rlops                                         the finished runs in runs/
    python -m cleanrl_utils.rlops --exp-name ppo dqn --env-ids CartPole-v1 Acrobot-v1
    python -m cleanrl_utils.rlops --results                               with the results in benchmark/results/
    python -m cleanrl_utils.rlops runs/*__ppo__* --group-by learning_rate --output-filename lr.png
    python -m cleanrl_utils.rlops runs --exp-name ppo --append benchmark/results/ppo.csv
    python -m cleanrl_utils.rlops --wandb-entity openrlbenchmark --wandb-project-name cleanrl --exp-name ppo
    python -m cleanrl_utils.rlops --filters '?we=openrlbenchmark&wpn=cleanrl' 'ppo?tag=pr-424'
"""

import os
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import tyro

from cleanrl_utils import command_line
from cleanrl_utils.rlops import grouping, page, plot
from cleanrl_utils.rlops.compare import Comparison
from cleanrl_utils.rlops.normalize import scales
from cleanrl_utils.rlops.runs import RETURN, Run, append_results, read_paths
from cleanrl_utils.rlops.wandb_runs import Query, merge_repeated, parse_filters, read_wandb
from cleanrl_utils.words import plural

RUNS, RESULTS = Path("runs"), Path("benchmark/results")
MOST_LINES = 32  # of the table of pairs, on the terminal


@dataclass
class Args:
    paths: Annotated[list[Path], tyro.conf.Positional] = field(default_factory=list)
    """run folders, folders of runs, result files; by default `runs`"""
    results: bool = False
    """compare with the results that are committed in `benchmark/results`, too"""
    exp_name: list[str] = field(default_factory=list)
    """the algorithms to compare; by default all"""
    env_ids: list[str] = field(default_factory=list)
    """the environments; by default all"""
    tags: list[str] = field(default_factory=list)
    """compare the runs with these tags or of these commits, a group each; "a;b" means both"""
    group_by: list[str] = field(default_factory=list)
    """also compare by these arguments, e.g. learning_rate, or by commit, versions, hardware"""
    metric: str = RETURN
    """what to compare"""
    metric_last_n_average_window: int = 100
    """the score of a run is the mean of this many last values"""
    normalize: str = "runs"
    """the scale over environments: `runs`, `human`, `published`, or a CSV file with the columns env_id,low,high"""
    finished_only: bool = True
    """leave out runs that have not reached their last step"""
    output_filename: Path = Path("compare.png")
    """where to draw (png, pdf or svg); the table and the page are beside it, ending in .md and .html"""
    embed_videos_mb: float = 20
    """up to this size together, videos are put into the page; others are links relative to it"""
    append: Path | None = None
    """add the runs found in folders to this result file, each once"""
    wandb_project_name: str | None = None
    """read from this project on Weights & Biases instead of from here (`cleanrl` if only an entity is given)"""
    wandb_entity: str | None = None
    """the entity (team) of the project"""
    filters: Annotated[list[list[str]], tyro.conf.UseAppendAction] = field(default_factory=list)
    """or read what openrlbenchmark's filters say: '?we=ENTITY&wpn=PROJECT' and then 'ppo?tag=pr-424&cl=LABEL'"""
    scan_history: bool = False
    """read whole histories from Weights & Biases, not samples of them; those of local runs are always read whole"""
    report: bool = False
    """publish the comparison as a report on Weights & Biases; for local runs, the page is the report"""


def warn(line: str) -> None:
    print(f"note: {line}", file=sys.stderr)


def make_queries(args: Args) -> list[Query]:
    """What to read from Weights & Biases; nothing if the runs are here."""
    if args.filters:
        return parse_filters(args.filters, args.env_ids)
    if not args.wandb_project_name and not args.wandb_entity:
        return []
    where = "/".join(filter(None, (args.wandb_entity, args.wandb_project_name or "cleanrl")))
    tags = [group.split(";") for group in args.tags]
    return [Query(where, args.metric, args.exp_name, args.env_ids, tags)]


def read(args: Args, queries: list[Query]) -> list[Run]:
    """The runs from where the arguments say."""
    if queries:
        return read_wandb(queries, args.metric, args.scan_history, warn)
    paths = args.paths or ([RUNS] if RUNS.exists() else [])
    if args.results:
        if not RESULTS.exists():
            raise ValueError(f"--results: there is no {RESULTS} here; it is in the repository of CleanRL")
        paths = [*paths, RESULTS]

    def wanted(run: dict) -> bool:  # the events of other runs need not be read
        chosen = (("exp_name", args.exp_name), ("env_id", args.env_ids))
        return all(run[name] in names for name, names in chosen if names)

    return read_paths(paths, warn, wanted, args.exp_name)


def append(result_file: Path, runs: list[Run]) -> None:
    """Add what comes from run folders to a result file."""
    folders = [run for run in runs if run.episodes is None and RETURN in run.curves]
    if not folders:
        raise ValueError(f"--append {result_file}: no run folders among what is compared")
    added, replaced = append_results(result_file, folders)
    there = len(folders) - added - replaced
    print(f"{result_file}: {plural(added, 'run')} added, {replaced} replaced, {there} there already")


def make_title(args: Args, runs: list[Run]) -> str:
    algorithms = list(dict.fromkeys(run.algorithm for run in runs))
    *others, last = algorithms if len(algorithms) < 6 else [f"{len(algorithms)} algorithms"]
    title = f"{', '.join(others)} and {last}" if others else last
    if args.group_by:
        title += f" by {', '.join(args.group_by)}"
    return title + (f" at {', '.join(args.tags)}" if args.tags else "")


def shortened(markdown: str, whole: Path) -> str:
    """For the terminal: of a long table of pairs, the beginning."""
    before, head, rest = markdown.partition("| environment | x | y |")
    table, blank, after = rest.partition("\n\n")
    lines = table.split("\n")
    if len(lines) <= MOST_LINES:
        return markdown
    more = f"... {len(lines) - MOST_LINES} more rows are in {whole}"
    return before + head + "\n".join([*lines[:MOST_LINES], more]) + blank + after


def main(args: Args) -> None:
    """Compare runs."""
    if args.metric_last_n_average_window < 1:
        raise ValueError("--metric-last-n-average-window must be at least 1")
    image = args.output_filename
    if image.suffix not in (".png", ".pdf", ".svg"):
        image = image.with_name(image.name + ".png")
    queries = make_queries(args)
    if args.filters:  # they have a metric of their own, and their runs are called as they say
        args = replace(args, metric=queries[0].metric, exp_name=[])
    found = grouping.select(read(args, queries), args.exp_name, args.env_ids, args.metric, warn)
    if args.finished_only:
        found = grouping.keep_finished(found, warn)
    runs = grouping.group(found, args.tags, args.group_by, warn)
    known, scale = scales(sorted({run.env_id for run in runs}), args.normalize)
    if scale.bounds and not args.metric.endswith("episodic_return"):
        raise ValueError(f"--normalize {args.normalize} is about returns, not about {args.metric}")
    comparison = Comparison(runs, args.metric, args.metric_last_n_average_window, scale, known)
    title = make_title(args, runs)
    markdown = comparison.markdown(title)
    if args.append:
        append(args.append, found)
    image.parent.mkdir(parents=True, exist_ok=True)
    written = [image.with_suffix(".md"), image.with_suffix(".html")]
    written[0].write_text(markdown)
    page.write(comparison, written[1], title, args.embed_videos_mb)
    try:
        plot.plot(comparison, image)
        written.insert(0, image)
    except ImportError:
        warn('no picture without matplotlib: pip install "cleanrl[rlops]"')
    print(shortened(markdown, image.with_suffix(".md")), "written: " + " ".join(map(str, written)), sep="\n")
    if args.report and queries:
        from cleanrl_utils.rlops.wandb_report import publish

        entity, _, project = queries[0].where.rpartition("/")
        print(f"report: {publish(comparison, title, markdown, entity or None, project)}")
    elif args.report:
        print(f"report: {written[-1]}")


if __name__ == "__main__":
    try:
        words = merge_repeated(sys.argv[1:], warn)
        about = __doc__.split("\n\n")[0]
        main(command_line.parse(Args, prog="python -m cleanrl_utils.rlops", description=about, args=words))
    except KeyboardInterrupt:
        sys.exit("interrupted")
    except BrokenPipeError:  # `| head` has seen enough, and the files are written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, OSError) as error:
        sys.exit(f"cannot compare: {error}")
