"""`orchestrator resume`: continue a run, with its spec or a changed one."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from os.path import abspath
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.api.planned_job import plan_loaded
from orchestrator.cli.common import AsJson, Overrides, RunName, RunsDir
from orchestrator.cli.data_preparation import check_sources
from orchestrator.cli.jobs.preflight import HERE, ON_A_CLUSTER, AllowWarnings, check_start, verdict_on
from orchestrator.cli.run_start import (
    Detach,
    FromScratch,
    check_installed,
    describe_completed,
    label,
    length_key,
    start,
    wait_for_previous,
)
from orchestrator.cli.runs.starts.submission import cluster_of, submit_and_tell
from orchestrator.data.samples.position import position_of, seen_again
from orchestrator.errors import RunIsHeld, UserError
from orchestrator.launch.processes.stop_request import sigterm_as_ctrl_c
from orchestrator.launch.runs import add_generation, find_run, written_with
from orchestrator.launch.start_checks import check_startable, refuse_imported, refuse_without_checkpoint
from orchestrator.launch.states.run_states import RunStatus, status_of
from orchestrator.planning.blend import blend_report
from orchestrator.planning.training_schedule.batch import BatchSchedule
from orchestrator.planning.training_schedule.progress import stored_progress
from orchestrator.run_directory.checkpoints.commit_markers import Commit, verify
from orchestrator.run_directory.checkpoints.newest import latest_valid
from orchestrator.run_directory.rundir import RunDir, default_runs_dir, in_command
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import LoadedJob, dump_resolved, load_job, load_resolved, load_text
from orchestrator.spec.schema.diff import Change, diff_jobs

_ORDER = ("forbidden", "trajectory", "safe")
_WORDS = {
    "forbidden": "forbidden: this run cannot go on with it",
    "trajectory": "changes the trajectory: the losses will differ from those of an unchanged run",
    "safe": "safe",
}


def command(
    run_name: RunName,
    jobs: Annotated[
        list[Path] | None, typer.Argument(metavar="[JOB.yaml...]", help="A changed spec to continue with.")
    ] = None,
    overrides: Overrides = None,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Accept changes that alter the course of the training.")
    ] = False,
    allow_warnings: AllowWarnings = False,
    from_scratch: FromScratch = False,
    detach: Detach = False,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Continue a run from its last checkpoint, where it ran before: here, or as a job on its cluster. A changed spec is
    compared with the old one first.

    \b
    Example:
      orchestrator resume gpt-small
      orchestrator resume 3f9a --set schedule.train_iters=2000 --allow-changes
      orchestrator resume 3f9a job.yaml
    """
    run = find_run(run_name, runs_dir or default_runs_dir())
    refuse_imported(run)
    old = load_resolved(run.resolved())
    changed = changed_job(run, old, jobs or [], overrides or [])
    changes = diff_jobs(old, changed.job) if changed else []
    if changed is not None and changes:
        if not as_json:
            typer.echo(describe_changes(changes))
            if not from_scratch and (repeated := samples_again(run, changed.job)) is not None:
                typer.echo(repeated)
        refuse(changes, allow_changes, another=lambda: _another(run, jobs or [], overrides or []))
        check_sources(plan_loaded(changed))
    wait_for_previous(run, quiet=as_json)
    status = status_of(run)
    if status.state == "completed" and not changes and not from_scratch:
        describe_completed(run, status, as_json)
        return
    job = changed.job if changed else old
    cluster = _place_of(run, job, status, from_scratch=from_scratch, allow_warnings=allow_warnings)
    if changed is not None and changes:  # what was refused has changed nothing
        if not from_scratch:
            check_length(run, changed.job, quiet=as_json)
        add_generation(run, changed.job, changed.text if jobs else written_with(run, overrides or []))
    if not as_json:
        typer.echo(f"resuming run {label(run)} in {run.path} ({status.describe()})")
    if cluster is not None:  # where it ran before
        submit_and_tell(run, job, cluster, from_scratch=from_scratch, after=(), as_json=as_json)
        return
    check_installed(job)
    with sigterm_as_ctrl_c():
        code = start(run, job, from_scratch=from_scratch, detach=detach, as_json=as_json)
    raise typer.Exit(code)


def _place_of(
    run: RunDir, job: JobSpec, status: RunStatus, *, from_scratch: bool, allow_warnings: bool
) -> ClusterSpec | None:
    """The cluster that the job starts on, None for this machine; it is where the run was. Raises what hinders it."""
    if status.is_active and status.job is not None:
        raise RunIsHeld(
            f"run {label(run)} is on its way already ({status.describe()}).\n"
            f"      Follow it with `orchestrator logs {in_command(run)} -f`, or stop it with "
            f"`orchestrator cancel {in_command(run)}`."
        )
    if status.job is None:
        check_startable(run, job, from_scratch=from_scratch)
    else:
        refuse_without_checkpoint(run, from_scratch=from_scratch)
    saved = () if from_scratch else status.checkpoints
    cluster = None if status.job is None else cluster_of(job)
    verdict = verdict_on(job, cluster, run.path.parent.parent, saved)
    check_start(verdict, HERE if cluster is None else ON_A_CLUSTER, allowed=allow_warnings)
    return cluster


def _newest(run: RunDir) -> Commit | None:
    """The checkpoint that the ranks will continue from, as far as file sizes show."""
    return latest_valid(run, findings_of=lambda path: verify(path, contents=False))


def check_length(run: RunDir, job: JobSpec, *, quiet: bool) -> None:
    """Say where the training ends, when batches or sequences of another size move that. Raises UserError when it has
    consumed all that the spec gives it, unless it is to end exactly where it stands.
    """
    newest = _newest(run)
    if newest is None:
        return
    known = stored_progress(run, newest, run.events())
    done, by_itself, schedule = known.progress, BatchSchedule.of(job), BatchSchedule.of(job, known.progress)
    whole = f"{by_itself.train_iters:,} steps with this spec are {by_itself.train_samples:,} samples in total"
    so_far, unit = f"{done.samples:,} are done at iteration {done.iteration}", "samples"
    if job.schedule.train_tokens is not None:
        whole = f"schedule.train_tokens is {job.schedule.train_tokens:,}"
        so_far, unit = f"{done.tokens:,} tokens are done at iteration {done.iteration}", "tokens"
    if schedule.train_iters == done.iteration != by_itself.train_iters:
        step = job.global_batch_size * (job.tokens_per_sample if unit == "tokens" else 1)
        raise UserError(
            f"nothing was started: {whole}, and {so_far}.\n"
            f"      To go on from there, write a longer schedule.{length_key(job)}; each 100 steps more are "
            f"{100 * step:,} {unit}."
        )
    if schedule.train_iters != by_itself.train_iters and not quiet:
        typer.echo(f"it ends at iteration {schedule.train_iters}: {whole}, and {so_far}")


def samples_again(run: RunDir, job: JobSpec) -> str | None:
    """How many samples of a changed job repeat text that the run has read in this epoch, cut into other samples; None
    where nothing is cut anew.
    """
    newest = _newest(run)
    if newest is None:
        return None
    known = stored_progress(run, newest, run.events())
    consumed, schedule = known.progress.samples, BatchSchedule.of(job, known.progress)
    position = position_of(job, known.position, consumed, schedule.drawn_samples)
    if position is None or position == known.position:
        return None
    held = {abspath(source.path): source.tokens_held for source in blend_report(job, schedule).train.sources}
    again = seen_again(position, schedule.train_samples, held)
    if again == 0:
        return None
    how_many = "an unknown number" if again is None else f"about {again:,}"
    to_come = schedule.train_samples - consumed
    return f"the data is cut into other samples: of the remaining {to_come:,}, {how_many} repeat text of this epoch"


def changed_job(run: RunDir, old: JobSpec, files: list[Path], overrides: list[str]) -> LoadedJob | None:
    """The spec to continue with, when files or overrides were given. Raises SpecError when it is wrong."""
    if files:
        return load_job(files, overrides)
    if overrides:
        return load_text(dump_resolved(old), str(run.resolved()), overrides)
    return None


def describe_changes(changes: list[Change]) -> str:
    """The difference, worst first."""
    lines = []
    for kind in _ORDER:
        of_kind = [change for change in changes if change.kind == kind]
        if of_kind:
            lines.append(_WORDS[kind])
        for change in of_kind:
            lines.append(
                f"  {change.path}: {change.old} -> {change.new}" + (f"   ({change.reason})" if change.reason else "")
            )
    return "\n".join(lines)


def _another(run: RunDir, files: list[Path], overrides: list[str]) -> str:
    """The command that trains the changed spec as another run."""
    words = [*map(str, files or [run.resolved()]), *(word for each in overrides for word in ("--set", each))]
    start = "submit" if status_of(run).job is not None else "run"
    return shlex.join(["orchestrator", start, *words, "--new", "--runs-dir", str(run.path.parent.parent)])


def refuse(changes: list[Change], allow_changes: bool, another: Callable[[], str]) -> None:
    """Raises UserError when some change is forbidden, or alters the trajectory and was not allowed. `another` gives the
    command that starts another run with them, for which a scheduler may have to be asked.
    """
    forbidden = [f"{change.path}: {change.reason}" for change in changes if change.kind == "forbidden"]
    if forbidden:
        raise UserError(
            "this run cannot be continued with that spec:\n      "
            + "\n      ".join(forbidden)
            + f"\n      To train it as another run, from the start: {another()}"
        )
    altering = [change.path for change in changes if change.kind == "trajectory"]
    if altering and not allow_changes:
        raise UserError(
            f"nothing was started: {', '.join(altering)} would change the course of the training.\n"
            "      If that is what you want, add --allow-changes."
        )
