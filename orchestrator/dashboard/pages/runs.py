"""The page of all runs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Depends, Query, Request, Response

from orchestrator.dashboard.actions import actions_of
from orchestrator.dashboard.html import page
from orchestrator.dashboard.pages.run_common import Text
from orchestrator.dashboard.settings import Its, Shared
from orchestrator.fields.formatting import few, shorten
from orchestrator.review.filters.columns import column_of, offered_columns
from orchestrator.review.logs.page_size import fitting
from orchestrator.review.query import QueryError, quoted, select
from orchestrator.review.redaction import Redaction
from orchestrator.review.run_summary import RunSummary
from orchestrator.review.saved_views import saved_views
from orchestrator.review.sweeps.cells import best_of, comparison_of
from orchestrator.review.table import COLUMNS, Cells, Column, collapsed, counts, ordered
from orchestrator.sweeps.ledger import sweep_dir

router = APIRouter()

RUNS_A_PAGE = 50
_USUAL = tuple(COLUMNS)
"""The columns of a page whose address names none."""
_MOST_COLUMNS = 40
_MOST_OFFERED = 40
_BYTES_OF_COLUMNS, _BYTES_OF_A_COLUMN = 6 << 10, 130
_BYTES_OF_ROWS, _BYTES_OF_A_ROW = 42 << 10, 1000
"""Of a page's rows, and of each beside its texts."""
_NAMES_IN_A_ROW = 7
_LONGEST = 200
"""Characters of a cell's name, and of why a run ended."""
_SECONDS_FOR_THE_FIRST = 0.3
"""Of a server that has just started: then its page says that it is still reading."""


@dataclass(frozen=True)
class View:
    """What of the runs is shown, and how: all of it stands in the address."""

    q: str = ""
    state: str = ""
    sort: str = ""
    falling: bool = False
    cells: bool = False
    columns: tuple[str, ...] = ()
    number: int = 1

    def address(self, **changes: Any) -> str:
        """The page of another view. Whatever changes, but the number, begins at the first page."""
        other = replace(self, **{"number": 1, **changes})
        parameters = {
            "q": other.q,
            "state": other.state,
            "sort": other.sort,
            "order": "falling" if other.falling else "",
            "cells": "all" if other.cells else "",
            "column": other.columns,
            "page": str(other.number) if other.number > 1 else "",
        }
        given = {name: value for name, value in parameters.items() if value}
        return f"/?{urlencode(given, doseq=True, errors='replace')}" if given else "/"

    def sorted_by(self, column: Column) -> str:
        """The page in the order of a column; in the other direction where it is that already."""
        falling = not self.falling if self.sort == column.name else column.falls
        return self.address(sort=column.name, falling=falling)

    def direction(self, column: Column) -> str:
        """What a table says of a column's order: aria-sort."""
        return "none" if self.sort != column.name else "descending" if self.falling else "ascending"

    def of_sweep(self, sweep: str) -> str:
        """The page of a sweep's cells."""
        return self.address(q=f"sweep={quoted(sweep)}", cells=True, state="")


def asked_view(
    q: Text = "",
    state: Text = "",
    sort: Text = "",
    order: Text = "",
    cells: Text = "",
    column: Annotated[tuple[Text, ...], Query(max_length=_MOST_COLUMNS)] = (),
    number: Annotated[int, Query(alias="page", ge=1, le=1_000_000)] = 1,
) -> View:
    """The view that an address names."""
    columns = tuple(dict.fromkeys(column))
    return View(q, state, sort, order == "falling", cells == "all", columns if columns != _USUAL else (), number)


@router.get("/")
def runs(
    request: Request,
    view: Annotated[View, Depends(asked_view)],
    its: Its,
    run: Annotated[tuple[Text, ...], Query(max_length=1000)] = (),
    seen: Text = "",
    more: Text = "",
) -> Response:
    """The runs of the folder, the newest first. `run`: those that are selected; `seen`: what the page shows already,
    to which the answer is 204 where nothing has changed; `more`: what columns to choose from have in their names.
    """
    its.index.wait_for_the_first(_SECONDS_FOR_THE_FIRST)
    values = shown(its, view) | {
        "selected": frozenset(run),
        "offered": _offered(its, view, more),
        "more": more,
        "saved": saved_views(its.settings.runs_dir, "runs"),
    }
    answer = page(request, "runs.html", {**values, "tag": ""})
    tag = hashlib.sha256(bytes(answer.body)).hexdigest()[:16]
    if seen == tag:
        return Response(status_code=204)
    made = page(request, "runs.html", {**values, "tag": tag})
    if "hx-request" in request.headers:
        selected = urlencode([("run", key) for key in run], errors="replace")
        address = view.address(number=values["view"].number)
        made.headers["HX-Replace-Url"] = f"{address}{'&' if '?' in address else '?'}{selected}" if run else address
    return made


def shown(its: Shared, view: View) -> dict[str, Any]:
    """What the page shows of the runs."""
    everything = its.index.runs
    problem = None
    try:
        found = select(everything, view.q)
    except QueryError as error:
        problem, found = str(error), list(everything)
    of_state = [each for each in found if each.state == view.state] if view.state else found
    if view.sort and (sorting := column_of(view.sort, everything)) is not None:
        of_state = ordered(of_state, sorting, falling=view.falling)
    columns = [
        column for name in view.columns or _USUAL if (column := column_of(name, everything)) is not None
    ] or list(COLUMNS.values())
    rows: list[RunSummary | Cells] = [*of_state] if view.cells else collapsed(of_state)
    pages = _pages(rows, view, [column for column in columns if column.name not in COLUMNS])
    number = min(view.number, len(pages))
    part = rows[pages[number - 1]]
    singles = [row for row in part if not isinstance(row, Cells)]
    bests = {row.sweep: _best(its, row) for row in part if isinstance(row, Cells)}
    return {
        "view": replace(view, number=number),
        "columns": columns,
        "usual": COLUMNS,
        "discretion": Redaction([run.spec for run in (*singles, *bests.values()) if run is not None]),
        "rows": part,
        "bests": bests,
        "first": pages[number - 1].start + 1,
        "row_count": len(rows),
        "pages": len(pages),
        "longest": _LONGEST,
        "run_count": len(of_state),
        "everything": len(everything),
        "found": len(found),
        "states": counts(found),
        "has_cells": any(each.sweep is not None for each in of_state),
        "problem": problem,
        "is_complete": its.index.is_complete,
        "misplaced": few(its.index.misplaced),
        "actions": actions_of if its.settings.allows_actions else lambda run: (),
    }


def _offered(its: Shared, view: View, more: str) -> list[str]:
    """Columns to choose from, as far as there is room: those that are shown, and those that are looked for."""
    shown = list(view.columns or _USUAL)
    found = [name for name in offered_columns(its.index.runs, more.casefold().split()) if name not in shown]
    return fitting([*shown, *found[:_MOST_OFFERED]], lambda name: 3 * name, _BYTES_OF_COLUMNS, _BYTES_OF_A_COLUMN)


def _pages(rows: Sequence[RunSummary | Cells], view: View, chosen: Sequence[Column]) -> list[slice]:
    """The rows of each page, at least one page: at most so many, and as many as one has room for. `chosen`: columns
    that are no usual ones.
    """

    def text(row: RunSummary | Cells) -> str:
        if isinstance(row, Cells):
            return 6 * row.sweep + quote(view.q)
        said = 2 * shorten(row.cell or "", _LONGEST) + 2 * (row.sweep or "") + shorten(row.description, _LONGEST)
        own = (str(column.value(row) or "")[:_LONGEST] for column in chosen)
        return _NAMES_IN_A_ROW * quote(row.run.name) + said + "".join(own)

    pages: list[slice] = []
    begin = 0
    while begin < len(rows) or not pages:
        kept = fitting(islice(rows, begin, begin + RUNS_A_PAGE), text, _BYTES_OF_ROWS, _BYTES_OF_A_ROW, at_least=1)
        pages.append(slice(begin, begin + len(kept)))
        begin += len(kept)
    return pages


def _best(its: Shared, row: Cells) -> RunSummary | None:
    """The best cell of a row, by what its sweep compares them by."""
    return best_of(row.runs, comparison_of(sweep_dir(row.sweep, its.settings.runs_dir)))
