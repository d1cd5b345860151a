"""A profiler's trace of some steps, and what the last of them was made of."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.runtime.bench.intervals import IDLE, Span, cut, innermost, partition, union
from orchestrator.runtime.bench.kernels import (
    ATTENTION,
    COMMUNICATION,
    COMPUTE,
    GEMM,
    HOST_COPIES,
    LOSS,
    MARK,
    MEMORY_BOUND,
    OPTIMIZER,
    OTHER,
    computes,
    kind_of_communication,
    part_of_kernel,
    part_of_operation,
)

END, PASSES, UPDATE = "end", "passes", "update"
"""Moments of a step: all its work is started; the forward passes begin; the update of the weights begins."""
ANNOTATION = "orchestrator bench: "
"""On the CPU a moment is an annotation of this name."""

_LARGEST = 20
_ON_GPU = {"kernel", "gpu_memcpy", "gpu_memset"}
_MICROSECOND = 1e-6


@dataclass(frozen=True)
class Event:
    """A kernel, or an operation of torch; times in seconds."""

    name: str
    thread: str
    """The stream, or the thread on the CPU."""
    start: float
    end: float


def read_trace(path: Path, *, on_gpu: bool) -> list[Event]:
    """The kernels of a trace in Chrome's format, or else the operations and annotations on the CPU, by their start."""
    wanted = _ON_GPU if on_gpu else {"cpu_op", "user_annotation"}
    events = []
    for each in json.loads(path.read_text(errors="replace"))["traceEvents"]:
        if each.get("ph") == "X" and each.get("cat") in wanted:
            start = each["ts"] * _MICROSECOND
            events.append(
                Event(each["name"], f"{each['pid']} {each['tid']}", start, start + each["dur"] * _MICROSECOND)
            )
    return sorted(events, key=lambda each: each.start)


def breakdown(events: Sequence[Event], marks: Sequence[str], *, on_gpu: bool, is_alone: bool = False) -> dict[str, Any]:
    """What the last marked step was made of. `marks`: the moments in the order in which they were marked; `is_alone`:
    this is the only process, so that collectives are copies within its own memory.

    `parts` and `idle` add up to `seconds`. Raises ValueError when the trace does not hold the moments.
    """
    moments = _moments(events, marks, on_gpu=on_gpu)
    ends = [when for name, when in moments if name == END]
    start, end = ends[-2], ends[-1]
    inside = [(name, when) for name, when in moments if start <= when < end]
    if [name for name, _ in inside] != [END, PASSES, UPDATE]:
        raise ValueError(f"the profiled step has other moments: {', '.join(name for name, _ in inside)}")
    work = _kernels(events) if on_gpu else _operations(events)
    spans = cut(work, start, end)
    own = {COMMUNICATION: MEMORY_BOUND} if is_alone else {}
    labels = [own.get(part, part) for part in (_part(each.label) for each in spans)]
    whole = [
        Span(_in_update(part, each, inside), each.start, each.end) for part, each in zip(labels, spans, strict=True)
    ]
    parts = partition(whole, start, end, _priority)
    idle = parts.pop(IDLE)
    compute = [each for each in whole if each.label in COMPUTE]
    named = list(zip(spans, whole, strict=True))
    return {
        "seconds": end - start,
        "parts": {part: parts.get(part, 0.0) for part in (*COMPUTE, COMMUNICATION, HOST_COPIES)},
        "idle": idle,
        "busy": {
            part: {"seconds": sum(each.length for each in of_part), "kernels": len(of_part)}
            for part in (*COMPUTE, COMMUNICATION, HOST_COPIES)
            if (of_part := [each for each in whole if each.label == part])
        },
        "compute_seconds": union(compute),
        "classified": _classified(compute),
        "communication": _communication(named, whole, start, end),
        "largest": _largest(named, None),
        "unclassified": _largest(named, OTHER),
    }


def _moments(events: Sequence[Event], marks: Sequence[str], *, on_gpu: bool) -> list[tuple[str, float]]:
    """Marked moments with their times, in order."""
    if on_gpu:
        times = [each.end for each in events if MARK in each.name]
        if not len(marks) - 1 <= len(times) <= len(marks):
            raise ValueError(f"the trace holds {len(times)} of {len(marks)} marked moments")
        # The first is marked as the profiler begins, and may come before it by the GPU's clock.
        found = list(zip(marks[len(marks) - len(times) :], times, strict=True))
    else:
        found = [
            (each.name.removeprefix(ANNOTATION), each.start) for each in events if each.name.startswith(ANNOTATION)
        ]
    if [name for name, _ in found].count(END) < 2:
        raise ValueError("the trace holds no whole step")
    return found


def _kernels(events: Sequence[Event]) -> list[Span]:
    """The kernels of each stream; labels are `part|name`."""
    streams: dict[str, list[Event]] = defaultdict(list)
    for each in events:
        if MARK not in each.name:
            streams[each.thread].append(each)
    return [span for stream in streams.values() for span in _of_stream(stream)]


def _of_stream(kernels: Sequence[Event]) -> Iterator[Span]:
    """One stream's kernels in their order. Between two products, whatever moves memory beside the kernels of a loss is
    the loss's too: scaling a gradient has no name of its own.
    """
    parts = [part_of_kernel(each.name) for each in kernels]
    edges = [-1, *(index for index, part in enumerate(parts) if part in (GEMM, ATTENTION)), len(parts)]
    for before, after in itertools.pairwise(edges):
        if LOSS in parts[before + 1 : after]:
            parts[before + 1 : after] = [LOSS if part == MEMORY_BOUND else part for part in parts[before + 1 : after]]
    return (Span(f"{part}|{each.name}", each.start, each.end) for part, each in zip(parts, kernels, strict=True))


def _operations(events: Sequence[Event]) -> list[Span]:
    """What each thread did; labels are `part|name of the operation`."""
    threads: dict[str, list[Span]] = defaultdict(list)
    for each in events:
        if not each.name.startswith(ANNOTATION):
            threads[each.thread].append(Span(each.name, each.start, each.end))
    found = [span for thread in threads.values() for span in innermost(thread, _labelled)]
    return [span for span in found if computes(_name(span.label))]


def _labelled(name: str, outer: str | None) -> str | None:
    part = part_of_operation(name, outer.partition("|")[0] if outer else None)
    return f"{part}|{name}" if part else None


def _part(label: str) -> str:
    return label.partition("|")[0]


def _in_update(part: str, span: Span, moments: Sequence[tuple[str, float]]) -> str:
    """Whatever computes during the update of the weights, or sets gradients to zero before the passes, is its part."""
    if part not in COMPUTE:
        return part
    latest = END
    for name, when in moments:
        if when <= span.start:
            latest = name
    return part if latest == PASSES else OPTIMIZER


def _priority(part: str) -> int:
    """Computing hides communication, and that hides copies."""
    return {COMMUNICATION: 1, HOST_COPIES: 2}.get(part, 0)


def _classified(compute: Sequence[Span]) -> float:
    """Part of the kernels' time whose part of the step is known."""
    total = sum(each.length for each in compute)
    unknown = sum(each.length for each in compute if each.label == OTHER)
    return 1.0 - unknown / total if total else 1.0


def _communication(
    named: Sequence[tuple[Span, Span]], whole: Sequence[Span], start: float, end: float
) -> dict[str, dict[str, float]]:
    """By kind: how long its kernels ran, and how long of that nothing was computed."""
    kinds = [
        Span(kind_of_communication(_name(one.label)), one.start, one.end)
        for one, other in named
        if other.label == COMMUNICATION
    ]
    alone = partition([*(each for each in whole if each.label in COMPUTE), *kinds], start, end, _computing_first)
    return {
        kind: {
            "seconds": sum(each.length for each in kinds if each.label == kind),
            "exposed": alone.get(kind, 0.0),
            "kernels": sum(each.label == kind for each in kinds),
        }
        for kind in sorted({each.label for each in kinds})
    }


def _computing_first(label: str) -> int:
    return 0 if label in COMPUTE else 1


def _largest(named: Sequence[tuple[Span, Span]], part: str | None) -> list[Mapping[str, Any]]:
    """The kernels that took longest, of one part or of all."""
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0])
    for one, other in named:
        if part in (None, other.label):
            entry = sums[_name(one.label), other.label]
            entry[0] += one.length
            entry[1] += 1
    order = sorted(sums.items(), key=lambda item: -item[1][0])[:_LARGEST]
    return [{"name": name, "part": of, "seconds": each[0], "count": int(each[1])} for (name, of), each in order]


def _name(label: str) -> str:
    return label.partition("|")[2]
