"""How a sweep is shown: its cells, how far they are, what they have come to."""

from __future__ import annotations

import csv
import io
import sys
import time
from collections import Counter
from collections.abc import Sequence
from math import isfinite

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from orchestrator.cli.common import aligned
from orchestrator.errors import UserError
from orchestrator.fields.formatting import shorten
from orchestrator.review.sweeps.analysis import Point, importance
from orchestrator.run_directory.rundir import named_in_command
from orchestrator.spec.documents.field_names import short_name
from orchestrator.spec.messages.suggestions import closest
from orchestrator.spec.rules.parallelism.topology import SEQUENCE_PARALLEL_WITHOUT_TP
from orchestrator.sweeps.cells import Cell, Cells, PrunedCell
from orchestrator.sweeps.ledger import SweepDir, SweepPlan
from orchestrator.sweeps.loading import LoadedSweep
from orchestrator.sweeps.states import STARTED_BY_RETRY, UNDER_WAY, CellStatus, cell_statuses, counts, metric_of

SECONDS_BETWEEN_LOOKS = 2.0
SECONDS_BETWEEN_LINES = 30.0
"""Of how far a cell is, where lines are printed."""
STAY_DELETED = "      deleted cells stay so; `sweep run … --deleted` has them begin anew"
_MOST_SHOWN = 20


def describe_cells(loaded: LoadedSweep, *, every: bool = False) -> str:
    """How many cells a sweep has, why not more, and with `every` each of them."""
    cells = loaded.cells
    lines = [f"sweep {loaded.name}: {len(cells.cells)} cells"]
    if cells.filtered:
        lines.append(f"  {cells.filtered} combinations do not meet sweep.when")
    if cells.repeated:
        lines.append(f"  {cells.repeated} combinations are the same job as another one")
    if cells.pruned:
        lines += [f"  {len(cells.pruned)} cells cannot run and are left out:", describe_pruned(cells.pruned)]
        if any(cell.problems[0].code == SEQUENCE_PARALLEL_WITHOUT_TP for cell in cells.pruned):
            lines.append("  to include those with TP = 1, sweep `sp: [false]` with the others, or `sp: [false, true]`")
    if every:
        lines += _every_cell(cells.cells)
    return "\n".join(lines)


def why_no_cell(cells: Cells) -> str:
    """What to say of a sweep of which nothing can be started."""
    if not cells.pruned:
        return f"no cell is left of this sweep: sweep.when leaves out all {cells.filtered} combinations; loosen it"
    left_out = f"\n    {cells.filtered} combinations do not meet sweep.when" if cells.filtered else ""
    return f"no cell of this sweep can run:\n{describe_pruned(cells.pruned)}{left_out}"


def _every_cell(cells: Sequence[Cell]) -> list[str]:
    """A table of the cells; with what follows from their settings where it differs between them."""
    columns = [["", *([""] * len(cells))], ["CELL", *(cell.name for cell in cells)]]
    columns.append(["ID", *(cell.id[:8] for cell in cells)])
    batches = [cell.job.global_batch_size for cell in cells]
    for title, values in (("DP", [cell.job.data_parallel_size for cell in cells]), ("GLOBAL BATCH", batches)):
        if len(set(values)) > 1:
            columns.append([title, *(str(value) for value in values)])
    lines = [aligned([list(row) for row in zip(*columns, strict=True)])]
    if len(set(batches)) > 1 and not any("batch.global_batch_size" in cell.values for cell in cells):
        lines.append("  the global batch differs between cells: write batch.global_batch_size to keep it the same")
    return lines


def describe_pruned(pruned: Sequence[PrunedCell]) -> str:
    """The cells that cannot run, those with the same reason together."""
    reasons = Counter(cell.reason for cell in pruned)
    lines = []
    for reason, count in reasons.most_common(_MOST_SHOWN):
        example = next(cell.name for cell in pruned if cell.reason == reason)
        lines.append(f"    {example}{f' and {count - 1} more' if count > 1 else ''}: {reason}")
    if len(reasons) > _MOST_SHOWN:
        lines.append(f"    and for {len(reasons) - _MOST_SHOWN} more reasons")
    return "\n".join(lines)


def status_table(statuses: Sequence[CellStatus], metric: str) -> str:
    """A line for each cell."""
    header = ["CELL", "RUN", "STATE", "ITERATION", metric]
    return aligned([header, *(_row(status, metric) for status in statuses)])


def _row(status: CellStatus, metric: str) -> list[str]:
    state = f"{status.state} ({status.note})" if status.note else status.state
    iteration = str(status.status.iteration) if status.status.iteration is not None else "-"
    return [status.entry.name, status.status.run.run_id, state, iteration, _number(status.value(metric))]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def summary(sweep: SweepDir, planned: SweepPlan, statuses: Sequence[CellStatus]) -> str:
    """`sweep lr: 12 cells: 10 completed, 2 failed; 3 more cannot run; 2 more left the sweep`."""
    left = [status for status in statuses if status.left]
    current = [status for status in statuses if not status.left]
    states = ", ".join(f"{count} {state}" for state, count in counts(current).items())
    pruned = f"; {len(planned.pruned)} more cannot run" if planned.pruned else ""
    gone = f"; {len(left)} more left the sweep" if left else ""
    search = sweep.search()
    searched = f"\n{search.summary()}" if search is not None else ""
    return f"sweep {sweep.name}: {len(current)} cells: {states}{pruned}{gone}{searched}"


def what_is_retried(sweep: SweepDir, statuses: Sequence[CellStatus]) -> str:
    """`2 failed, 1 missing: orchestrator sweep retry lr`; empty where nothing is."""
    found = counts([status for status in statuses if not status.left])
    what = ", ".join(f"{found[state]} {state}" for state in STARTED_BY_RETRY if found.get(state))
    return f"      {what}: orchestrator sweep retry {named_in_command(sweep.name, sweep.runs_dir)}" if what else ""


def results_table(rows: Sequence[CellStatus], metric: str) -> str:
    """The settings of each cell as columns, and what it has come to; of a search at the furthest rung that it has
    reached, and at which step that was.
    """
    paths = _paths(rows)
    compared = [row.compared(metric) for row in rows]
    is_search = any(each is not None for each in compared)
    step = ["AT STEP"] if is_search else []
    header = [*(short_name(path) for path in paths), "STATE", "ITERATION", metric, *step, "RUN"]
    lines = [
        [
            *(shorten(row.entry.values.get(path, "-"), 40) for path in paths),
            f"{row.state} (left)" if row.left else row.state,
            str(row.status.iteration) if row.status.iteration is not None else "-",
            _number(row.value(metric) if at is None else at.value),
            *(["-" if at is None else str(at.iteration)] if is_search else []),
            row.status.run.run_id,
        ]
        for row, at in zip(rows, compared, strict=True)
    ]
    return aligned([header, *lines])


def what_matters(rows: Sequence[CellStatus], metric: str) -> str:
    """In one line: which parameters explain how much of the differences between the cells that completed; of a search
    between all cells, at its first rung.
    """
    current = [row for row in rows if not row.left]
    first = [(row, row.rungs[0]) for row in current if row.compared(metric) is not None]
    done = [(row, row.value(metric)) for row in current if row.state == "completed"]
    done = [(row, at.value) for row, at in first] if first else done
    where = " at rung 1" if any(at.rungs > 1 for _, at in first) else ""
    found = importance(
        [
            Point(row.entry.values, value, row.status.spreads.get(metric))
            for row, value in done
            if value is not None and isfinite(value)
        ]
    )
    if found.problem is not None:
        return f"the influence of parameters cannot be computed: {found.problem}"
    shares = ", ".join(
        f"{short_name(each.path)} {each.share:.0%} (by chance {each.chance:.0%})" for each in found.shares
    )
    rest = found.together + found.unattributed
    return f"what explains the differences in {metric}{where}: {shares}; together or by chance {rest:.0%}"


def csv_text(rows: Sequence[CellStatus]) -> str:
    """The same as CSV, with every metric."""
    paths = _paths(rows)
    metrics = sorted({name for row in rows for name in row.status.values})
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    rung = ["rung", "rung_iteration", "rung_value"] if any(row.rungs for row in rows) else []
    writer.writerow(["cell", "run", "state", "left", "cause", "iteration", *rung, *paths, *metrics])
    for row in rows:
        last = row.rungs[-1:] if rung else ()
        reached = [part for at in last for part in (at.rung, at.iteration, at.value)] or [None] * len(rung)
        fixed = [row.entry.id, row.status.run.run_id, row.state, row.left, row.status.cause, row.status.iteration]
        settings = [row.entry.values.get(path) for path in paths]
        writer.writerow([*fixed, *reached, *settings, *(row.value(metric) for metric in metrics)])
    return out.getvalue()


def _paths(rows: Sequence[CellStatus]) -> list[str]:
    return list(dict.fromkeys(path for row in rows for path in row.entry.values))


def check_metric(metric: str | None, statuses: Sequence[CellStatus]) -> None:
    """Raises UserError for a metric that no cell has measured."""
    known = sorted({name for status in statuses for name in status.status.values})
    if metric is not None and metric not in known:
        near = closest(metric, known)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known) or 'none yet'}"
        raise UserError(f"no cell has measured {metric}: {hint}", code="unknown_metric")


def follow(sweep: SweepDir, *, quiet: bool = False) -> None:
    """Show the cells until none is under way: a table that changes in a terminal, elsewhere a line for each change."""
    if sys.stdout.isatty() and not quiet:
        _follow_live(sweep)
    else:
        _follow_lines(sweep, quiet=quiet)


def look(sweep: SweepDir) -> tuple[SweepPlan, list[CellStatus]]:
    planned = sweep.planned()
    return planned, cell_statuses(sweep, planned)


def is_under_way(sweep: SweepDir, statuses: Sequence[CellStatus]) -> bool:
    """Whether a cell runs or waits, or a search may still start one."""
    search = sweep.search()
    return any(status.state in UNDER_WAY for status in statuses) or (search is not None and search.is_running)


def _follow_live(sweep: SweepDir) -> None:
    with Live(console=Console(), auto_refresh=False) as live:
        while True:
            planned, statuses = look(sweep)
            table = status_table(statuses, metric_of(planned, statuses))
            live.update(Text(f"{table}\n{summary(sweep, planned, statuses)}"), refresh=True)
            if not is_under_way(sweep, statuses):
                return
            time.sleep(SECONDS_BETWEEN_LOOKS)


def _follow_lines(sweep: SweepDir, *, quiet: bool) -> None:
    """A line for each change of a cell's state, and now and then one for each running cell that has moved."""
    known: dict[str, str] = {}
    told: dict[str, int | None] = {}
    last = time.monotonic()
    while True:
        planned, statuses = look(sweep)
        metric = metric_of(planned, statuses)
        due = time.monotonic() - last >= SECONDS_BETWEEN_LINES
        last = time.monotonic() if due else last
        for status in statuses:
            cell, iteration = status.entry.id, status.status.iteration
            changed = known.get(cell, "pending") != status.state
            moved = due and status.state == "running" and iteration != told.get(cell)
            if (changed or moved) and not quiet:
                typer.echo(_line(status, metric))
                told[cell] = iteration
            known[cell] = status.state
        if not is_under_way(sweep, statuses):
            return
        time.sleep(SECONDS_BETWEEN_LOOKS)


def _line(status: CellStatus, metric: str) -> str:
    """`lr=1e-3: running, iteration 12, train/loss 5.12`."""
    note = f" ({status.note})" if status.note else ""
    value = status.value(metric)
    parts = [f"{status.entry.name}: {status.state}{note}"]
    parts += [f"iteration {status.status.iteration}"] if status.status.iteration is not None else []
    parts += [f"{metric} {_number(value)}"] if value is not None else []
    return ", ".join(parts)
