"""`orchestrator submit`: train a job on a SLURM cluster."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated

import typer

from orchestrator.api.plan_rows import layout_line
from orchestrator.api.starts.continuation import NoStart, StartOptions
from orchestrator.api.starts.start_warnings import ON_A_CLUSTER, check_start
from orchestrator.api.starts.submission import (
    Request,
    described,
    requested,
    submit_job,
    with_cluster,
)
from orchestrator.api.targets import TargetOptions, load_named
from orchestrator.cli.common import AllowWarnings, AsJson, JobFiles, Overrides, RunsDir, print_json, warn
from orchestrator.cli.jobs.planning_options import Strict
from orchestrator.cli.run_start import FromScratch
from orchestrator.cli.runs.run import train_here
from orchestrator.cli.runs.starts.options import AllowChanges, New, tell_no_start
from orchestrator.cli.runs.sweeps.sweep_run import SweepOptions, start_sweep
from orchestrator.cli.terminal import Terminal
from orchestrator.errors import UserError
from orchestrator.launch.code.snapshot import place_of
from orchestrator.launch.executor_protocol import Start, executor_of, is_started_here
from orchestrator.launch.hosts import run_on_hosts
from orchestrator.launch.processes.stop_request import sigterm_as_ctrl_c
from orchestrator.launch.runs import next_run_dir
from orchestrator.launch.scripts.render import render
from orchestrator.launch.states.run_states import status_of
from orchestrator.planning.checks.preflight_checks import runs_dir_of
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec

Cluster = Annotated[
    str | None,
    typer.Option("--cluster", metavar="NAME|FILE", help="Cluster profile (name or file), instead of launch.cluster."),
]
After = Annotated[
    list[str] | None,
    typer.Option("--after", metavar="RUN", help="Start when this run has completed; may be repeated."),
]
Array = Annotated[
    list[str] | None,
    typer.Option(
        "--array",
        metavar="FIELD=V1,V2,…",
        help="Start a run for each value (each combination, if repeated), as one job array: a sweep.",
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
    """Train a job on a SLURM cluster. Submitting the same spec again attaches to its run, or continues it if it has
    ended, also after edits in safe keys only. After other edits, nothing starts without --new or --allow-changes.
    Missing data sets are made by a separate job, which the training waits for. A job with launch.executor: local or ssh
    starts on this machine, in the background.


    \b
    Example:
      orchestrator submit job.yaml --cluster juwels
      orchestrator submit job.yaml --set launch.time=4h --dry-run
      orchestrator submit finetune.yaml --after pretrain
      orchestrator submit job.yaml --array runtime.seed=1,2,3
    """
    if array:
        if from_scratch or after or strict:
            raise UserError(
                "--array starts a sweep, which does not support --from-scratch, --after or --strict",
                code="option_not_for_sweep",
            )
        sweep = SweepOptions(dry_run=dry_run, cluster=cluster, detach=True, new=new, allow_changes=allow_changes)
        start_sweep(jobs, overrides, array, replace(sweep, allow_warnings=allow_warnings), runs_dir, as_json)
        return
    named = TargetOptions(cluster)
    loaded = load_named(jobs, overrides or [], named)
    options = StartOptions(new, allow_changes, allow_warnings, from_scratch)
    folder = runs_dir_of(loaded.job, runs_dir)
    if is_started_here(loaded.job):
        if cluster or after or strict:
            raise UserError(
                f"launch.executor: {loaded.job.launch.executor} has no --cluster, --after or --strict",
                code="executor_without_scheduler",
            )
        if dry_run:
            _show_script(loaded.job, next_run_dir(loaded.job, folder), as_json=as_json)
            return
        with sigterm_as_ctrl_c():
            train_here(jobs, overrides or [], options, runs_dir, detach=True, as_json=as_json)
    named = with_cluster(loaded, named)
    asked = Terminal(as_json or dry_run)
    request = requested(loaded, named, folder, options, asked, after=after or [], strict=strict)
    if dry_run:
        check_start(request.judged.verdict, ON_A_CLUSTER, allowed=True, warn=warn)
        run = next_run_dir(loaded.job, folder) if request.found is None else request.found.run
        _show(run, request, from_scratch=from_scratch, as_json=as_json)
        return
    done = submit_job(request, loaded, folder, options, Terminal(as_json))
    if isinstance(done, NoStart):
        tell_no_start(done, as_json)
    elif as_json:
        print_json({**status_of(done.run).to_json(), "job_id": done.job_id})


def _show_script(job: JobSpec, run: RunDir, *, as_json: bool) -> None:
    """Print what each machine of a job would run that is started from this one."""
    place = run_on_hosts(run, job.launch)
    script = render(job, run_dir=place.path, python=sys.executable)
    if as_json:
        print_json({"run_dir": str(run.path), "script": script, "data_script": None})
    else:
        typer.echo(script, nl=False)


def _show(run: RunDir, request: Request, *, from_scratch: bool, as_json: bool) -> None:
    """Print what would be submitted."""
    job, judged = request.judged.plan.job, request.judged
    place = place_of(run, job, copy=False)
    start = Start(job, place, judged.cluster, from_scratch, request.before, request.missing)
    chosen = executor_of(job)
    scripts = chosen.render(start)
    if as_json:
        print_json({"run_dir": str(run.path), "script": scripts.run, "data_script": scripts.data})
        return
    typer.echo(scripts.run, nl=False)
    typer.echo(f"{layout_line(judged.plan)}\n{described(chosen, start)}", err=True)
