"""`orchestrator submit`: train a job on a SLURM cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.common import AsJson, JobFiles, Overrides, print_json, warn
from orchestrator.cli.jobs.named import Named, load_named
from orchestrator.cli.jobs.planned import Strict, judge_loaded, layout_line
from orchestrator.cli.preparing import check_sources
from orchestrator.cli.running import FromScratch, RunsDir, describe_completed, label, tell_of_others
from orchestrator.cli.runs.submitting import (
    ID_OF_THE_DATA_JOB,
    describe_active,
    describe_preparation,
    describe_request,
    jobs_before,
    only_cluster,
    submit_and_tell,
)
from orchestrator.cli.runs.sweep import start_sweep
from orchestrator.errors import UserError
from orchestrator.launch.preparation import render_preparation
from orchestrator.launch.runs import (
    attach_or_create,
    create_run,
    next_run_dir,
    run_to_continue,
    runs_dir_of,
    taken_back,
)
from orchestrator.launch.sbatch import render_sbatch
from orchestrator.launch.states import status_of
from orchestrator.launch.submission import place_of


def command(
    jobs: JobFiles,
    overrides: Overrides = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", metavar="NAME", help="Cluster profile, instead of launch.cluster.")
    ] = None,
    new: Annotated[bool, typer.Option("--new", help="Start another run although this very spec has one.")] = False,
    from_scratch: FromScratch = False,
    after: Annotated[
        list[str] | None,
        typer.Option("--after", metavar="RUN", help="Start when this run has completed; may be given several times."),
    ] = None,
    array: Annotated[
        list[str] | None,
        typer.Option(
            "--array",
            metavar="FIELD=V1,V2,…",
            help="A run for each value (for each combination, when given several times), as one job array: a sweep.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the batch script; create and submit nothing.")
    ] = False,
    strict: Strict = False,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Train a job on a SLURM cluster. The same spec again attaches to its run, or continues it when it has ended. Data
    sets that are not there are made by a job of their own, for which the training waits.

    \b
    Example:
      orchestrator submit job.yaml --cluster juwels
      orchestrator submit job.yaml --set launch.time=4h --dry-run
      orchestrator submit finetune.yaml --after pretrain
      orchestrator submit job.yaml --array runtime.seed=1,2,3
    """
    if array:
        if new or from_scratch or after or strict:
            raise UserError("--array starts a sweep, which knows no --new, --from-scratch, --after or --strict")
        start_sweep(jobs, overrides, array, dry_run, None, False, cluster, False, runs_dir, as_json)
        return
    named = Named(cluster)
    loaded = load_named(jobs, overrides or [], named)
    job = loaded.job
    judged = judge_loaded(loaded, named if job.launch.cluster is not None else Named(only_cluster()))
    judged.require(strict=strict)
    plan, profile = judged.plan, judged.cluster
    assert profile is not None, "without a name it is the only one there is"
    missing = check_sources(plan)
    folder = runs_dir_of(job, runs_dir)
    before = jobs_before(after or [], folder)
    if dry_run:
        run = (None if new else run_to_continue(job, folder, warn)) or next_run_dir(job, folder)
        place = place_of(run, job, copy=False)
        data_script = render_preparation(job, profile, place, missing) if missing else None
        before = (*before, *([ID_OF_THE_DATA_JOB] if missing else []))
        script = render_sbatch(job, profile, place, from_scratch=from_scratch, after=before)
        if as_json:
            print_json({"run_dir": str(run.path), "script": script, "data_script": data_script})
        else:
            typer.echo(script, nl=False)
            if missing:
                typer.echo(describe_preparation(run, job, profile, missing), err=True)
            typer.echo(f"{layout_line(plan)}\n{describe_request(run, job, profile, before)}", err=True)
        return
    if new:
        run, is_new = create_run(job, loaded.text, folder), True
    else:
        run, is_new = attach_or_create(job, loaded.text, folder, warn)
    status = status_of(run)
    if status.is_active:
        describe_active(status, as_json)
        return
    if status.state == "completed" and not from_scratch:
        describe_completed(run, status, as_json)
        return
    if not as_json:
        typer.echo(f"{'new' if is_new else 'continuing'} run {label(run)}: {layout_line(plan)}")
        tell_of_others(run, job, is_new, jobs, overrides or [])
    with taken_back(run, is_new, by_ctrl_c=False):
        submit_and_tell(run, job, profile, from_scratch=from_scratch, after=before, as_json=as_json)
