"""`orchestrator compare`: runs side by side, with their curves."""

from __future__ import annotations

import math
import os
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import typer

from orchestrator.cli.common import AsJson, RunsDir, aligned, print_json, warn
from orchestrator.cli.runs.curves import Curve, draw, letter_in_colour
from orchestrator.errors import UserError
from orchestrator.fields.formatting import shorten
from orchestrator.launch.runs import find_any_run
from orchestrator.quantities import duration, memory_size, short_count
from orchestrator.review.charts.axes import X_TITLES, XAxis, x_of
from orchestrator.review.charts.series import GrowingSeries, Series, smoothed, thinned
from orchestrator.review.compare import Comparison, Difference, Kind, Row, compare
from orchestrator.review.summary import summarize_each, with_goodput
from orchestrator.run_directory.results.record import json_number
from orchestrator.run_directory.rundir import RunDir, default_runs_dir
from orchestrator.spec.messages.suggestions import closest

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_POINTS_PER_COLUMN = 4
_MOST_POINTS_AS_JSON = 1500
_MOST_ROWS = 24
_WIDEST_VALUE = 40
_NOTHING = "-"


def command(
    names: Annotated[
        list[str],
        typer.Argument(metavar="RUN RUN...", help="Two or more run ids (or their beginnings), job names or paths."),
    ],
    metric: Annotated[str, typer.Option("--metric", metavar="KEY", help="Metric to draw.")] = "train/loss",
    x: Annotated[
        Literal["steps", "tokens", "time"], typer.Option("--x", help="The x axis: steps, tokens or hours.")
    ] = "steps",
    smooth: Annotated[
        float, typer.Option("--smooth", min=0, max=0.9999, help="Weight of earlier values in a moving average.")
    ] = 0.0,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Show how runs differ, their results, and their curves.

    \b
    Example:
      orchestrator compare 1a2b3c4d 5e6f7a8b
      orchestrator compare small large --metric validation/loss --x tokens
      orchestrator compare 1a2b 5e6f --smooth 0.9 --json
    """
    folder = runs_dir or default_runs_dir()
    runs = list({run.path: run for run in (find_any_run(name, folder) for name in names)}.values())
    if len(runs) < 2:
        raise UserError("one run cannot be compared: name two or more", code="too_few_runs")
    if len(runs) > len(_LETTERS):
        raise UserError(f"at most {len(_LETTERS)} runs can be compared, not {len(runs)}", code="too_many_runs")
    summaries = [with_goodput(summary, time.time()) for summary in summarize_each(runs)]
    series = [_series(run) for run in runs]
    _check_metric(metric, series)
    found = compare(summaries, series)
    if as_json:
        print_json(as_record(found, series, metric, x, smooth))
        return
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    size = shutil.get_terminal_size()
    typer.echo(_who(found, colour=colour))
    typer.echo(f"\n{_what_differs(found.differences, size.columns)}")
    typer.echo(f"\n{_what_came_of_it(found, size.columns)}\n")
    rows = min(_MOST_ROWS, size.lines - 2)
    typer.echo(
        draw(
            _curves(series, metric, x, smooth, _POINTS_PER_COLUMN * size.columns),
            title=metric,
            x_title=X_TITLES[x],
            width=size.columns,
            height=rows,
            colour=colour,
            ascii_only=not _can_print("─⣿"),
        )
    )


def as_record(found: Comparison, series: Sequence[Series], metric: str, x: XAxis, smooth: float) -> dict[str, Any]:
    """The comparison for programs."""
    curves = _curves(series, metric, x, smooth, _MOST_POINTS_AS_JSON)
    return {
        "runs": [
            {
                "run_id": run.run.run_id,
                "name": run.run.name,
                "shown_name": run.title,
                "path": str(run.run.path),
                "label": label,
                "state": run.state,
                "iteration": run.iteration,
                "train_iters": run.train_iters,
                "problem": run.problem,
            }
            for run, label in zip(found.runs, found.labels, strict=True)
        ],
        "differences": [{"path": each.path, "values": list(each.values)} for each in found.differences],
        "common_step": found.common_step,
        "measures": [
            {
                "name": row.measure.name,
                "goal": row.measure.goal,
                "values": [json_number(value) for value in row.values],
                "best": sorted(row.best),
            }
            for row in found.rows
        ],
        "metric": metric,
        "x": x,
        "curves": [{"x": list(curve.x), "y": [json_number(value) for value in curve.y]} for curve in curves],
    }


def _series(run: RunDir) -> Series:
    """What a run has measured; nothing where its log cannot be read."""
    try:
        return GrowingSeries(run.metrics_file).refresh()
    except OSError as error:
        warn(f"the measurements of run {run.run_id} cannot be read: {error}")
        return Series()


def _check_metric(metric: str, series: Sequence[Series]) -> None:
    known = sorted({key for each in series for key in each.columns})
    if known and metric not in known:
        near = closest(metric, known)
        raise UserError(
            f"no run has measured {metric}: "
            + (f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known)}"),
            code="unknown_metric",
        )


def _curves(series: Sequence[Series], metric: str, x: XAxis, smooth: float, most: int) -> list[Curve]:
    """The curve of each run, thinned out; an empty one where it has not measured the metric."""
    curves = []
    for letter, each in zip(_LETTERS, series, strict=False):
        column = each.measured(metric)
        if column is None:
            curves.append(Curve(letter, (), ()))
            continue
        values = smoothed(column.values, smooth)
        places = thinned(values, most)
        xs = [float(x_of(each, column.iterations[place], x)) for place in places]
        curves.append(Curve(letter, xs, [values[place] for place in places]))
    return curves


def _who(found: Comparison, *, colour: bool) -> str:
    """A line for each run: its letter, what it is called here, where it lies, how far it is."""
    rows = []
    for letter, run, label in zip(_LETTERS, found.runs, found.labels, strict=False):
        total = run.train_iters if run.train_iters is not None else "?"
        problem = "" if run.problem is None else f"cannot be read whole: {shorten(run.problem)}"
        progress = f"{run.iteration}/{total}"
        rows.append([letter, shorten(label, _WIDEST_VALUE), run.shown_label, run.state, progress, problem])
    lines = aligned(rows).splitlines()
    if colour:
        lines = [letter_in_colour(line[0], number) + line[1:] for number, line in enumerate(lines)]
    return "\n".join(lines)


def _what_differs(found: Sequence[Difference], width: int) -> str:
    """The fields that differ, as the specs have them."""
    if not found:
        return "the specs do not differ"
    rows = [[each.path, *(_text(value) for value in each.values)] for each in found]
    return _narrower([["WHAT DIFFERS", *_LETTERS[: len(found[0].values)]], *rows], width)


def _text(value: str | None) -> str:
    return _NOTHING if value is None else shorten(value, _WIDEST_VALUE)


def _what_came_of_it(found: Comparison, width: int) -> str:
    """The measures, the best of each with a star."""
    rows = [["", *_LETTERS[: len(found.runs)]]]
    for row in found.rows:
        title = row.measure.title
        if row.measure.name == "common_loss":
            title = f"loss at step {found.common_step}"
        rows.append([title, *_values(row)])
    return _narrower(rows, width) if len(rows) > 1 else "nothing was measured"


def _values(row: Row) -> list[str]:
    return [
        value_text(value, row.measure.kind) + (" *" if place in row.best else "")
        for place, value in enumerate(row.values)
    ]


def value_text(value: float | None, kind: Kind) -> str:
    """A measure for a person."""
    if value is None:
        return _NOTHING
    if not math.isfinite(value):
        return str(value)
    match kind:
        case "count":
            return short_count(value)
        case "percent":
            return f"{value:.1%}"
        case "seconds":
            return duration(value)
        case "bytes":
            return memory_size(value)
        case "number":
            return f"{value:.5g}"


def _narrower(rows: list[list[str]], width: int) -> str:
    """A table, turned around where only that makes it fit."""
    table = aligned(rows)
    if _width(table) <= width:
        return table
    turned = aligned([list(column) for column in zip(*rows, strict=True)])
    return turned if _width(turned) < _width(table) else table


def _width(text: str) -> int:
    return max(len(line) for line in text.splitlines())


def _can_print(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding)
    except UnicodeEncodeError:
        return False
    return True
