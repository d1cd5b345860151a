"""Marks that megatron-core reads off parameters."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.transformer.transformer_config import TransformerConfig


def mark_split(parameter: torch.nn.Parameter) -> None:
    """Have it counted as a part of a tensor whose first dimension tensor-parallel ranks share out."""
    marked: Any = parameter
    marked.tensor_model_parallel, marked.partition_dim, marked.partition_stride = True, 0, 1


def mark_sequence_parallel(parameter: torch.nn.Parameter, config: TransformerConfig) -> None:
    """Have its gradient summed over the tensor-parallel ranks where each sees a part of the sequence."""
    marked: Any = parameter  # torch's class has no such attribute: it is megatron-core's own
    marked.sequence_parallel = config.sequence_parallel
