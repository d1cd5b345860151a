"""Machines to tune for, and how many would do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from orchestrator.errors import UserError
from orchestrator.tuning.estimates import Estimates
from orchestrator.tuning.layout import on_machines
from orchestrator.tuning.search import can_fit
from orchestrator.tuning.space import Space

_MOST_TRIED = 200
_MOST_GPUS = 100_000


def spread(gpus: int, per_node: int) -> tuple[int, int]:
    """(nodes, GPUs on each) for a number of GPUs: one machine as far as it goes, then whole ones.

    Raises UserError when they do not fill whole machines.
    """
    if gpus <= per_node:
        return 1, gpus
    if gpus % per_node:
        below = gpus // per_node * per_node
        raise UserError(
            f"--gpus {gpus}: machines have {per_node} GPUs, so use at most {per_node} or a multiple of it: "
            f"{below} or {below + per_node}",
            code="uneven_gpu_count",
        )
    return gpus // per_node, per_node


def enough(space: Space, estimates: Estimates, per_node: int) -> int | None:
    """The smallest number of GPUs, more than the job has, on which some layout fits; None where none was found.

    The global batch stays, so numbers that do not divide it are of no use.
    """
    for gpus in _numbers_above(space.job.world_size, per_node):
        job = on_machines(space.job, *spread(gpus, per_node))
        if can_fit(replace(space, job=job), estimates):
            return gpus
    return None


def _numbers_above(gpus: int, per_node: int) -> Iterator[int]:
    """Numbers of GPUs that fill machines: each one at first, then in growing steps, so that large ones are reached."""
    tried = 0
    while tried < _MOST_TRIED and gpus < _MOST_GPUS:
        if gpus < per_node:
            gpus += 1
        else:
            step = max(1, gpus // per_node // 16)
            gpus = (gpus // per_node + step) * per_node
        tried += 1
        yield gpus
