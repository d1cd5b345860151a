"""The page of several runs beside each other. Its address names them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse

from orchestrator.dashboard.chart_choice import AskedChoice, Followed, chosen
from orchestrator.dashboard.html import page
from orchestrator.dashboard.pages.parts import AskedView
from orchestrator.dashboard.pages.run_common import Text, tag_of, unchanged
from orchestrator.dashboard.settings import Its, Shared
from orchestrator.review.charts.catalogue import CHARTS, Chart, chart_named, chart_of, charts_with
from orchestrator.review.charts.changes import (
    Position,
    first_new_step,
    has_measured,
    points_of,
    position_of,
    positions_text,
    read_positions,
    without_points,
)
from orchestrator.review.charts.curves import Curve, View, curves_of, figure_of_curves
from orchestrator.review.compare import MOST_RUNS, Difference, Facts, compare_facts, differences, labels
from orchestrator.review.damage import readable
from orchestrator.review.logs.page_size import fitting
from orchestrator.review.run_summary import RunSummary
from orchestrator.review.saved_views import saved_views
from orchestrator.review.stored_index.signatures import signature
from orchestrator.run_directory.rundir import RunDir

router = APIRouter(prefix="/compare")

_CHARTS = {
    "loss": Chart("loss", "Loss", ("train/loss",), is_core=True),
    "validation": Chart("validation", "Validation loss", ("validation/loss",)),
    **{name: replace(chart, also=()) for name, chart in CHARTS.items() if chart.keys and name != "loss"},
}
"""One curve of each run, so that a run has one colour; so has any other metric."""
_MOST_IN_A_LEGEND = 6
_MOST_FOUND = 12
_LONGEST_SEARCH = 200
_LONGEST_SEEN = 70 * MOST_RUNS
_BYTES_OF_THE_DIFFERENCES, _BYTES_OF_A_VALUE = 14 << 10, 40


@dataclass(frozen=True)
class ComparedRuns:
    """The runs that an address names, each once, and what names no run."""

    runs: tuple[RunSummary, ...]
    unknown: tuple[str, ...]
    left_out: int
    """Runs beyond the most that are compared."""


def asked_runs(its: Its, run: Annotated[list[Text] | None, Query(max_length=1000)] = None) -> ComparedRuns:
    """The runs of an address: `?run=NAME/ID&run=…`."""
    keys = list(dict.fromkeys(run or []))
    known = {each.key: each for each in its.index.runs}
    found = [(key, known.get(key) or _read(its, key)) for key in keys[:MOST_RUNS]]
    runs = tuple(each for _, each in found if each is not None)
    unknown = tuple(key for key, each in found if each is None)
    return ComparedRuns(runs, unknown, max(0, len(keys) - MOST_RUNS))


@router.get("")
def beside_each_other(
    request: Request,
    asked: Annotated[ComparedRuns, Depends(asked_runs)],
    its: Its,
    chosen_charts: AskedChoice,
    q: Annotated[str, Query(max_length=_LONGEST_SEARCH)] = "",
    whole: bool = False,
) -> Response:
    """Differences between runs, their curves, and what they have come to. Their measurements are read when `whole`
    is asked for, which the page does once it is shown.
    """
    choice, moved = chosen_charts
    keys = [run.key for run in asked.runs]
    query = urlencode([("run", key) for key in keys])
    if moved is not None:
        return RedirectResponse(f"/compare?{query}&{moved}", status_code=303)
    found = compare_facts(asked.runs, [_facts(its, run) if whole else None for run in asked.runs])
    more = offered(its.index.runs, q, keys) if len(keys) < MOST_RUNS else []
    beside = _BYTES_OF_A_VALUE * (1 + len(asked.runs))
    listed = fitting(found.differences, _words_of, _BYTES_OF_THE_DIFFERENCES, beside)
    values = {
        "asked": asked,
        "found": found,
        "sections": [(name, list(each)) for name, each in groupby(listed, key=lambda each: each.section)],
        "unshown": len(found.differences) - len(listed),
        "most": MOST_RUNS,
        "choice": choice,
        "chosen": chosen(charts_with(_latest(its, asked), _device(asked), _CHARTS), choice),
        "source": _source,
        "known": len(_latest(its, asked)),
        "saved": saved_views(its.settings.runs_dir, "compare"),
        "whole": whole,
        "is_live": any(run.is_active for run in asked.runs),
        "query": query,
        "without": {key: address([other for other in keys if other != key]) for key in keys},
        "offered": [(run, address([*keys, run.key])) for run in more],
        "q": q,
    }
    return page(request, "compare.html", values)


@router.get("/figure/{chart}")
def figure(
    request: Request, chart: str, asked: Annotated[ComparedRuns, Depends(asked_runs)], its: Its, view: AskedView
) -> Response:
    """The curves of all runs in one chart that we know, each by its short name."""
    if chart not in _CHARTS:
        raise HTTPException(404, f"there is no chart {chart}")
    return _figure(request, chart_of(chart, _device(asked), _CHARTS), asked, its, view)


@router.get("/metric")
def metric(
    request: Request, asked: Annotated[ComparedRuns, Depends(asked_runs)], its: Its, view: AskedView, key: Text = ""
) -> Response:
    """The same of any other metric."""
    chart = chart_named(key, _latest(its, asked), known=_CHARTS)
    if chart is None:
        raise HTTPException(404, f"none of these runs has measured {key}")
    return _figure(request, chart, asked, its, view)


@router.get("/changes")
def changes(
    asked: Annotated[ComparedRuns, Depends(asked_runs)],
    its: Its,
    view: AskedView,
    chart: Followed = (),
    seen: Annotated[str, Query(max_length=_LONGEST_SEEN)] = "",
) -> Response:
    """What was measured since a page drew these charts: 204 where nothing was, which the sizes of the logs say.
    `figures` is null where they have to be drawn anew.
    """
    before = read_positions(seen)
    if len(before) != len(asked.runs):
        return JSONResponse({"now": _now(its, asked, before), "figures": None})
    measured = [has_measured(run.run, at) for run, at in zip(asked.runs, before, strict=True)]
    if not any(measured):
        return Response(status_code=204)
    found = [
        each for name in chart if (each := chart_named(name, _latest(its, asked), _device(asked), _CHARTS)) is not None
    ]
    runs: list[Mapping[str, Sequence[Curve]]] = []
    now: list[Position] = []
    for run, at, has_more in zip(asked.runs, before, measured, strict=True):
        made, _ = readable(partial(_new_curves if has_more else _no_new_curves, its, run.run, at, found, view))
        if made is None:
            return JSONResponse({"now": _now(its, asked, before), "figures": None})
        runs.append(made[0])
        now.append(made[1])
    figures = {each.name: points_of(each, [curves[each.name] for curves in runs], view) for each in found}
    return JSONResponse({"now": _now(its, asked, now), "figures": figures})


_NewCurves = tuple[Mapping[str, Sequence[Curve]], Position] | None
"""By chart what was measured since a position, and where it ends; None where charts have to be drawn anew."""


def _new_curves(its: Shared, run: RunDir, at: Position, charts: Sequence[Chart], view: View) -> _NewCurves:
    with its.beside.reading(run, view.x) as series:
        since = first_new_step(run, at)
        if since is None:
            return None
        part = replace(view, since=since)
        return {chart.name: curves_of(chart, series, part) for chart in charts}, position_of(run, series)


def _no_new_curves(its: Shared, run: RunDir, at: Position, charts: Sequence[Chart], view: View) -> _NewCurves:
    drawn = {chart.name: its.beside.curves(run, chart, view, _among(chart, view))[0] for chart in charts}
    return {name: [without_points(curve) for curve in curves] for name, curves in drawn.items()}, at


def _figure(request: Request, chart: Chart, asked: ComparedRuns, its: Shared, view: View) -> Response:
    names = short_names(asked.runs)
    tag = tag_of([signature(run.run)[:2] for run in asked.runs], names, chart, view)
    if (same := unchanged(request, tag)) is not None:
        return same
    nothing: tuple[tuple[Curve, ...], Position] = (), Position(0, 0, 0, 0)
    found = [
        readable(partial(its.beside.curves, run.run, chart, view, _among(chart, view)))[0] or nothing
        for run in asked.runs
    ]
    drawn = {names[run.key]: curves for run, (curves, _) in zip(asked.runs, found, strict=True)}
    made = figure_of_curves(chart, drawn, view)
    if len(drawn) > _MOST_IN_A_LEGEND:  # the table of the runs is one, too
        made["layout"]["showlegend"] = False
    now = _now(its, asked, [position for _, position in found])
    return JSONResponse({**made, "now": now}, headers={"ETag": tag, "Cache-Control": "no-cache"})


def _among(chart: Chart, view: View) -> tuple[Chart, ...]:
    """What is read along with a chart: the page asks for all of those that we know; for a part of one by itself."""
    return tuple(_CHARTS.values()) if chart.name in _CHARTS and view.within == (None, None) else ()


def _now(its: Shared, asked: ComparedRuns, positions: Sequence[Position]) -> dict[str, object]:
    """How far a page has drawn its runs: `offset` grows with what they measure. And how many metrics they have."""
    offset = sum(each.offset for each in positions)
    return {"seen": positions_text(positions), "offset": offset, "keys": len(_latest(its, asked))}


def _latest(its: Shared, asked: ComparedRuns) -> dict[str, float]:
    """The last value that any of the runs has of each metric."""
    return {key: value for run in asked.runs for key, value in its.beside.latest(run).items()}


def _device(asked: ComparedRuns) -> str | None:
    """What all runs train on, where that is a CPU: its speeds are those of a process."""
    return "cpu" if all(run.spec.get("runtime.device") == "cpu" for run in asked.runs) else None


def _source(chart: Chart) -> str:
    """Where the figure of a chart lies, without the names of the runs."""
    known = chart.name in _CHARTS
    return f"/compare/figure/{chart.name}" if known else f"/compare/metric?{urlencode({'key': chart.name})}"


def _words_of(difference: Difference) -> str:
    return "".join([difference.path, *(value for value in difference.values if value is not None)])


def _facts(its: Shared, run: RunSummary) -> Facts | None:
    """None where its measurements cannot be read."""
    return readable(lambda: its.beside.facts(run.run))[0]


def short_names(runs: Sequence[RunSummary]) -> Mapping[str, str]:
    """The short name of each run, by its key."""
    keys = [run.key for run in runs]
    return dict(zip(keys, labels(keys, differences([run.spec for run in runs])), strict=True))


def address(keys: Sequence[str]) -> str:
    """Where runs are compared."""
    return f"/compare?{urlencode([('run', key) for key in keys])}" if keys else "/compare"


def offered(runs: Sequence[RunSummary], q: str, taken: Sequence[str]) -> list[RunSummary]:
    """Runs to add: the newest that have every word of a search in their name, id, cell, sweep, state or user."""
    words = q.lower().split()
    found = []
    for run in runs:
        if run.key in taken:
            continue
        text = " ".join(filter(None, (run.key, run.cell, run.sweep, run.state, run.user))).lower()
        if all(word in text for word in words):
            found.append(run)
        if len(found) == _MOST_FOUND:
            break
    return found


def _read(its: Shared, key: str) -> RunSummary | None:
    """A run that is too new to be known."""
    name, _, run_id = key.partition("/")
    parts = (name, run_id)
    if any(part in ("", ".", "..") or "/" in part or "\0" in part for part in parts):
        return None
    return its.index.find(name, run_id)
