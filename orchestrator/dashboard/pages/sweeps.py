"""The pages of sweeps: all of them, and one with its cells, what matters in it, and its curves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse

from orchestrator.dashboard.html import page
from orchestrator.dashboard.pages.compare import address
from orchestrator.dashboard.pages.parts import Begin, head_of, part_of
from orchestrator.dashboard.pages.run_common import asked_sweep_dir
from orchestrator.dashboard.settings import Its, Shared
from orchestrator.errors import UserError
from orchestrator.fields.formatting import shorten
from orchestrator.review.charts.axes import XAxis, plain
from orchestrator.review.charts.catalogue import Chart
from orchestrator.review.charts.curves import View, figure_of_curves
from orchestrator.review.compare import told_apart
from orchestrator.review.damage import readable
from orchestrator.review.logs.page_size import fitting, html_bytes
from orchestrator.review.run_summary import RunSummary
from orchestrator.review.sweeps.cells import Cell, Reason, SweepView, importance_of, sweep_folders, view_of
from orchestrator.review.sweeps.charts import How, heat_map, loss_curves, parallel, scatter
from orchestrator.spec.documents.field_names import short_name
from orchestrator.sweeps.ledger import SweepDir
from orchestrator.sweeps.states import STARTED_BY_RETRY

router = APIRouter(prefix="/sweeps")

_LOSS = Chart("loss", "Loss", ("train/loss",))
_MOST_CURVES = 24
_CELLS, _SWEEPS = 100, 20
"""Of a page."""
_BYTES_OF_A_CURVE = 120
"""Of what is said of a curve, beside its names."""
_COMPARED = 5
_MOST_PRUNED_NAMES = 6
_LONGEST = 300
_LONGEST_NAME, _LONGEST_VALUE = 200, 60
"""Characters of a cell's name, and of one of its values."""
_BYTES_OF_CELLS, _BYTES_OF_A_CELL, _BYTES_OF_A_VALUE = 16 << 10, 500, 10
_BYTES_OF_PARAMETERS, _BYTES_OF_A_PARAMETER = 5 << 10, 45
_BYTES_OF_OPTIONS, _BYTES_OF_AN_OPTION = 3 << 10, 40
_BYTES_OF_SHARES, _BYTES_OF_A_SHARE = 5 << 10, 300
_BYTES_OF_REASONS, _BYTES_OF_A_REASON = 6 << 10, 250
"""Of the tables of a sweep, which together are less than a page, and of a row of each beside its texts."""
_BYTES_OF_A_SWEEP = 1200

Metric = Annotated[str | None, Query(max_length=_LONGEST)]
Kind = Literal["heat", "scatter", "parallel", "curves"]


@dataclass(frozen=True)
class LoadedSweep:
    """A sweep. `is_read`: whether everything is known of its runs that can be."""

    view: SweepView
    is_read: bool


def asked_sweep(found: Annotated[SweepDir, Depends(asked_sweep_dir)], its: Its, metric: Metric = None) -> LoadedSweep:
    """The sweep that an address names, with its cells compared by a metric. Raises UserError where it cannot be read,
    HTTPException (404) where there is none, and for a metric that none of its cells has measured.
    """
    is_complete = its.index.is_complete  # asked before the runs are: it may become so meanwhile
    runs = _runs(its)
    view = view_of(found, runs, metric or None)
    is_read = is_complete or all(cell.run is not None for cell in view.cells)
    if is_read and view.metric not in view.metrics and view.metric != view_of(found, runs).metric:
        raise HTTPException(404, f"no cell of sweep {found.name} has measured {metric}")
    return LoadedSweep(view, is_read)


@router.get("")
def sweeps(request: Request, its: Its, begin: Begin = 0) -> Response:
    """The sweeps of the folder, the last one that changed first."""
    runs = _runs(its)
    folders = sweep_folders(its.settings.runs_dir)
    shown = part_of(folders, begin, _SWEEPS, text=lambda sweep: 3 * sweep.name, beside=_BYTES_OF_A_SWEEP)
    views: list[SweepView] = []
    problems: list[str] = []
    for sweep in shown.items:
        try:
            views.append(view_of(sweep, runs))
        except UserError as error:
            problems.append(shorten(str(error), _LONGEST))
    values = {"views": views, "problems": problems, "shown": shown, "is_complete": its.index.is_complete}
    return page(request, "sweeps.html", values)


@router.get("/{name}")
def sweep(
    request: Request,
    asked: Annotated[LoadedSweep, Depends(asked_sweep)],
    x: Metric = None,
    y: Metric = None,
    how: How = "best",
    begin: Begin = 0,
) -> Response:
    """One sweep. `x`, `y`: the parameters of its grid; the most important ones where nothing is said."""
    view = asked.view
    found, dominating = importance_of(view)
    first, second = _axes(view, [each.path for each in found.shares], x, y)
    best = [cell.run.key for cell in view.measured[:_COMPARED] if cell.run is not None]
    shown = {"metric": view.metric, "x": first or "", "y": second or "", "how": how}
    names = {path: short_name(path) for path in _paths(view)}
    columns = head_of(
        [path for path in names if path in view.axes],
        lambda path: path + names[path],
        _BYTES_OF_PARAMETERS,
        _BYTES_OF_A_PARAMETER,
    )
    beside = _BYTES_OF_A_CELL + _BYTES_OF_A_VALUE * len(columns.items)
    values = {
        "view": view,
        "is_read": asked.is_read,
        "found": found,
        "dominating": dominating,
        "names": names,
        "columns": columns,
        "metrics": _options(view.metrics, view.metric),
        "axes": {axis: _options(view.axes, axis) for axis in (first, second) if axis is not None},
        "shares": head_of(found.shares, lambda each: names[each.path], _BYTES_OF_SHARES, _BYTES_OF_A_SHARE),
        "x": first,
        "y": second,
        "how": how,
        "cells": part_of(
            view.cells, begin, _CELLS, shown, partial(_texts_of, columns.items), room=_BYTES_OF_CELLS, beside=beside
        ),
        "failed": head_of(view.failed, _why_failed, _BYTES_OF_REASONS, _BYTES_OF_A_REASON),
        "pruned": head_of(view.pruned, _why_pruned, _BYTES_OF_REASONS, _BYTES_OF_A_REASON),
        "longest": _LONGEST,
        "longest_name": _LONGEST_NAME,
        "longest_value": _LONGEST_VALUE,
        "query": urlencode(shown),
        "compare_best": address(best) if len(best) > 1 else None,
        "most_curves": _MOST_CURVES,
        "most_pruned_names": _MOST_PRUNED_NAMES,
        "retried": sum(cell.state in STARTED_BY_RETRY for cell in view.current),
        "done": sum(cell.state == "completed" for cell in view.current),
    }
    return page(request, "sweep.html", values)


def _options(every: Iterable[str], chosen: str) -> list[str]:
    """What can be chosen, as far as there is room, and what is."""
    return fitting(dict.fromkeys([chosen, *every]), lambda each: 2 * each, _BYTES_OF_OPTIONS, _BYTES_OF_AN_OPTION, 1)


def _texts_of(paths: Sequence[str], cell: Cell) -> str:
    """What is long in a row of the cells."""
    run = 3 * cell.entry.run + (str(cell.standing) if cell.standing is not None else "")
    return run + "".join(shorten(cell.entry.values.get(path, ""), _LONGEST_VALUE) for path in paths)


def _why_failed(cell: Cell) -> str:
    reason = shorten(cell.run.description, _LONGEST) if cell.run is not None else ""
    return shorten(cell.entry.name, _LONGEST_NAME) + reason + 3 * cell.entry.run


def _why_pruned(reason: Reason) -> str:
    names = (shorten(name, _LONGEST_NAME) for name in reason.names[:_MOST_PRUNED_NAMES])
    return shorten(reason.reason, _LONGEST) + "".join(names)


@router.get("/{name}/figure/{kind}")
def figure(
    kind: Kind,
    asked: Annotated[LoadedSweep, Depends(asked_sweep)],
    its: Its,
    x: Metric = None,
    y: Metric = None,
    how: How = "best",
    axis: XAxis = "steps",
) -> Response:
    """A figure of a sweep for plotly."""
    view = asked.view
    if kind == "parallel":
        return JSONResponse(parallel(view))
    if kind == "curves":
        return JSONResponse(_curves(view, its, axis))
    for path in (x, y) if kind == "heat" else (x,):
        if path not in view.axes:
            raise HTTPException(404, f"{path} is no parameter of sweep {view.sweep.name}")
    assert x is not None
    return JSONResponse(scatter(view, x) if kind == "scatter" else heat_map(view, x, y or x, how))


def _curves(view: SweepView, its: Shared, axis: XAxis) -> Mapping[str, object]:
    """The loss of the best cells over each other; cells that have no value yet come last."""
    cells = [cell for cell in view.cells if cell.run is not None][:_MOST_CURVES]
    names = told_apart(shorten(cell.entry.name, _LONGEST_NAME) for cell in cells)
    curves = partial(its.beside.curves, chart=_LOSS, view=View(axis))
    drawn = {
        name: found[0] if (found := readable(partial(curves, cell.run.run))[0]) is not None else ()
        for name, cell in zip(names, cells, strict=True)
        if cell.run is not None
    }
    beside = sum(2 * html_bytes(name) + _BYTES_OF_A_CURVE for name in names)
    made = figure_of_curves(_LOSS, drawn, View(axis), beside=beside)
    if len(drawn) == 1:
        return made
    return loss_curves(view, made, {plain(name): cell for name, cell in zip(names, cells, strict=True)})


def _axes(view: SweepView, important: list[str], x: str | None, y: str | None) -> tuple[str | None, str | None]:
    """The parameters to show: those that were asked for, as far as they are some; else the most important ones."""
    order = [path for path in dict.fromkeys([x, y, *important, *view.axes]) if path in view.axes]
    first = x if x in view.axes else next((path for path in order if path != y), None)
    second = y if y in view.axes and y != first else next((path for path in order if path != first), None)
    return first, second


def _paths(view: SweepView) -> list[str]:
    return list(dict.fromkeys([*view.axes, *(path for cell in view.cells for path in cell.entry.values)]))


def _runs(its: Shared) -> Mapping[str, RunSummary]:
    return {run.key: run for run in its.index.runs}
