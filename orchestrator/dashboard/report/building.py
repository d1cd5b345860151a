"""From runs to a report: what compares them, then each by itself."""

from __future__ import annotations

import getpass
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.dashboard.rendering import NOTHING, count, duration, exact, number, percent, size
from orchestrator.dashboard.report.document import (
    Block,
    Curves,
    Document,
    Facts,
    Lines,
    Paragraph,
    Section,
    Table,
    table,
)
from orchestrator.dashboard.report.runs import run_sections, steps
from orchestrator.review.charts.catalogue import CHARTS
from orchestrator.review.charts.curves import figure_of
from orchestrator.review.charts.series import GrowingSeries, Series
from orchestrator.review.compare import MOST_RUNS, Comparison, Kind, Row, compare
from orchestrator.review.damage import readable
from orchestrator.review.redaction import Redaction
from orchestrator.review.run_summary import RunSummary
from orchestrator.review.summary import summarize_each, with_goodput
from orchestrator.run_directory.rundir import RunDir
from orchestrator.version import __version__

MOST_WITH_CURVES = 12
"""Of more runs each has its tables, and only the comparison has curves: a browser must open the file."""
_COMPARED = ("loss", "grad_norm", "lr", "speed")


@dataclass(frozen=True)
class ReportRequest:
    """What a person asks for. An empty title: the names of the runs."""

    runs: tuple[RunDir, ...]
    title: str = ""
    note: str = ""


def build(wanted: ReportRequest) -> Document:
    """The report on some runs, as they are at this moment."""
    summaries = [with_goodput(summary, time.time()) for summary in summarize_each(wanted.runs)]
    series = [readable(GrowingSeries(run.metrics_file).refresh)[0] or Series() for run in wanted.runs]
    discretion = Redaction([summary.spec for summary in summaries])
    sections = []
    if len(summaries) > 1:
        sections += _comparison(compare(summaries, series), series, discretion)
    for place, (summary, its) in enumerate(zip(summaries, series, strict=True), 1):
        drawn = len(summaries) <= MOST_WITH_CURVES
        sections += run_sections(summary, its, discretion, number=place, curves=drawn)
    title = wanted.title or _title(summaries)
    return Document(
        title=discretion.text(title),
        made=time.time(),
        by=_person(),
        version=__version__,
        note=discretion.text(wanted.note),
        sections=tuple(replace(each, blocks=tuple(_discreet(b, discretion) for b in each.blocks)) for each in sections),
    )


def _title(summaries: Sequence[RunSummary]) -> str:
    keys = [summary.key for summary in summaries]
    sweeps = {summary.sweep for summary in summaries}
    if len(keys) > 1 and len(sweeps) == 1 and None not in sweeps:
        return f"Sweep {sweeps.pop()}"
    return (
        keys[0] if len(keys) == 1 else f"{', '.join(keys[:3])}{f' and {len(keys) - 3} more' if len(keys) > 3 else ''}"
    )


def _person() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return NOTHING


def _comparison(found: Comparison, series: Sequence[Series], discretion: Redaction) -> list[Section]:
    rows = [
        (label, run.key, run.state, steps(run), _more_than_state(run))
        for run, label in zip(found.runs, found.labels, strict=True)
    ]
    known = 5 if any(row[-1] for row in rows) else 4
    differing = [
        (each.path, *(discretion.value(each.path, value) for value in each.values)) for each in found.differences
    ]
    blocks: list[Block | None] = [
        table(("", "Run", "State", "Steps", "What is known")[:known], [row[:known] for row in rows], (3,))
    ]
    parts: list[tuple[str, list[Block | None]]] = [
        ("Differences", [table(("Field", *found.labels), differing) or Paragraph("The specs do not differ.", "dim")]),
        ("Results", [_measures(found)]),
        ("Curves", _curves(found, series)),
    ]
    sections = [Section("Comparison", 1, tuple(block for block in blocks if block is not None))]
    return sections + [Section(title, 2, tuple(each for each in made if each is not None)) for title, made in parts]


def _more_than_state(run: RunSummary) -> str:
    return "" if run.description == run.state else run.description


def _measures(found: Comparison) -> Block:
    """Each measure of each run; runs are rows where there are many of them."""
    rows = [(_titled(row, found), *(_text(value, row.measure.kind) for value in row.values)) for row in found.rows]
    best = {(number, place + 1) for number, row in enumerate(found.rows) for place in row.best}
    head: tuple[str, ...] = ("", *found.labels)
    if len(found.runs) > len(found.rows):
        turned = list(zip(head, *rows, strict=True))
        head, rows = turned[0], turned[1:]
        best = {(column - 1, row + 1) for row, column in best}
    return Table(head, tuple(rows), frozenset(range(1, len(head))), frozenset(best))


def _titled(row: Row, found: Comparison) -> str:
    return f"loss at step {exact(found.common_step)}" if row.measure.name == "common_loss" else row.measure.title


def _text(value: float | None, kind: Kind) -> str:
    written = {"number": number, "count": count, "percent": percent, "seconds": duration, "bytes": size}
    return number(value, 5) if kind == "number" else written[kind](value)


def _curves(found: Comparison, series: Sequence[Series]) -> list[Block | None]:
    shown = dict(list(zip(found.labels, series, strict=True))[:MOST_RUNS])
    charts = []
    for name in _COMPARED:
        made = figure_of(CHARTS[name], shown)
        if made["data"]:
            charts.append((f"all-{name}", made))
    hidden = len(series) - len(shown)
    return [
        Curves(tuple(charts)) if charts else Paragraph("Nothing was measured.", "dim"),
        Paragraph(f"The curves of {hidden} more runs are not drawn.", "dim") if hidden else None,
    ]


def _discreet(block: Block, discretion: Redaction) -> Block:
    """The same without what is secret."""
    said = discretion.text
    match block:
        case Paragraph():
            return replace(block, text=said(block.text))
        case Facts():
            return replace(block, pairs=tuple((name, said(text)) for name, text in block.pairs))
        case Lines():
            return replace(block, lines=tuple(said(line) for line in block.lines))
        case Table():
            head = tuple(said(cell) for cell in block.head)
            return replace(block, head=head, rows=tuple(tuple(said(cell) for cell in row) for row in block.rows))
        case Curves():
            return replace(block, charts=tuple((name, _plain(figure, discretion)) for name, figure in block.charts))


def _plain(value: Any, discretion: Redaction) -> Any:
    if isinstance(value, str):
        return discretion.text(value)
    if isinstance(value, dict):
        return {key: _plain(item, discretion) for key, item in value.items()}
    if isinstance(value, list) and any(isinstance(item, str | dict | list) for item in value):
        return [_plain(item, discretion) for item in value]
    return value
