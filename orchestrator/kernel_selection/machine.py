"""What the choices need to know of a machine, and what they weigh of a plan's estimates for it."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.runtime import Layers

MEASURED_ON = "Hopper"
"""A GPU's generation. On others libraries choose other kernels, some of which ask the GPU for numbers."""
Fit = Literal["fits", "tight", "does not fit", "unknown"]
"""How a job fits into the memory of a GPU."""


class Machine(NamedTuple):
    """Facts about what a job computes on: a training finds them, a plan assumes them."""

    name: str
    """Of its GPU; of the CPU "cpu"."""
    generation: str | None
    """Of its GPU; None for the CPU."""
    is_cpu: bool
    has_engine: bool
    """Whether Transformer Engine is installed."""
    has_flash: bool
    """Whether FlashAttention 4 is installed."""
    is_here: bool = True
    """Whether the engine was looked for on it; else a profile says it, or it is expected."""


class Step(NamedTuple):
    """Seconds of a training step."""

    seconds: float
    host: float
    """Of these, in which the GPU waits for its host."""


class Estimates(Protocol):
    """A plan's estimates for jobs on one machine."""

    @property
    def start_seconds(self) -> float:
        """Seconds in which its host starts one kernel."""

    def behind(self, start_seconds: float) -> Estimates:
        """The same behind a host that takes so long to start one, if that is longer."""

    def step(self, job: JobSpec, layers: Layers) -> Step:
        """A step of a job that leaves nothing open."""

    def faster_with_graphs(self, job: JobSpec, layers: Layers) -> bool:
        """Whether a job is faster where its passes are CUDA graphs."""

    def fit(self, job: JobSpec, layers: Layers) -> Fit:
        """How a job that leaves nothing open fits into the GPU's memory."""
