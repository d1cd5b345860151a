"""`orchestrator submit`: train a job on a SLURM cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.api.plan_rows import layout_line
from orchestrator.api.planned_job import PlannedJob, judge_loaded
from orchestrator.api.targets import TargetOptions, load_named
from orchestrator.cli.common import AsJson, JobFiles, Overrides, RunsDir, print_json
from orchestrator.cli.data_preparation import check_sources
from orchestrator.cli.jobs.planning_options import Strict
from orchestrator.cli.jobs.preflight import ON_A_CLUSTER, AllowWarnings, check_start
from orchestrator.cli.run_start import FromScratch, label
from orchestrator.cli.runs.starts.continuation import (
    AllowChanges,
    New,
    begin_run,
    needs_no_start,
    run_continued,
    take_changes,
)
from orchestrator.cli.runs.starts.submission import (
    described,
    jobs_before,
    only_cluster,
    submit_and_tell,
)
from orchestrator.cli.runs.sweep import SweepOptions, start_sweep
from orchestrator.errors import UserError
from orchestrator.launch.continuation import Continuation
from orchestrator.launch.executor import Start, executor_of
from orchestrator.launch.runs import next_run_dir, taken_back
from orchestrator.launch.snapshot import place_of
from orchestrator.launch.start_checks import refuse_without_checkpoint
from orchestrator.launch.states.run_states import status_of
from orchestrator.planning.checks.preflight_checks import runs_dir_of
from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.spec.loading import LoadedJob

Cluster = Annotated[
    str | None,
    typer.Option("--cluster", metavar="NAME|FILE", help="Cluster profile (name or file), not launch.cluster."),
]
After = Annotated[
    list[str] | None,
    typer.Option("--after", metavar="RUN", help="Start when this run has completed; may be given several times."),
]
Array = Annotated[
    list[str] | None,
    typer.Option(
        "--array",
        metavar="FIELD=V1,V2,…",
        help="A run for each value (for each combination, when given several times), as one job array: a sweep.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the batch script; create and submit nothing.")]


def command(
    jobs: JobFiles,
    overrides: Overrides = None,
    cluster: Cluster = None,
    new: New = False,
    allow_changes: AllowChanges = False,
    allow_warnings: AllowWarnings = False,
    from_scratch: FromScratch = False,
    after: After = None,
    array: Array = None,
    dry_run: DryRun = False,
    strict: Strict = False,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Train a job on a SLURM cluster. The same spec again attaches to its run, or continues it if it has ended. A spec
    with edits in safe keys only continues its run too. After other edits nothing starts without --new or
    --allow-changes. Missing data sets are made by a job of their own, which the training waits for.

    \b
    Example:
      orchestrator submit job.yaml --cluster juwels
      orchestrator submit job.yaml --set launch.time=4h --dry-run
      orchestrator submit finetune.yaml --after pretrain
      orchestrator submit job.yaml --array runtime.seed=1,2,3
    """
    if array:
        if from_scratch or after or strict:
            raise UserError("--array starts a sweep, which has no --from-scratch, --after or --strict")
        asked = SweepOptions(dry_run=dry_run, cluster=cluster, new=new, allow_changes=allow_changes)
        start_sweep(jobs, overrides, array, replace(asked, allow_warnings=allow_warnings), runs_dir, as_json)
        return
    loaded, named = _loaded(jobs, overrides or [], cluster)
    folder = runs_dir_of(loaded.job, runs_dir)
    judge_loaded(loaded, named, runs_dir=folder).require(strict=False)  # before anybody is asked anything
    found = run_continued(
        loaded, folder, new=new, allow_changes=allow_changes, from_scratch=from_scratch, as_json=as_json or dry_run
    )
    saved = () if found is None or from_scratch else committed(found.run)
    judged = judge_loaded(loaded, named, runs_dir=folder, saved=saved)
    judged.require(strict=strict)
    missing = check_sources(judged.plan)
    before = jobs_before(after or [], folder)
    if dry_run:
        check_start(judged.verdict, ON_A_CLUSTER, allowed=True)
        run = next_run_dir(loaded.job, folder) if found is None else found.run
        place = place_of(run, judged.plan.job, copy=False)
        _show(judged, Start(judged.plan.job, place, judged.cluster, from_scratch, before, missing), as_json=as_json)
        return
    is_new = found is None
    if found is None:
        check_start(judged.verdict, ON_A_CLUSTER, allowed=allow_warnings)
        found, is_new = begin_run(loaded, folder, new=new)
    run, status = found.run, status_of(found.run)
    if needs_no_start(found, status, is_on_its_way=status.is_active, from_scratch=from_scratch, as_json=as_json):
        return
    if not is_new:
        check_start(judged.verdict, ON_A_CLUSTER, allowed=allow_warnings)
        refuse_without_checkpoint(run, from_scratch=from_scratch)
    _submit(found, loaded.text, judged, before, is_new=is_new, from_scratch=from_scratch, as_json=as_json)


def _submit(
    found: Continuation,
    written: str,
    judged: PlannedJob,
    before: tuple[str, ...],
    *,
    is_new: bool,
    from_scratch: bool,
    as_json: bool,
) -> None:
    """Submit the job of a run, behind the jobs `before`. `written`: its spec as a person wrote it."""
    run = found.run
    with taken_back(run, is_new, by_ctrl_c=False):
        take_changes(found, written, from_scratch=from_scratch, as_json=as_json)
        if not as_json:
            typer.echo(f"{'new' if is_new else 'continuing'} run {label(run)}: {layout_line(judged.plan)}")
        submit_and_tell(run, found.job, judged.cluster, from_scratch=from_scratch, after=before, as_json=as_json)


def _loaded(jobs: list[Path], overrides: list[str], cluster: str | None) -> tuple[LoadedJob, TargetOptions]:
    """A job, and the cluster that it is for: without a name the only one there is."""
    named = TargetOptions(cluster)
    loaded = load_named(jobs, overrides, named)
    if loaded.job.launch.cluster is not None or not executor_of(loaded.job).has_clusters:
        return loaded, named
    return loaded, TargetOptions(only_cluster())


def _show(judged: PlannedJob, start: Start, *, as_json: bool) -> None:
    """Print what would be submitted."""
    chosen = executor_of(start.job)
    scripts = chosen.render(start)
    if as_json:
        print_json({"run_dir": str(start.run.path), "script": scripts.run, "data_script": scripts.data})
        return
    typer.echo(scripts.run, nl=False)
    typer.echo(f"{layout_line(judged.plan)}\n{described(chosen, start)}", err=True)
