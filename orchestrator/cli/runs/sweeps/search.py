"""Starting the search of a sweep, and having its trials continued or tried again."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import typer

from orchestrator.cli.common import print_json
from orchestrator.cli.runs.starts.interrupts import Interrupts
from orchestrator.cli.runs.sweeps.start import as_record, cancel_cells, check_cells, interrupts_of_a_start
from orchestrator.cli.runs.sweeps.tables import follow, summary, what_is_retried
from orchestrator.errors import MissingDependency, UserError
from orchestrator.launch.executor_protocol import executor_of
from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.run_directory.events.search import SearchPlanned, TrialContinued, TrialRetried
from orchestrator.run_directory.rundir import named_in_command
from orchestrator.safe_path import RUNTIME_MODULE, module_command
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_resolved
from orchestrator.spec.messages.suggestions import closest
from orchestrator.sweeps.ledger import SweepDir
from orchestrator.sweeps.loading import LoadedSweep
from orchestrator.sweeps.search.budgets import iteration_at, metric_of_search, shares_of, steps_of
from orchestrator.sweeps.search.history import History
from orchestrator.sweeps.states import CellStatus, cell_statuses, left_statuses
from orchestrator.sweeps.submission import SubmitsCells, start_program

PROGRAM = "orchestrator.sweeps.search"
_SETTINGS = ("strategy", "reduction", "shares", "metric", "goal")
"""What cannot change once trials have been compared."""


def search_of(
    loaded: LoadedSweep,
    files: Sequence[Path],
    overrides: Sequence[str],
    profile: ClusterSpec | None,
    parallel: int | None,
    *,
    local: bool,
) -> SearchPlanned | None:
    """The search that a sweep asks for; None for one without.

    Raises UserError for what it cannot do with these jobs, or with their executor.
    """
    spec = loaded.spec
    if spec.search is None:
        return None
    jobs = [cell.job for cell in loaded.cells.cells]
    stops_early = not loaded.draws_cells
    if stops_early and not _can_stop(jobs[0], local=local):
        raise UserError(
            f"{spec.search.strategy} stops cells at rungs, which is done on SLURM, and on this machine without "
            "launch.hosts: use --local, or leave sweep.search out",
            code="search_not_possible_here",
        )
    if loaded.draws_cells and importlib.util.find_spec("optuna") is None:
        raise MissingDependency("a bayesian search needs optuna: pip install 'megatron-orchestrator[search]'")
    if loaded.draws_cells and parallel is None and not local:
        raise UserError(
            "a bayesian search draws each cell from the results of those before: say how many may run at once with "
            "--max-parallel or sweep.max_parallel, for example 4",
            code="search_without_limit",
        )
    return SearchPlanned(
        strategy=spec.search.strategy,
        reduction=spec.search.reduction,
        shares=shares_of(spec.search, jobs),
        metric=metric_of_search(spec, jobs[0]),
        goal=spec.goal,
        trials=spec.random.count if loaded.draws_cells and spec.random is not None else len(jobs),
        parallel=parallel or (1 if local else None),
        files=tuple(str(Path(file).absolute()) for file in files),
        overrides=tuple(overrides),
        folder=str(Path.cwd()),
        cluster=(jobs[0].launch.cluster or profile.name) if profile is not None else None,
        local=local,
    )


def _can_stop(job: JobSpec, *, local: bool) -> bool:
    """Whether the program that trains it hears after which step it is to stop."""
    return not job.launch.on_hosts if local else isinstance(executor_of(job), SubmitsCells)


def describe_search(planned: SearchPlanned, job: JobSpec) -> str:
    """What a search will do, in a line or two."""
    number, metric = planned.trials or 0, planned.metric or ""
    goal = "the larger the better" if planned.goal == "max" else "the smaller the better"
    if planned.strategy == "bayesian":
        return f"bayesian search: {number} cells, drawn by {metric} ({goal})"
    steps = [iteration_at(job, share, metric) for share in planned.shares or ()]
    reduction = planned.reduction or 2
    said = ", ".join(f"{step:,}" for step in steps)
    total = _least_steps(steps, number, reduction)
    share = total / (number * steps_of(job))
    return (
        f"{planned.strategy} search: cells are compared by {metric} ({goal}) after {said} steps, and 1 in {reduction} "
        f"trains on: about {total:,} of {number * steps_of(job):,} steps ({share:.0%})"
    )


def _least_steps(steps: Sequence[int], number: int, reduction: int) -> int:
    """The steps of synchronous halving."""
    total, before = 0, 0
    for step in steps:
        total += number * (step - before)
        number, before = max(1, number // reduction), step
    return total


def refuse_other_search(sweep: SweepDir, search: SearchPlanned | None) -> None:
    """Raises UserError where the sweep has begun a search with other settings, which would compare unlike trials."""
    before = sweep.search()
    if before is None or not any(trial.budget is not None for trial in before.trials.values()):
        return
    differ = [name for name in _SETTINGS if getattr(before.planned, name) != getattr(search, name, None)]
    if differ:
        raise UserError(
            f"sweep {sweep.name} has begun a search with another {' and '.join(differ)}: give this one its own name "
            "(sweep.name)",
            code="search_differs",
        )


def begin_search(sweep: SweepDir, search: SearchPlanned, interrupts: Interrupts) -> None:
    """Start the program of a search, which goes on by itself."""
    sweep.append(search)
    start_searching(sweep, interrupts)


def start_searching(sweep: SweepDir, interrupts: Interrupts, module: str = RUNTIME_MODULE) -> None:
    """The same of a search that has been planned; where its program runs, it takes note of what is in the ledger."""
    history = sweep.search()
    assert history is not None
    if history.is_running:
        return
    interrupts.hold()
    before = history.started

    def has_begun() -> bool:
        now = sweep.search()
        return now is not None and now.started > before

    command = module_command(PROGRAM, str(sweep.path), "--module", module)
    start_program(sweep, command, Path("/dev/null"), has_begun)


def go_on_searching(sweep: SweepDir, decide: Callable[[], object], *, detach: bool, as_json: bool) -> None:
    """Write down what a person decides of a search, and have its program act on it."""
    with interrupts_of_a_start() as interrupts:
        with sweep.alone():
            decide()
            start_searching(sweep, interrupts)
        history = sweep.search()
        here = history is not None and history.planned.local is True
        conclude_search(sweep, interrupts, wait=here and not detach, as_json=as_json)


def conclude_search(sweep: SweepDir, interrupts: Interrupts, *, wait: bool, as_json: bool) -> None:
    """Say how the search is; with `wait` see it through to its end. Exit code 1 where cells have failed, or where the
    search could not go on.
    """
    try:
        interrupts.let_through()
        if wait:
            follow(sweep, quiet=as_json)
    except KeyboardInterrupt:
        typer.echo("\nthe cells save and stop; Ctrl-C again leaves them to it", err=True)
        cancel_cells(sweep, now=False)
        follow(sweep, quiet=as_json)
    planned = sweep.planned()
    mine = cell_statuses(sweep, planned)
    statuses = [*mine, *left_statuses(sweep)]
    history = sweep.search()
    if as_json:
        print_json(as_record(sweep, statuses))
    else:
        typer.echo(summary(sweep, planned, statuses))
        if way_on := what_is_retried(sweep, mine):
            typer.echo(way_on)
        if history is not None and history.is_running:
            _tell_where_it_runs(sweep, history)
    ended_well = history is not None and (history.is_running or _is_over(history))
    if any(status.state == "failed" for status in mine) or not ended_well:
        raise typer.Exit(1)


def _is_over(history: History) -> bool:
    return history.ended is not None and not history.ended.problem and not history.ended.cancelled


def _tell_where_it_runs(sweep: SweepDir, history: History) -> None:
    named = named_in_command(sweep.name, sweep.runs_dir)
    typer.echo(f"      follow it with: orchestrator sweep status {named} --watch")
    if not history.planned.local and history.driver is not None:
        typer.echo(
            f"      pid {history.driver.pid} on {history.driver.host} starts its cells; if it ends, the same "
            "`sweep run` goes on"
        )


def continue_trial(sweep: SweepDir, cell: str, *, local: bool) -> None:
    """Have a cell that its search has stopped trained to its end, `local`: here. Raises UserError for any other."""
    status, history = _stopped_trial(sweep, cell)
    if local and not history.planned.local:
        if history.is_running:
            where = history.planned.cluster or "its executor"
            raise UserError(
                f"the search of sweep {sweep.name} is under way on {where}: leave out --local", code="search_is_active"
            )
        check_cells([load_resolved(status.status.run.resolved())], local=True)
        here = {"local": True, "cluster": None, "parallel": 1, "time": time.time()}
        sweep.append(SearchPlanned(**{**vars(history.planned), **here}))
    sweep.append(TrialContinued(cell=status.entry.id))


def show_continuation(sweep: SweepDir, cell: str, *, local: bool, as_json: bool) -> None:
    """What `continue_trial` would do. Raises UserError as it does."""
    status, history = _stopped_trial(sweep, cell)
    run = status.status.run
    job, begin = load_resolved(run.resolved()), committed(run)
    first, last = begin[-1].iteration if begin else 0, steps_of(job)
    is_here = local or history.planned.local is True
    cluster = None if is_here else history.planned.cluster
    if as_json:
        steps = {"iteration": first, "train_iters": last}
        print_json({"cell": status.entry.id, "run_id": run.run_id, **steps, "local": is_here, "cluster": cluster})
        return
    where = "this machine" if is_here else cluster or executor_of(job).name
    typer.echo(f"cell {status.entry.name} would continue on {where} from step {first:,} to {last:,}: run {run.path}")


def _stopped_trial(sweep: SweepDir, cell: str) -> tuple[CellStatus, History]:
    """A cell that its search has stopped. Raises UserError for any other."""
    history = sweep.search()
    if history is None:
        raise UserError(
            f"sweep {sweep.name} has no search that stops cells: `orchestrator resume RUN` continues a run",
            code="no_stopped_cells",
        )
    statuses = cell_statuses(sweep, sweep.planned())
    found = [each for each in statuses if cell in (each.entry.name, each.entry.id, each.status.run.run_id)]
    if len(found) != 1:
        near = closest(cell, [each.entry.name for each in statuses])
        hint = f"did you mean {' or '.join(near)}?" if near else f"`sweep status {sweep.name}` lists them"
        raise UserError(f"sweep {sweep.name} has no cell {cell}: {hint}", code="no_cell")
    [status] = found
    trial = history.trials[status.entry.id]
    if status.state != "stopped" or trial.stopped is None:
        raise UserError(
            f"cell {status.entry.name} was not stopped by the search: it is {status.state}", code="cell_not_stopped"
        )
    return status, history


def retry_trials(sweep: SweepDir) -> list[str]:
    """Have the cells that failed tried again; their ids."""
    failed = [each.entry.id for each in cell_statuses(sweep, sweep.planned()) if each.state == "failed"]
    for cell in failed:
        sweep.append(TrialRetried(cell=cell))
    return failed
