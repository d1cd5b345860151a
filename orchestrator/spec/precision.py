"""Number formats."""

from __future__ import annotations

from typing import Literal

from orchestrator.spec.base import Section
from orchestrator.spec.fp8 import Fp8Spec
from orchestrator.spec.values import Positive, PositiveNumber

DTYPE_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
"""Bytes of one element."""


class PrecisionSpec(Section):
    """bf16 needs no loss scaling; fp16 scales dynamically unless `loss_scale` fixes it."""

    dtype: Literal["bf16", "fp16", "fp32"] = "bf16"
    """Format of weights and activations; the optimizer always keeps fp32 copies."""
    fp8: Fp8Spec | None = None
    """Matrix products of the layers in FP8, beside bf16: `fp8: {recipe: delayed}`."""
    grad_reduce_in_fp32: bool = True
    """Accumulate and reduce gradients in fp32."""
    loss_scale: PositiveNumber | None = None
    """fp16: a fixed loss scale."""
    initial_loss_scale: PositiveNumber = 2.0**32
    """fp16: the first dynamic loss scale."""
    min_loss_scale: PositiveNumber = 1.0
    """fp16: the smallest dynamic loss scale."""
    loss_scale_window: Positive = 1000
    """fp16: good steps before the scale doubles."""
    hysteresis: Positive = 2
    """fp16: bad steps before the scale halves."""
