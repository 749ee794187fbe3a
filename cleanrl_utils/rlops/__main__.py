"""Compare versions or algorithms: learning curves, final scores with intervals, performance profile, probability of
improvement, as a PNG, a Markdown table and one HTML page that works offline.

Usage:
    python -m cleanrl_utils.rlops                                         all of runs/ and benchmark/results/
    python -m cleanrl_utils.rlops --exp-name ppo dqn --env-ids CartPole-v1 Acrobot-v1
    python -m cleanrl_utils.rlops runs/*__ppo__* --group-by learning_rate --output-filename lr.png
    python -m cleanrl_utils.rlops runs --exp-name ppo --append benchmark/results/ppo.csv
    python -m cleanrl_utils.rlops --wandb-entity openrlbenchmark --wandb-project-name cleanrl --exp-name ppo
"""

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from cleanrl_utils.rlops import compare, page
from cleanrl_utils.rlops.runs import RETURN, Run, append_results, read_paths, read_wandb

DEFAULT_PATHS = (Path("runs"), Path("benchmark/results"))


@dataclass
class Args:
    paths: Annotated[list[Path], tyro.conf.Positional] = field(default_factory=list)
    """run folders, folders of runs, result files; by default `runs` and `benchmark/results`"""
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
    finished_only: bool = False
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
    scan_history: bool = False
    """read whole histories from Weights & Biases, not samples of them; those of local runs are always read whole"""
    report: bool = False
    """publish the comparison as a report on Weights & Biases; for local runs, the page is the report"""


def warn(line: str) -> None:
    print(f"note: {line}", file=sys.stderr)


def read(args: Args) -> list[Run]:
    """The runs from where the arguments say."""
    if args.wandb_project_name or args.wandb_entity:
        project = args.wandb_project_name or "cleanrl"
        where = f"{args.wandb_entity}/{project}" if args.wandb_entity else project
        try:
            runs = read_wandb(where, args.exp_name, args.env_ids, args.tags, args.metric, args.scan_history, warn)
        except Exception as error:  # whatever the network and the service raise
            raise ValueError(f"W&B, {where}: {' '.join(str(error).split())}") from error
        if not runs:
            raise ValueError(f"W&B, {where}: no runs match the filters")
        return runs
    paths = args.paths or [path for path in DEFAULT_PATHS if path.exists()]

    def wanted(run: dict) -> bool:  # the events of other runs need not be read
        chosen = (("exp_name", args.exp_name), ("env_id", args.env_ids))
        return all(run[name] in names for name, names in chosen if names)

    return read_paths(paths, warn, wanted)


def append(result_file: Path, runs: list[Run]) -> None:
    """Add what comes from run folders to a result file."""
    folders = [run for run in runs if run.episodes is None and RETURN in run.curves]
    if not folders:
        raise ValueError(f"--append {result_file}: no run folders among what is compared")
    added, replaced = append_results(result_file, folders)
    print(f"{result_file}: {added} runs added, {replaced} replaced, {len(folders) - added - replaced} there already")


def make_title(args: Args, runs: list[Run]) -> str:
    algorithms = list(dict.fromkeys(run.algorithm for run in runs))
    *others, last = algorithms if len(algorithms) < 4 else [f"{len(algorithms)} algorithms"]
    title = f"{', '.join(others)} and {last}" if others else last
    if args.group_by:
        title += f" by {', '.join(args.group_by)}"
    return title + (f" at {', '.join(args.tags)}" if args.tags else "")


def main(args: Args) -> None:
    """Compare runs."""
    if args.metric_last_n_average_window < 1:
        raise ValueError("--metric-last-n-average-window must be at least 1")
    image = args.output_filename
    if image.suffix not in (".png", ".pdf", ".svg"):
        image = image.with_suffix(".png")
    if not image.parent.is_dir():
        raise ValueError(f"--output-filename {args.output_filename}: there is no folder {image.parent}")
    runs = compare.select(read(args), args.exp_name, args.env_ids, args.metric, warn)
    if args.finished_only:
        runs = [run for run in runs if run.status == "finished"]
        if not runs:
            raise ValueError("--finished-only: no run has finished")
    if args.append:
        append(args.append, runs)
    runs = compare.group(runs, args.tags, args.group_by, warn)
    comparison = compare.Comparison(runs, args.metric, args.metric_last_n_average_window)
    title = make_title(args, runs)
    markdown = comparison.markdown(title)
    written = [image.with_suffix(".md"), image.with_suffix(".html")]
    written[0].write_text(markdown)
    page.write(comparison, written[1], title, args.embed_videos_mb)
    try:
        compare.plot(comparison, image)
        written.insert(0, image)
    except ImportError:
        warn('no picture without matplotlib: pip install "cleanrl[rlops]"')
    print(markdown, "written: " + " ".join(map(str, written)), sep="\n")
    if args.report and (args.wandb_project_name or args.wandb_entity):
        from cleanrl_utils.rlops.wandb_report import publish

        address = publish(comparison, title, markdown, args.wandb_entity, args.wandb_project_name or "cleanrl")
        print(f"report: {address}")
    elif args.report:
        print(f"report: {written[-1]}")


if __name__ == "__main__":
    try:
        main(tyro.cli(Args, description=__doc__.split("\n\n")[0]))
    except KeyboardInterrupt:
        sys.exit("interrupted")
    except BrokenPipeError:  # `| head` has seen enough, and the files are written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, OSError) as error:
        sys.exit(f"cannot compare: {error}")
