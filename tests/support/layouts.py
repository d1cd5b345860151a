"""For tests of the tuner: every legal layout of a job one by one, and estimates that follow simple laws."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from orchestrator.planning.memory import Memory, StageMemory
from orchestrator.planning.time import StepTime
from orchestrator.spec.job import JobSpec
from orchestrator.tuning.estimates import Candidate
from orchestrator.tuning.layout import NO_RECOMPUTE, SELECTIVE, Layout, layout_of
from orchestrator.tuning.space import Space

GIB = 2**30


def everything(space: Space) -> Iterator[Layout]:
    """Every legal layout that the tuner could choose, without any shortcut."""
    inside, across, _ = space.degrees()
    for degrees in (*inside, *across):
        for vp, micro in product(space.chunks(degrees), space.micro_batches(degrees)):
            recomputes = space.recomputes(degrees, vp)
            if NO_RECOMPUTE in recomputes and "recompute" not in space.kept:
                recomputes = [*recomputes, SELECTIVE]
            for recompute, switches in product(recomputes, _switches(space, degrees)):
                changes: dict[str, Any] = {"vp": vp, "micro_batch_size": micro, "recompute": recompute, **switches}
                layout = degrees._replace(**changes)
                if space.problem(layout) is None:
                    yield layout


def _switches(space: Space, degrees: Layout) -> list[dict[str, bool]]:
    names = ("sequence_parallel", "use_distributed_optimizer", "overlap_grad_reduce")
    free = [name for name in names if name not in space.kept and getattr(degrees, name)]
    joined = [False, True] if space.may_join_loss else [degrees.joins_loss]
    return [
        {**dict(zip(free, each, strict=True)), "joins_loss": joins}
        for each in product([True, False], repeat=len(free))
        for joins in joined
    ]


@dataclass(frozen=True)
class Laws:
    """Estimates that follow a law each: bytes of the fullest GPU, and seconds by part, of a job."""

    memory_bytes: int | None
    bytes_of: Callable[[JobSpec], int]
    parts_of: Callable[[JobSpec], Mapping[str, float]]

    def settled(self, job: JobSpec) -> JobSpec:
        return job

    def memory(self, job: JobSpec) -> Memory:
        needed = self.bytes_of(job)
        stage = StageMemory(0, {"weights": needed}, needed, needed, "start")
        return Memory((stage,), needed, needed)

    def time(self, job: JobSpec) -> StepTime:
        parts = self.parts_of(job)
        return StepTime(sum(parts.values()), parts, 1e15, 1000.0, 100.0, 0.1)

    def candidate(self, job: JobSpec) -> Candidate:
        """A job as the search would hand it on."""
        return Candidate(layout_of(job), job, self.memory(job), self.time(job))
