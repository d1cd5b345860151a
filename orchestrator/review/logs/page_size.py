"""What fits into an answer of the dashboard: none is larger than 64 KB."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import TypeVar

T = TypeVar("T")


@dataclass
class PageBudget:
    """The bytes that are left for the rows of a page; the first `at_least` rows are taken whatever their size."""

    bytes: int
    at_least: int = 0

    def takes(self, text: str, beside: int) -> bool:
        """Whether the next row fits: its text, and `beside` bytes of markup. If it does, it takes their room."""
        self.bytes -= html_bytes(text) + beside
        self.at_least -= 1
        return self.bytes >= 0 or self.at_least >= 0


def fitting(items: Iterable[T], text: Callable[[T], str], room: int, beside: int, at_least: int = 0) -> list[T]:
    """The first rows whose texts, each with `beside` bytes of markup, fit into `room` bytes; `at_least` as many."""
    left = PageBudget(room, at_least)
    return list(takewhile(lambda item: left.takes(text(item), beside), items))


def html_bytes(text: str) -> int:
    """Bytes of a text in HTML."""
    return len(html.escape(text).encode(errors="replace"))
