"""Columns of the table of runs that a person chooses: metrics and fields of the spec, beside the page's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from orchestrator.fields.formatting import shorten
from orchestrator.review.filters.run_fields import FIELDS, QueryError, field_of
from orchestrator.review.run_summary import RunSummary
from orchestrator.review.table import COLUMNS, Column, Kind
from orchestrator.spec.documents.field_names import short_name

_KEPT_BACK = ("launch.env.", "notifications.")
"""Fields that may hold secrets are no columns."""


def column_of(name: str, runs: Sequence[RunSummary]) -> Column | None:
    """The column of that name: one of the page's own, a metric, or a field of the spec by its path or its short name;
    None where no run has such a thing.
    """
    if name in COLUMNS:
        return COLUMNS[name]
    try:
        field = field_of(name, runs)
    except QueryError:
        return None
    key = field.key
    if key in FIELDS or key.startswith(_KEPT_BACK):
        return None
    if field.kind == "spec":
        values = [_number_or_text(run.spec[key]) for run in runs if key in run.spec]
        kind: Kind = "text" if any(isinstance(value, str) for value in values) else "figure"
        column = Column(name, short_name(key), lambda run: _number_or_text(run.spec.get(key)), kind, path=key)
        return column if values else None
    is_measured = any(key in run.values for run in runs)
    return Column(name, shorten(name), lambda run: run.values.get(key), "figure") if is_measured else None


def offered_columns(runs: Sequence[RunSummary], words: Sequence[str]) -> list[str]:
    """Columns to choose from that have all of these words in their names: the page's own, metrics, fields of the spec
    in which the runs differ, then those in which they do not.
    """
    metrics = sorted({key for run in runs for key in run.values})
    found: dict[tuple[str, str], None] = {}
    for run in runs:  # of thousands, with hundreds of fields each: nothing here is done for each field
        found.update(dict.fromkeys(run.spec.items()))
    values = Counter(path for path, _ in found if not path.startswith(_KEPT_BACK))
    fields = sorted(values, key=lambda path: values[path] < 2)
    labels = {name: f"{name} {column.label}".casefold() for name, column in COLUMNS.items()}
    return [
        name
        for name in dict.fromkeys([*COLUMNS, *metrics, *fields])
        if all(word in labels.get(name, name.casefold()) for word in words)
    ]


def _number_or_text(text: str | None) -> str | float | None:
    """A value of a spec: numbers are ordered as such."""
    if text is None or text == "null":
        return None
    try:
        return float(text)
    except ValueError:
        return text
