"""Marks that megatron-core reads off parameters."""

from __future__ import annotations

import torch
from megatron.core.transformer.transformer_config import TransformerConfig


def mark_sequence_parallel(parameter: torch.nn.Parameter, config: TransformerConfig) -> None:
    """Have its gradient summed over the tensor-parallel ranks where each sees a part of the sequence."""
    # A mark of megatron-core's own on torch's class, which has no such attribute.
    parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
