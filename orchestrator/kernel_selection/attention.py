"""What computes the core of attention: FlashAttention 4, or the layers' own."""

from __future__ import annotations

from orchestrator.kernel_selection.machine import MEASURED_ON, Machine
from orchestrator.spec.job import JobSpec
from orchestrator.spec.rules.kernels.flash_attention import obstacles


def may_use_flash(job: JobSpec) -> bool:
    """Whether it is to be looked for on the machine: demanded, or left open with nothing in the way."""
    asked = job.runtime.attention_backend
    return asked == "flash" or (asked == "auto" and next(obstacles(job), None) is None)


def takes_flash(job: JobSpec, machine: Machine) -> bool:
    """Whether a job has it on a machine, as far as can be told without trying."""
    is_there = machine.generation == MEASURED_ON and machine.has_flash
    return job.runtime.attention_backend == "flash" or (is_there and may_use_flash(job))


def with_attention(job: JobSpec, backend: str | None) -> JobSpec:
    """A job that says what computes its attention: `flash` or `fused`, as a start says it. Other words leave it."""
    if backend not in ("flash", "fused") or job.runtime.attention_backend == backend:
        return job
    return job.changed(runtime={"attention_backend": backend})
