"""`orchestrator validate`: every error at once, or what the job would do."""

from __future__ import annotations

from typing import Any

import typer

from orchestrator.cli.common import AsJson, JobFiles, Overrides, print_json
from orchestrator.cli.planned import ClusterName, cluster_line, describe, plan_for
from orchestrator.planning.plan import Plan


def command(jobs: JobFiles, overrides: Overrides = None, cluster: ClusterName = None, as_json: AsJson = False) -> None:
    """Check a job spec: every error at once with its place, or "ok" and what the job would do.

    What its cluster cannot give is an error too: launch.cluster or --cluster names the profile.

    \b
    Example:
      orchestrator validate job.yaml
      orchestrator validate base.yaml longer.yaml --set schedule.train_iters=10
      orchestrator validate job.yaml --cluster alps
    """
    plan, profile = plan_for(jobs, overrides, cluster)
    if as_json:
        print_json({"ok": True, "cluster": profile.name if profile else None, **_summary(plan)})
        return
    typer.echo(f"ok: {plan.job.name}")
    for label, text in describe(plan):
        typer.echo(f"  {label:<9}{text}")
    if profile is not None:
        typer.echo(f"  {'cluster':<9}{cluster_line(plan.job, profile)}")
    for note in plan.notes:
        typer.echo(f"  note: {note}")


def _summary(plan: Plan) -> dict[str, Any]:
    document = plan.to_dict()
    layout = {key: value for key, value in document["topology"].items() if key not in ("ranks", "stages")}
    kept = ("name", "config_hash", "batch", "steps", "samples", "tokens", "blend", "notes")
    return {
        **{key: document[key] for key in kept},
        "parameters": {"total": plan.parameters.total, "largest_rank": plan.parameters.largest_rank},
        "topology": layout,
        "data_present": plan.data_present,
    }
