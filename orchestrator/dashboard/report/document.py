"""What a report consists of, before it is HTML or Markdown: sections of words, tables, lines and curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from orchestrator.review.charts.curves import Figure


@dataclass(frozen=True)
class Paragraph:
    """A paragraph. `tone`: how it is meant."""

    text: str
    tone: Literal["plain", "dim", "warning", "problem"] = "plain"
    kind: Literal["words"] = "words"


@dataclass(frozen=True)
class Table:
    """Rows of text under a head. `numbers`: columns that are figures; `strong`: (row, column) of what stands out."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[int] = frozenset()
    strong: frozenset[tuple[int, int]] = frozenset()
    kind: Literal["table"] = "table"


@dataclass(frozen=True)
class Facts:
    """Names and what they are."""

    pairs: tuple[tuple[str, str], ...]
    kind: Literal["facts"] = "facts"


@dataclass(frozen=True)
class Lines:
    """Lines of a log or a file, as they are."""

    lines: tuple[str, ...]
    kind: Literal["lines"] = "lines"


@dataclass(frozen=True)
class Curves:
    """Charts beside each other: names that are unique in the report, and figures of plotly."""

    charts: tuple[tuple[str, Figure], ...]
    kind: Literal["curves"] = "curves"


Block: TypeAlias = Paragraph | Table | Facts | Lines | Curves


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it. `level` 1 is a run or the comparison, 2 a part of it. `state`: of the run."""

    title: str
    level: Literal[1, 2]
    blocks: tuple[Block, ...] = ()
    state: str | None = None


@dataclass(frozen=True)
class Document:
    """A report. `made`: seconds since the epoch; `note`: the person's own words."""

    title: str
    made: float
    by: str
    version: str
    note: str
    sections: tuple[Section, ...] = field(default=())


def section(title: str, blocks: Sequence[Block | None]) -> Section | None:
    """A part of a run; None where there is nothing to say."""
    found = tuple(block for block in blocks if block is not None)
    return Section(title, 2, found) if found else None


def table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> Table | None:
    """A table; None without rows."""
    return Table(tuple(head), tuple(tuple(row) for row in rows), frozenset(numbers)) if rows else None
