"""What a layout is estimated to need and to take, by planning's models of memory and time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol, TypeVar

from orchestrator.kernel_selection.auto_values import settled
from orchestrator.kernel_selection.machine import Machine
from orchestrator.planning.estimates import DeviceEstimates, machine_of
from orchestrator.planning.hardware import Device
from orchestrator.planning.memory import Memory, estimate_memory
from orchestrator.planning.slow_host import slow_host_seconds
from orchestrator.planning.time import StepTime, estimate_time
from orchestrator.planning.vocabulary import padded_vocab_size
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.runtime import Layers
from orchestrator.tuning.layout import Layout, with_layout


class Estimates(Protocol):
    """What the search asks of a layout, and what it may need."""

    @property
    def memory_bytes(self) -> int | None:
        """What a GPU has; None where nothing is known to limit a job."""

    def settled(self, job: JobSpec) -> JobSpec:
        """The job with what a run would choose for it: memory and time of either are the same."""

    def memory(self, job: JobSpec) -> Memory:
        """What each rank needs."""

    def time(self, job: JobSpec) -> StepTime:
        """What a step takes."""


@dataclass(frozen=True)
class PlanEstimates:
    """The estimates of planning, for one device."""

    device: Device
    layers: Layers
    vocab_size: int
    """Tokens before padding, which depends on the layout."""

    @property
    def memory_bytes(self) -> int | None:
        """What a GPU has; None for the CPU."""
        return self.device.memory_bytes

    def settled(self, job: JobSpec) -> JobSpec:
        """The job with the kernels and graphs that a run would choose for it."""
        return settled(job, self.layers, self._machine, DeviceEstimates(self._padded(job), self.device))

    def memory(self, job: JobSpec) -> Memory:
        """What each rank needs."""
        return estimate_memory(self.settled(job), self._padded(job), self.layers)

    def time(self, job: JobSpec) -> StepTime:
        """What a step takes."""
        return estimate_time(self.settled(job), self._padded(job), self.layers, self.device)

    def slow_host_seconds(self, job: JobSpec) -> float | None:
        """What a step takes where the host is half as fast as planned; None where it was measured, and on the CPU."""
        return slow_host_seconds(job, self._padded(job), self.device)

    @cached_property
    def _machine(self) -> Machine:
        return machine_of(self.device)

    def _padded(self, job: JobSpec) -> int:
        divisible_by, tp = job.model.make_vocab_size_divisible_by, job.parallelism.tensor_model_parallel_size
        return padded_vocab_size(self.vocab_size, divisible_by, tp)


@dataclass(frozen=True)
class Candidate:
    """A layout with what it is estimated to need and to take."""

    layout: Layout
    job: JobSpec
    """The job with this layout."""
    memory: Memory
    time: StepTime

    @property
    def step_seconds(self) -> float:
        """Of a step at full batch size."""
        return self.time.step_seconds

    @property
    def device_bytes(self) -> int:
        """What the fullest GPU needs."""
        return self.memory.device_bytes

    @property
    def order(self) -> tuple[float, int, str]:
        """To sort by: the fastest first, then the leanest; never by chance."""
        return self.step_seconds, self.device_bytes, repr(self.layout)


class _Needs(NamedTuple):
    job: JobSpec
    settled: JobSpec
    memory: Memory


@dataclass(frozen=True)
class LayoutEstimates:
    """What layouts of a job need and take. What one needs is asked for once: the same come up again."""

    job: JobSpec
    estimates: Estimates
    _known: dict[Layout, _Needs] = field(default_factory=dict)

    def memory(self, layout: Layout) -> Memory:
        """What each rank needs."""
        return self._needs(layout).memory

    def candidate(self, layout: Layout) -> Candidate:
        """What it needs, and what a step takes."""
        known = self._needs(layout)
        return Candidate(layout, known.job, known.memory, self.estimates.time(known.settled))

    def _needs(self, layout: Layout) -> _Needs:
        if layout not in self._known:
            job = with_layout(self.job, layout)
            settled = self.estimates.settled(job)
            self._known[layout] = _Needs(job, settled, self.estimates.memory(settled))
        return self._known[layout]


class Rankable(Protocol):
    """What has a speed and a size."""

    @property
    def device_bytes(self) -> int: ...

    @property
    def order(self) -> tuple[float, int, str]: ...


Each = TypeVar("Each", bound=Rankable)


def front(candidates: Iterable[Each]) -> list[Each]:
    """Those that no other beats in both speed and memory, the fastest first."""
    kept: list[Each] = []
    for each in sorted(candidates, key=lambda candidate: candidate.order):
        if not kept or each.device_bytes < kept[-1].device_bytes:
            kept.append(each)
    return kept
