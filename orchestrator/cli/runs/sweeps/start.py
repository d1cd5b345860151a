"""Starting and stopping the cells of a sweep from the command line: what the commands of `sweep` share."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import typer

from orchestrator.api.starts.continuation import all_changes, choose
from orchestrator.api.starts.data_preparation import check_data
from orchestrator.api.starts.start_warnings import HERE, ON_A_CLUSTER, check_start, verdict_on_all
from orchestrator.api.targets import TargetOptions, gpu_problems, profile_of
from orchestrator.cli.common import print_json, warn
from orchestrator.cli.runs.starts.interrupts import Interrupts
from orchestrator.cli.runs.sweeps.tables import STAY_DELETED, follow, summary, what_is_retried
from orchestrator.cli.terminal import Terminal
from orchestrator.cluster_profiles import load_profile
from orchestrator.conversion.exportability import export_problems
from orchestrator.errors import Problem, SpecError, UserError
from orchestrator.launch.continuation import has_steps_left
from orchestrator.launch.executor_protocol import executor, executor_of, is_started_here
from orchestrator.launch.notifications.process import tell_of_withdrawn
from orchestrator.launch.processes.stop_request import request_stop
from orchestrator.launch.runs import add_generation
from orchestrator.launch.start_checks import check_installed
from orchestrator.planning.checks.partition_limits import what_is_refused
from orchestrator.planning.checks.plugin_checks import plugin_problems
from orchestrator.planning.forecast import forecast
from orchestrator.planning.plan import Plan, make_plan
from orchestrator.planning.warnings import too_large
from orchestrator.profile_files import known_profiles
from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.run_directory.events.ledger import CellsCancelled
from orchestrator.run_directory.events.types import Withdrawn
from orchestrator.run_directory.rundir import in_command, named_in_command
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import LoadedDocument
from orchestrator.sweeps.cells import Check
from orchestrator.sweeps.ending import tell_of_sweep
from orchestrator.sweeps.ledger import Submission, SweepDir
from orchestrator.sweeps.loading import LoadedSweep
from orchestrator.sweeps.plans import CellRun, match_cells
from orchestrator.sweeps.states import UNDER_WAY, CellStatus, cell_statuses, counts, left_statuses
from orchestrator.sweeps.submission import CellStart, SweepStart, local_request, start_driver, submit_cells


def cancel_cells(sweep: SweepDir, *, now: bool) -> tuple[list[CellStatus], list[CellStatus]]:
    """Stop what is under way; returns the cells that waited and those that ran."""
    statuses = cell_statuses(sweep, sweep.planned())
    running = [status for status in statuses if status.state == "running"]
    pending = [status for status in statuses if status.state == "pending"]
    search = sweep.search()
    if running or pending or (search is not None and search.is_running):
        sweep.append(CellsCancelled(cells=tuple(status.entry.id for status in (*pending, *running))))
    if any(
        status.status.job is None for status in pending
    ):  # one that starts here at this moment reads that or says so
        begun = {status.entry.id for status in cell_statuses(sweep, sweep.planned()) if status.state == "running"}
        running += [status for status in pending if status.entry.id in begun]
        pending = [status for status in pending if status.entry.id not in begun]
    waiting = [(status.status.run, status.status.job) for status in pending if status.status.job is not None]
    for name in {job.executor for _, job in waiting}:
        executor(name).cancel(job.job_id for _, job in waiting if job.executor == name)
    for run, job in waiting:
        run.append(Withdrawn(job_id=job.job_id, by="orchestrator sweep cancel"))
    if waiting:
        tell_of_withdrawn(run for run, _ in waiting)
        tell_of_sweep(sweep, wait=False)
    for status in running:
        request_stop(status.status.run, "orchestrator sweep cancel", at_once=now)
    return pending, running


def refusals(*, dry_run: bool) -> Check:
    """Says why a job's cluster would not take it, or that it does not fit its GPUs. A dry run needs no cluster. Raises
    SpecError where there is no such cluster or GPU: that is no cell that a sweep can do without.
    """
    profiles: dict[str | None, tuple[LoadedDocument[ClusterSpec] | None, list[Problem]]] = {}

    def check(plan: Plan) -> Sequence[Problem]:
        job = plan.job
        if is_started_here(job):
            return [*export_problems(job), *plugin_problems(job, plan.data_sets)]
        name = job.launch.cluster
        if name not in profiles:
            only = None if name or not executor_of(job).has_clusters else _only_cluster(dry_run=dry_run)
            profiles[name] = profile_of(job, TargetOptions(only))
        profile, misnamed = profiles[name]
        misnamed = [*misnamed, *gpu_problems(job, TargetOptions(), profile)]
        cluster = profile.value if profile is not None else None
        refused = what_is_refused(job, cluster) if cluster is not None else []
        if misnamed:
            raise SpecError([*misnamed, *refused])
        return [
            *refused,
            *too_large(forecast(plan, cluster), cluster),
            *export_problems(job),
            *plugin_problems(job, plan.data_sets),
        ]

    return check


def cluster_of(job: JobSpec, *, dry_run: bool = False) -> ClusterSpec | None:
    """The profile of the job's cluster; where it names none, the only one there is. A dry run needs none, and some
    executors have none.
    """
    if not executor_of(job).has_clusters:
        return None
    name = job.launch.cluster or _only_cluster(dry_run=dry_run)
    return load_profile(name) if name is not None else None


def _only_cluster(*, dry_run: bool) -> str | None:
    known = list(known_profiles())
    if len(known) != 1 and not dry_run:
        which = f"name it with --cluster or launch.cluster: {', '.join(known)}" if known else "there is no profile yet"
        raise UserError(
            f"on which cluster? {which[0].upper()}{which[1:]}.\n"
            "      `orchestrator cluster init` writes a profile; --local runs the cells on this machine.",
            code="cluster_not_named",
        )
    return known[0] if len(known) == 1 else None


def last_submission(statuses: Sequence[CellStatus]) -> Submission | None:
    """How cells of the sweep were last started."""
    made = [status.submission for status in statuses if status.submission is not None]
    return max(made, key=lambda submission: submission.time, default=None)


def check_cells(jobs: Sequence[JobSpec], *, local: bool) -> None:
    """Raises what would keep all cells with some data set from training, or from being submitted."""
    for job in {job.data.model_dump_json(): job for job in jobs}.values():
        check_data(make_plan(job))
    if local:
        check_installed(jobs[0])
    else:
        executor_of(jobs[0]).check()


def warn_of_data(jobs: Sequence[JobSpec]) -> None:
    """Say which data sets are not there, for a dry run."""
    for job in {job.data.model_dump_json(): job for job in jobs}.values():
        try:
            check_data(make_plan(job))
        except UserError as error:
            warn(str(error))


def warn_of_dropped(sweep: SweepDir, cells: Collection[str]) -> None:
    """Say which cells the sweep would not have any more; those under way no command for the sweep reaches then."""
    if not sweep.is_planned:
        return
    statuses = cell_statuses(sweep, sweep.planned())
    dropped = [status for status in statuses if status.entry.id not in cells and status.state != "missing"]
    if not dropped:
        return
    which = f"{len(dropped)} of the {len(statuses)} cells" if len(dropped) < len(statuses) else "no cell"
    what = "are not in it now" if len(dropped) < len(statuses) else "that it had is in it now"
    warn(
        f"sweep {sweep.name} has changed: {which} {what}. `sweep status` and `sweep results` still show the cells "
        "that were started, marked as left; give the sweep its own name (sweep.name) to keep both"
    )
    for status in dropped:
        if status.state in UNDER_WAY:
            run = in_command(status.status.run)
            warn(f"cell {status.entry.name} left the sweep and is {status.state}: orchestrator cancel {run} stops it")


def cells_continued(
    sweep: SweepDir,
    loaded: LoadedSweep,
    *,
    new: bool,
    with_deleted: bool,
    allow_changes: bool,
    as_json: bool,
    dry_run: bool = False,
) -> list[CellRun]:
    """The run of each cell, after a person was asked about those whose base was changed in more than safe keys. Raises
    SpecChanged where nobody can be asked.
    """
    if new and allow_changes:
        raise UserError(
            "--new starts other runs, and --allow-changes continues the existing ones: choose one",
            code="conflicting_options",
        )
    matched = match_cells(sweep, loaded, new=new, with_deleted=with_deleted)
    unsettled = [each.found for each in matched if each.found is not None and not each.found.is_settled]
    if unsettled and (not allow_changes or any(each.is_forbidden for each in unsettled)):
        what = f"{len(unsettled)} of the {len(matched)} cells of sweep {sweep.name} have runs with another spec"
        if choose(unsettled, what, Terminal(as_json or dry_run)) == "new":
            return match_cells(sweep, loaded, new=True, with_deleted=with_deleted)
    return matched


def take_changes_of(matched: Sequence[CellRun], statuses: Sequence[CellStatus], *, as_json: bool) -> list[Path]:
    """Make the edited specs those of the cells, and say so; cells under way keep theirs. Returns the files of these
    specs.
    """
    known = {status.entry.id: status for status in statuses}
    live, taking = [], []
    for each in matched:
        if each.found is None or not each.found.changes:
            continue
        status = known[each.id]
        if status.state in UNDER_WAY:
            live.append(each)
        elif status.state != "completed" or has_steps_left(each.found, status.status):
            taking.append(each)
    taken = [
        add_generation(each.found.run, each.job, each.cell.loaded.text) for each in taking if each.found is not None
    ]
    for these, what in ((taking, "continue with"), (live, "are under way, and do not get")):
        if these:
            changes = all_changes([each.found for each in these if each.found is not None])
            typer.echo(f"{len(these)} cells {what} these changes:\n{changes}", err=as_json)
    if live:
        typer.echo(
            "      `sweep cancel` lets them save and stop; `sweep run` then continues them with the changes",
            err=as_json,
        )
    return taken


def check_room(starts: Sequence[CellStart], profile: ClusterSpec | None, folder: Path, *, allowed: bool) -> None:
    """Print the warnings of the cells that are about to start. Raises SpecError for what stops them."""
    jobs = [(start.job, committed(start.run)) for start in starts]
    verdict = verdict_on_all(jobs, profile, folder)
    check_start(verdict, HERE if profile is None else ON_A_CLUSTER, allowed=allowed, warn=warn)


def interrupts_of_a_start() -> Interrupts:
    """For `begin` and `conclude`: a Ctrl-C between them stops the cells, which else go on without anybody."""
    return Interrupts(lambda: typer.echo("\nthe cells are being started, and will be stopped then", err=True))


def begin(
    sweep: SweepDir,
    starts: Sequence[CellStart],
    profile: ClusterSpec | None,
    parallel: int | None,
    interrupts: Interrupts,
    *,
    local: bool,
    as_json: bool,
) -> None:
    """Hand the cells to their executor, or to a driver on this machine."""
    if not starts:
        return
    if local:
        interrupts.hold()
        start_driver(sweep, local_request(sweep, starts, max_parallel=parallel))
        return
    arrays = submit_cells(SweepStart(sweep, starts, profile, parallel))
    if as_json:
        return
    where = profile.name if profile is not None else executor_of(starts[0].job).name
    for array in arrays:
        limit = f", at most {parallel} at once" if parallel else ""
        kind = "array" if array["tasks"] > 1 else "job"
        typer.echo(f"submitted {array['tasks']} cells as {kind} {array['job_id']} on {where}{limit}")
    if len(arrays) > 1:
        typer.echo("      cells of different sizes cannot share an array; each array counts separately")


def conclude(
    sweep: SweepDir, starts: Sequence[CellStart], interrupts: Interrupts, *, wait: bool, as_json: bool
) -> None:
    """Tell what was started; on this machine, see it through to its end. Exit code 1 where a cell had failed before, in
    every way of starting others, and where one that was waited for has not completed.
    """
    try:
        interrupts.let_through()
        if wait and starts:
            follow(sweep, quiet=as_json)
    except KeyboardInterrupt:
        typer.echo("\nthe cells save and stop; Ctrl-C again leaves them to it", err=True)
        cancel_cells(sweep, now=False)
        follow(sweep, quiet=as_json)
        wait = True
    mine = cell_statuses(sweep, sweep.planned())
    statuses = [*mine, *left_statuses(sweep)]
    if as_json:
        print_json({**as_record(sweep, statuses), "started": [start.id for start in starts]})
    else:
        _tell(sweep, starts, statuses)
    started = {start.id for start in starts}
    before = [status.state for status in mine if status.entry.id not in started]
    waited = [status.state for status in mine if wait and status.entry.id in started]
    if "failed" in before or any(state != "completed" for state in waited):
        raise typer.Exit(1)


def _tell(sweep: SweepDir, starts: Sequence[CellStart], statuses: Sequence[CellStatus]) -> None:
    if not starts:
        typer.echo(f"sweep {sweep.name}: nothing to start")
    typer.echo(summary(sweep, sweep.planned(), statuses))
    statuses = [status for status in statuses if not status.left]
    if way_on := what_is_retried(sweep, statuses):
        typer.echo(way_on)
    if any(status.state == "deleted" for status in statuses):
        typer.echo(STAY_DELETED)
    if any(status.state == "failed" and status.status.cause == "lost" for status in statuses):
        typer.echo(f"      the output of lost cells' tasks is in {sweep.submitit}")
    if any(status.state in UNDER_WAY for status in statuses):
        named = named_in_command(sweep.name, sweep.runs_dir)
        typer.echo(f"      follow it with: orchestrator sweep status {named} --watch")


def as_record(sweep: SweepDir, statuses: Sequence[CellStatus]) -> dict[str, object]:
    planned, search = sweep.planned(), sweep.search()
    return {
        "sweep": sweep.name,
        "path": str(sweep.path),
        "states": counts(status for status in statuses if not status.left),
        "cells": [status.to_json() for status in statuses],
        "pruned": planned.pruned,
    } | ({} if search is None else {"search": search.to_json()})
