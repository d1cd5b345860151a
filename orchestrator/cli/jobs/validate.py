"""`orchestrator validate`: every error at once, or what the job would do."""

from __future__ import annotations

from typing import Any

import typer

from orchestrator.api.planned_job import PlannedJob, judge_files
from orchestrator.api.verdict_lines import problem_lines
from orchestrator.cli.common import AsJson, JobFiles, Overrides, print_json
from orchestrator.cli.jobs.planning_options import ClusterName, GpuName, Strict


def command(
    jobs: JobFiles,
    overrides: Overrides = None,
    cluster: ClusterName = None,
    gpu: GpuName = None,
    strict: Strict = False,
    as_json: AsJson = False,
) -> None:
    """Check a job spec. Report all errors in one go, each with its place, or "ok" and a summary of the job. A request
    that the cluster cannot meet is an error too (launch.cluster or --cluster names the profile), and so is a job that
    does not fit into the memory of its GPUs (launch.gpu, --gpu or the profile names them).

    \b
    Example:
      orchestrator validate job.yaml
      orchestrator validate base.yaml longer.yaml --set schedule.train_iters=10
      orchestrator validate job.yaml --cluster alps --strict
    """
    judged = judge_files(jobs, overrides, cluster, gpu)
    judged.require(strict=strict)
    plan, profile = judged.plan, judged.cluster
    if as_json:
        print_json({"ok": True, "cluster": profile.name if profile else None, **_summary(judged)})
        return
    typer.echo(f"ok: {plan.job.name}")
    for label, text in judged.rows():
        typer.echo(f"  {label:<13}{text}")
    for note in plan.notes:
        typer.echo(f"  note: {note}")
    for warning in judged.verdict.warnings:
        typer.echo("\n".join(problem_lines("warning", warning)))


def _summary(judged: PlannedJob) -> dict[str, Any]:
    plan = judged.plan
    document = plan.to_dict()
    layout = {key: value for key, value in document["topology"].items() if key not in ("ranks", "stages")}
    kept = ("name", "config_hash", "batch", "steps", "samples", "tokens", "blend", "notes")
    return {
        **{key: document[key] for key in kept},
        "parameters": {"total": plan.parameters.total, "largest_rank": plan.parameters.largest_rank},
        "topology": layout,
        "data_present": plan.data_present,
        "verdict": judged.verdict.to_dict(),
    }
