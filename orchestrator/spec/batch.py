"""Micro-batches, the global batch, and its ramp-up."""

from __future__ import annotations

from typing import Any

from pydantic import model_validator

from orchestrator.spec.base import Section
from orchestrator.spec.values import Count, Positive


class RampupSpec(Section):
    """Grow the global batch linearly. Megatron's `[start, increment, samples]` is accepted too."""

    start_global_batch_size: Positive
    """Global batch at the first step."""
    increment: Positive
    """How much the global batch grows at a time."""
    samples: Count
    """Samples over which it grows to its full size."""

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, value: Any) -> Any:
        if isinstance(value, list) and len(value) == 3:
            return dict(zip(("start_global_batch_size", "increment", "samples"), value, strict=True))
        return value


class BatchSpec(Section):
    """Write `global_batch_size` or `num_micro_batches`; the other follows: global = micro · num_micro_batches · DP."""

    micro_batch_size: Positive = 1
    """Sequences in one forward/backward pass of one replica."""
    global_batch_size: Positive | None = None
    """Sequences per optimizer step over all replicas."""
    num_micro_batches: Positive | None = None
    """Forward/backward passes per step and replica (gradient accumulation, pipeline micro-batches)."""
    rampup_batch_size: RampupSpec | None = None
    """Start with a smaller global batch."""
    calculate_per_token_loss: bool | None = None
    """Weigh each token of the global batch the same; `false` averages each micro-batch by itself and then these means,
    as Megatron-LM does without the flag of this name. By default true where micro-batches have different numbers of
    tokens that count (T5, `data.eod_mask_loss`, `data.chat`), but for BERT."""
