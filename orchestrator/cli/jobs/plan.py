"""`orchestrator plan`: is it right, does it fit, how fast, how long, how much."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from orchestrator.api.planned_job import PlannedJob, judge_files
from orchestrator.api.verdict_lines import verdict_lines
from orchestrator.cli.common import AsJson, JobFiles, Overrides, print_json
from orchestrator.cli.jobs.planning_options import ClusterName, GpuName, Strict
from orchestrator.cli.jobs.tables.plan_tables import page_tables, tables
from orchestrator.cli.outputs import refuse_printed
from orchestrator.planning.drawing import PageText, write_drawings, write_page
from orchestrator.planning.forecast import planned_timeline


def command(
    jobs: JobFiles,
    overrides: Overrides = None,
    cluster: ClusterName = None,
    gpu: GpuName = None,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html",
            metavar="FILE",
            help="Also write an HTML page with drawings of the ranks and the pipeline's timeline.",
            callback=refuse_printed,
        ),
    ] = None,
    svg: Annotated[
        Path | None,
        typer.Option(
            "--svg", metavar="DIR", help="Write the drawings as ranks.svg and timeline.svg.", callback=refuse_printed
        ),
    ] = None,
    strict: Strict = False,
    as_json: AsJson = False,
) -> None:
    """Predict what a job will do and need, before any GPU is allocated: topology, parameters, memory, time, data, and a
    verdict. The exit code is 2 if something stops the job.

    \b
    Example:
      orchestrator plan job.yaml --gpu H200
      orchestrator plan job.yaml --set parallelism.tensor_model_parallel_size=4 --json
      orchestrator plan job.yaml --cluster alps --html plan.html
    """
    judged = judge_files(jobs, overrides, cluster, gpu)
    drawn = list(_draw(judged, html, svg))
    if as_json:
        print_json(judged.to_dict())
    else:
        # Names and paths may hold brackets: nothing is markup. In a file there is no terminal width to keep to.
        console = Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else 160)
        for table in tables(judged, console):
            console.print(table)
            console.print()
        for line in verdict_lines(judged.verdict):
            typer.echo(line)
        for path in drawn:
            typer.echo(f"drawn: {path}")
    if judged.verdict.stops or (strict and judged.verdict.warnings):
        raise typer.Exit(2)


def _draw(judged: PlannedJob, html: Path | None, svg: Path | None) -> Iterator[Path]:
    """The drawings that are asked for; the timeline has the seconds of the forecast."""
    if html is None and svg is None:
        return
    plan = judged.plan
    step = planned_timeline(plan, judged.forecast)
    if html is not None:
        facts, made = page_tables(judged)
        said = PageText(facts, tuple(verdict_lines(judged.verdict)), made)
        write_page(html, plan.job.name, said, plan.topology, step, in_seconds=True)
        yield html
    if svg is not None:
        yield from write_drawings(svg, plan.topology, step, in_seconds=True)
