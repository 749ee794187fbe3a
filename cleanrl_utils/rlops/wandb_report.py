"""Publish a comparison as a report on Weights & Biases."""

from typing import Any

from cleanrl_utils.rlops.compare import Comparison


def blocks(comparison: Comparison, markdown: str, entity: str | None, project: str) -> list[Any]:
    """The tables, and for every environment the curves by step and by time, drawn there from the runs themselves."""
    try:
        import wandb_workspaces.reports.v2 as wr
    except ImportError as error:
        raise ValueError('--report: its extra is not installed: pip install "cleanrl[rlops]"') from error
    found = [wr.MarkdownBlock(text=markdown)]
    for env_id in comparison.env_ids:
        runsets = []
        for name in comparison.groups:
            runs = comparison.cell(name, env_id)
            names = ", ".join(f"'{run.name}'" for run in runs)
            if runs:
                runsets.append(wr.Runset(entity=entity or "", project=project, name=name, filters=f"Name in [{names}]"))
        title = f"{env_id}, {comparison.metric}"
        panels = [wr.LinePlot(title=title, x=x, y=[comparison.metric]) for x in ("global_step", "_runtime")]
        found += [wr.H2(env_id), wr.PanelGrid(runsets=runsets, panels=panels)]
    return found


def publish(comparison: Comparison, title: str, markdown: str, entity: str | None, project: str) -> str:
    """Make the report; returns its address."""
    content = blocks(comparison, markdown, entity, project)
    import wandb_workspaces.reports.v2 as wr

    report = wr.Report(project=project, entity=entity or "", title=title, blocks=content)
    try:
        report.save()
    except Exception as error:  # whatever the network and the service raise
        raise ValueError(f"--report: W&B refused: {' '.join(str(error).split())}") from error
    return report.url
