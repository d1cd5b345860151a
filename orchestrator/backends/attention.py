"""What computes the core of attention: FlashAttention 4, or the layers' own."""

from __future__ import annotations

from orchestrator.spec.rules.flash_attention import obstacles
from orchestrator.spec.sections import JobSections


def may_use_flash(job: JobSections) -> bool:
    """Whether it is to be looked for on the machine: demanded, or left to the runtime with nothing in the way."""
    asked = job.runtime.attention_backend
    return asked == "flash" or (asked == "auto" and next(obstacles(job), None) is None)
