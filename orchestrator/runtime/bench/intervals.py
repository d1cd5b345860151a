"""Arithmetic of intervals: which part of a stretch of time goes to what."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

IDLE = "idle"


class Span(NamedTuple):
    """Something that went on from `start` to `end`, in any one unit."""

    label: str
    start: float
    end: float

    @property
    def length(self) -> float:
        """Never negative: what was cut away altogether has none."""
        return max(self.end - self.start, 0.0)


def cut(spans: Iterable[Span], start: float, end: float) -> list[Span]:
    """What of the spans lies between `start` and `end`."""
    inside = (Span(each.label, max(each.start, start), min(each.end, end)) for each in spans)
    return [each for each in inside if each.start < each.end]


def union(spans: Iterable[Span]) -> float:
    """How long at least one of the spans went on."""
    total, reached = 0.0, float("-inf")
    for _, start, end in sorted(spans, key=lambda each: each.start):
        total += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    return total


def partition(spans: Iterable[Span], start: float, end: float, rank: Callable[[str], int]) -> dict[str, float]:
    """How long each label has the time between `start` and `end` to itself; with IDLE they add up to `end - start`.

    Where several labels go on at once the time is that of the one with the lowest `rank`; of equals, that of the one
    which began first.
    """
    shares: dict[str, float] = {IDLE: 0.0}
    waiting = sorted(cut(spans, start, end), key=lambda each: each.start)
    edges = sorted({start, end, *(edge for each in waiting for edge in (each.start, each.end))})
    going_on: list[tuple[int, float, str, float]] = []
    next_one = 0
    for here, there in itertools.pairwise(edges):
        while next_one < len(waiting) and waiting[next_one].start <= here:
            each = waiting[next_one]
            heapq.heappush(going_on, (rank(each.label), each.start, each.label, each.end))
            next_one += 1
        while going_on and going_on[0][3] <= here:
            heapq.heappop(going_on)
        label = going_on[0][2] if going_on else IDLE
        shares[label] = shares.get(label, 0.0) + there - here
    return shares


def innermost(nested: Sequence[Span], label: Callable[[str, str | None], str | None]) -> list[Span]:
    """What one thread did, from operations that call each other: at each moment that of the operation called last.

    `label(name, outer)`: what an operation is, given what the one that calls it is; None where it is nothing of its
    own, whose time is then left out.
    """
    found: list[Span] = []
    open_ones: list[tuple[Span, str | None]] = []
    reached = float("-inf")

    def close(until: float) -> None:
        """Give the time up to `until` to who is open then, the last called first."""
        nonlocal reached
        while open_ones:
            each, known = open_ones[-1]
            stop = min(each.end, until)
            if stop > reached:
                if known is not None:
                    found.append(Span(known, reached, stop))
                reached = stop
            if each.end > until:
                return
            open_ones.pop()

    for each in sorted(nested, key=lambda one: (one.start, -one.end)):
        close(each.start)
        reached = max(reached, each.start)
        outer = open_ones[-1][1] if open_ones else None
        open_ones.append((each, label(each.label, outer)))
    close(float("inf"))
    return found
