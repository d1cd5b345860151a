"""Seconds of the passes of a step over all pipeline stages."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.planning.layout.pipeline import timeline

_MOST_PASSES = 256
"""Up to so many passes of all stages the schedule is played through, which takes a millisecond."""


def pipeline_seconds(
    forward: Sequence[Sequence[float]], backward: Sequence[Sequence[float]], micro_batches: int, transfer: float
) -> float:
    """From the first pass to the end of the last. `forward[stage][chunk]`: seconds of one pass over a micro-batch."""
    stages, chunks = len(forward), len(forward[0])
    if stages == 1:
        return micro_batches * (sum(forward[0]) + sum(backward[0]))
    if 2 * stages * chunks * micro_batches <= _MOST_PASSES:
        return timeline(forward, backward, micro_batches, transfer).seconds
    return closed_form(forward, backward, micro_batches, transfer)


def closed_form(
    forward: Sequence[Sequence[float]], backward: Sequence[Sequence[float]], micro_batches: int, transfer: float
) -> float:
    """The slowest stage is never idle but while the pipeline fills and drains: one chunk's forward and backward through
    each other stage (Narayanan et al. 2021, section 2.2).
    """
    chunks = len(forward[0])
    busy = [sum(ahead) + sum(back) for ahead, back in zip(forward, backward, strict=True)]
    slowest = max(busy)
    filling = (sum(busy) - slowest) / chunks + 2 * (len(busy) - 1) * transfer
    return micro_batches * slowest + filling
