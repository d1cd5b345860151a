"""The pipeline schedules: which pass a stage does when, how many activations it holds meanwhile, and the bubble.

1F1B (Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters", section 2.2) and, with
several model chunks per stage, its interleaved form, in the order in which megatron-core's schedules do them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Pass(NamedTuple):
    """One forward or backward pass of a model chunk over a micro-batch."""

    forward: bool
    chunk: int
    micro_batch: int


class Span(NamedTuple):
    """A pass of a stage and when it runs, in seconds from the start of the step."""

    stage: int
    what: Pass
    start: float
    end: float


class Timeline(NamedTuple):
    """A step's passes over all stages."""

    spans: tuple[tuple[Span, ...], ...]
    """Of each stage, in order."""
    seconds: float
    """From the first pass to the end of the last."""

    def idle(self, stage: int) -> float:
        """Seconds of the step in which a stage does nothing: its bubble."""
        return self.seconds - sum(span.end - span.start for span in self.spans[stage])


def passes_of(stage: int, stages: int, chunks: int, micro_batches: int) -> list[Pass]:
    """The passes of a stage in order: warm-up forwards, then a forward and a backward in turn, then backwards."""
    order = _chunk_order(stages, chunks, micro_batches)
    total = len(order)
    if chunks == 1:
        warmup = min(stages - stage - 1, total)
    else:
        warmup = min((stages - stage - 1) * 2 + (chunks - 1) * stages, total)
    forwards = [Pass(True, chunk, micro_batch) for chunk, micro_batch in order]
    backwards = [Pass(False, chunks - 1 - chunk, micro_batch) for chunk, micro_batch in order]
    steady = [each for pair in zip(forwards[warmup:], backwards, strict=False) for each in pair]
    return [*forwards[:warmup], *steady, *backwards[total - warmup :]]


def in_flight(stage: int, stages: int, chunks: int, micro_batches: int) -> tuple[tuple[int, ...], ...]:
    """The passes of each model chunk whose activations a stage holds, whenever it holds most of them: forwards done or
    running whose backward is not done. Each counts one chunk over one micro-batch.
    """
    held = [0] * chunks
    fullest = {tuple(held): None}  # in the order in which they are met
    for each in passes_of(stage, stages, chunks, micro_batches):
        held[each.chunk] += 1 if each.forward else -1
        most = sum(next(iter(fullest)))
        if sum(held) > most:
            fullest = {tuple(held): None}
        elif sum(held) == most:
            fullest[tuple(held)] = None
    return tuple(fullest)


def timeline(
    forward: Sequence[Sequence[float]], backward: Sequence[Sequence[float]], micro_batches: int, transfer: float = 0.0
) -> Timeline:
    """Run a step. `forward[stage][chunk]` and `backward[stage][chunk]` are seconds of one pass over a micro-batch,
    `transfer` the seconds between the end of a pass and the start of the next stage's that needs its result.
    """
    stages, chunks = len(forward), len(forward[0])
    waiting = [passes_of(stage, stages, chunks, micro_batches) for stage in range(stages)]
    spans: list[list[Span]] = [[] for _ in range(stages)]
    done: dict[tuple[int, Pass], float] = {}
    free = [0.0] * stages
    stage, stuck = 0, 0
    while stuck < stages:  # in rounds over the stages, each as far as it can go
        stuck += 1
        while len(spans[stage]) < len(waiting[stage]):
            what = waiting[stage][len(spans[stage])]
            needed = _needed(stage, what, stages, chunks)
            if needed is not None and needed not in done:
                break
            ready = 0.0
            if needed is not None:
                ready = done[needed] + (transfer if needed[0] != stage else 0.0)
            start = max(free[stage], ready)
            end = start + (forward if what.forward else backward)[stage][what.chunk]
            spans[stage].append(Span(stage, what, start, end))
            done[stage, what] = free[stage] = end
            stuck = 0
        stage = (stage + 1) % stages
    return Timeline(tuple(tuple(each) for each in spans), max(free))


def _chunk_order(stages: int, chunks: int, micro_batches: int) -> list[tuple[int, int]]:
    """(chunk, micro-batch) in the order of a stage's forwards: as many micro-batches as stages through each chunk."""
    if chunks == 1:
        return [(0, micro_batch) for micro_batch in range(micro_batches)]
    return [
        (chunk, micro_batch)
        for first in range(0, micro_batches, stages)
        for chunk in range(chunks)
        for micro_batch in range(first, min(first + stages, micro_batches))
    ]


def _needed(stage: int, what: Pass, stages: int, chunks: int) -> tuple[int, Pass] | None:
    """The pass whose result a pass takes: the one before it in the model, or after it for a backward."""
    if what.forward:
        if stage > 0:
            return stage - 1, what
        return (stages - 1, what._replace(chunk=what.chunk - 1)) if what.chunk > 0 else None
    if stage < stages - 1:
        return stage + 1, what
    if what.chunk < chunks - 1:
        return 0, what._replace(chunk=what.chunk + 1)
    return stage, what._replace(forward=True)
