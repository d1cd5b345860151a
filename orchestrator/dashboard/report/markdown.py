"""The report as Markdown: words, tables, and curves as sparklines. No HTML in it, whatever runs are called."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from orchestrator.dashboard.rendering import clock, number
from orchestrator.dashboard.report.document import Block, Curves, Document, Facts, Lines, Paragraph, Section, Table
from orchestrator.dashboard.report.drawing import name_of

_SPARK = "▁▂▃▄▅▆▇█"
_SPARK_POINTS = 40
_SPECIAL = re.compile(r"[\\`*\[\]<>|#~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_MARKS = {"warning": "**Warning:** ", "problem": "**Problem:** "}


def to_markdown(report: Document) -> str:
    """The whole report."""
    parts = [
        f"# {_said(report.title)}",
        f"By {_said(report.by)}, {clock(report.made)}, orchestrator {_said(report.version)}",
    ]
    if report.note.strip():
        parts.append(report.note.strip())
    for each in report.sections:
        parts += _section(each)
    return "\n\n".join(parts) + "\n"


def _section(part: Section) -> list[str]:
    state = f" ({part.state})" if part.state else ""
    return [f"{'#' * (part.level + 1)} {_said(part.title)}{state}", *(_block(block) for block in part.blocks)]


def _block(block: Block) -> str:
    match block:
        case Paragraph():
            return _MARKS.get(block.tone, "") + _said(block.text)
        case Facts():
            return "\n".join(f"- {_said(name)}: {_said(text)}" for name, text in block.pairs)
        case Lines():
            return _fenced(block.lines)
        case Table():
            return _table(block)
        case Curves():
            return _curves(block)


def _said(text: str) -> str:
    """A text in one line in which nothing means anything to Markdown."""
    return _SPECIAL.sub(lambda found: "\\" + found.group(), " ".join(text.split()))


def _fenced(lines: Sequence[str]) -> str:
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}text", *("".join(line.splitlines()) for line in lines), fence])


def _table(found: Table) -> str:
    rows = [
        [f"**{_said(cell)}**" if (row, column) in found.strong else _said(cell) for column, cell in enumerate(cells)]
        for row, cells in enumerate(found.rows)
    ]
    rule = ["---:" if column in found.numbers else "---" for column in range(len(found.head))]
    lines = [[_said(cell) for cell in found.head], rule, *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _curves(found: Curves) -> str:
    rows = []
    for _, figure in found.charts:
        title = str(figure["layout"].get("title", {}).get("text", ""))
        unit = str(figure["layout"].get("yaxis", {}).get("title", {}).get("text", ""))
        title = f"{title} ({unit})" if unit else title
        for trace in figure["data"]:
            values = _values(trace)
            if values:
                ends = number(values[0]), number(values[-1])
                rows.append((title, name_of(trace), sparkline(values), *ends))
    return _table(Table(("Chart", "Curve", "", "From", "To"), tuple(rows), frozenset((3, 4)))) if rows else ""


def _values(trace: dict[str, Any]) -> list[float]:
    if trace.get("meta") in ("ticks", "undone"):
        return []
    return [float(y) for y in trace["y"] if isinstance(y, int | float) and math.isfinite(y)]


def sparkline(values: Sequence[float]) -> str:
    """Finite values as blocks of eight heights, at most 40 of them."""
    count = min(len(values), _SPARK_POINTS)
    chosen = [values[round(place * (len(values) - 1) / max(1, count - 1))] for place in range(count)]
    low, high = min(chosen), max(chosen)
    scale = max(abs(low), abs(high)) or 1.0  # their difference alone may be too large for a number
    span = high / scale - low / scale
    return "".join(_SPARK[round((value / scale - low / scale) / span * 7) if span > 0 else 3] for value in chosen)
