"""What an answer has room for: none is larger than 64 KB. Long tables come a page at a time, of texts the beginning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar
from urllib.parse import urlencode

from fastapi import Depends, Query

from orchestrator.review.charts.axes import XAxis
from orchestrator.review.charts.curves import View
from orchestrator.review.logs.page_size import fitting

T = TypeVar("T")


def asked_view(
    x: XAxis = "steps",
    smoothing: Annotated[float, Query(ge=0, lt=1)] = 0.0,
    log: bool = False,
    perplexity: bool = False,
    begin: Annotated[float | None, Query(alias="from", allow_inf_nan=False)] = None,
    end: Annotated[float | None, Query(alias="to", allow_inf_nan=False)] = None,
) -> View:
    """How an address says that curves are looked at; `from` and `to` are numbers of the x axis."""
    return View(x, smoothing, log, perplexity, (begin, end))


AskedView = Annotated[View, Depends(asked_view)]

Begin = Annotated[int, Query(alias="from", ge=0, le=1 << 30)]
"""The place of the first row that is asked for, from 0."""
_ROOM, _BESIDE = 44 << 10, 250
"""Bytes of a page of a table, and of a row beside its text."""


@dataclass(frozen=True)
class Part(Generic[T]):
    """A page of a table. `before`, `after`: the addresses of those beside it, where there are any."""

    items: Sequence[T]
    begin: int
    count: int
    """Of all rows."""
    before: str | None
    after: str | None


def part_of(
    items: Sequence[T],
    begin: int,
    most: int,
    asked: Mapping[str, object] | None = None,
    text: Callable[[T], str] = lambda item: "",
    room: int = _ROOM,
    beside: int = _BESIDE,
) -> Part[T]:
    """A page of a table from a row on. `asked`: the other parameters of its address; `text`: what is long in a row;
    `room`, `beside`: bytes of the table, and of a row beside that text.
    """
    kept = fitting(items[begin : begin + most], text, room, beside, at_least=1)
    end = begin + len(kept)
    address = "?" + urlencode({**(asked or {}), "from": ""})
    before = f"{address}{max(0, begin - most)}" if begin > 0 else None
    return Part(kept, begin, len(items), before, f"{address}{end}" if end < len(items) else None)


@dataclass(frozen=True)
class FirstRows(Generic[T]):
    """The first rows of a table, and how many `more` there are."""

    items: Sequence[T]
    more: int


def head_of(items: Sequence[T], text: Callable[[T], str], room: int, beside: int) -> FirstRows[T]:
    """As many rows as fit into `room` bytes, each with `beside` of them."""
    kept = fitting(items, text, room, beside)
    return FirstRows(kept, len(items) - len(kept))


@dataclass(frozen=True)
class Excerpt:
    """The beginning of a text. `whole`: where all of it can be had, if this is not all."""

    text: str
    whole: str | None


def beginning(text: str, room: int, whole: str) -> Excerpt:
    """As many lines of a text as fit into `room` bytes; at least a part of the first. `whole`: the address of all."""
    lines = text.splitlines(keepends=True)
    kept = fitting(lines, str, room, 0)
    if len(kept) == len(lines):
        return Excerpt(text, None)
    return Excerpt("".join(kept) or lines[0][: room // 6], whole)
