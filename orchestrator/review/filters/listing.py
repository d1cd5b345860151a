"""The runs of a folder as a list: which of them are meant, and in which order."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from orchestrator.errors import UserError
from orchestrator.review.filters.run_fields import FIELDS, Field, QueryError, field_of, in_order
from orchestrator.review.query import Query, read_query
from orchestrator.review.run_summary import RunSummary
from orchestrator.review.stored_index.index_file import Entry, is_known, read_index, write_index
from orchestrator.review.stored_index.signatures import signatures_in
from orchestrator.run_directory.rundir import RunDir

_SHOWN_OF_A_QUERY = 60
"""Characters on each side of what is wrong in it."""


def summaries_in(runs_dir: Path) -> list[RunSummary]:
    """Every run under a folder, oldest first; before them those whose age cannot be read. Of runs that have not changed
    what the folder's index says.
    """
    stored = read_index(runs_dir)
    signatures = signatures_in(runs_dir, {path: entry.signature for path, entry in stored.items()})
    known = {path: stored[path] for path, found in signatures.items() if is_known(stored.get(path), found)}
    changed = [path for path in signatures if path not in known]
    known |= {path: Entry(each, signatures[path]) for path, each in zip(changed, _read(changed), strict=True)}
    write_index(runs_dir, known, stored)
    summaries = (entry.summary for entry in known.values())
    return sorted(summaries, key=lambda run: (run.created or 0.0, run.run.path))


def matching(
    runs: Sequence[RunSummary],
    filters: Iterable[tuple[str, str]],
    *,
    fields: Iterable[Field] = (),
    archived: bool,
) -> list[RunSummary]:
    """The runs for which all filters hold, in their order; `filters`: what each is called in a message, and the
    filter. `fields`: what else will be asked of them. `archived`: whether archived runs are among them; else only
    where a filter asks for it.

    Raises UserError for a filter that makes no sense, with the place.
    """
    queries = [_parsed(name, query, runs) for name, query in filters]
    keys = {key for query in queries for key in query.keys} | {field.key for field in fields}
    shown = [run for run in runs if archived or "archived" in keys or not run.labels.archived]
    if "goodput" in keys:
        shown = [_with_goodput(run) for run in shown]
    return [run for run in shown if all(query.holds(run) for query in queries)]


def sorted_by(runs: Sequence[RunSummary], sort: str) -> list[RunSummary]:
    """The runs by a field, `loss`, or the greatest first, `-loss`; those without a value last. Raises UserError."""
    return in_order(runs, named_field(sort.removeprefix("-"), runs), falling=sort.startswith("-"))


def named_field(name: str, runs: Iterable[RunSummary]) -> Field:
    """The field that a name means. Raises UserError where it means none."""
    try:
        return field_of(name, runs, otherwise=f"there are {', '.join(FIELDS)}, metrics, and fields of the spec")
    except QueryError as error:
        raise UserError(str(error), code="malformed_filter") from error


def _read(paths: Sequence[str]) -> list[RunSummary]:
    if not paths:
        return []
    from orchestrator.review.summary import summarize_each  # takes longer to import than all else

    return summarize_each([RunDir(Path(path)) for path in paths], with_disk_use=True)


def _parsed(name: str, query: str, runs: Sequence[RunSummary]) -> Query:
    try:
        return read_query(query, runs)
    except QueryError as error:
        place = "" if error.place is None else f"\n{_marked(query, error.place)}"
        raise UserError(f"{name}: {error}{place}", code="malformed_filter") from error


def _marked(query: str, place: int) -> str:
    """The part of a query around a place, and below it a mark."""
    begin = max(0, place - _SHOWN_OF_A_QUERY)
    part = "".join(letter if letter.isprintable() else " " for letter in query[begin : place + _SHOWN_OF_A_QUERY])
    return f"      {part}\n      {' ' * (place - begin)}^"


def _with_goodput(summary: RunSummary) -> RunSummary:
    if summary.is_settled and summary.goodput is not None:
        return summary
    from orchestrator.review.summary import with_goodput

    return with_goodput(summary, time.time())
