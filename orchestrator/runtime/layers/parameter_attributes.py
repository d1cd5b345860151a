"""Marks that megatron-core reads off parameters."""

from __future__ import annotations

from collections.abc import Iterable
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


def keep_experts_apart(chunks: Iterable[Any]) -> None:
    """Reduce the gradients of experts over the ranks that hold the same ones, also where none are spread (EP = 1).

    megatron-core does so with EP > 1 only, and gives them an optimizer of their own then. Always the same way means
    that a checkpoint is the same at every EP, and that experts may be split otherwise than attention is.
    """
    for chunk in chunks:
        for name, parameter in chunk.named_parameters():
            if ".mlp.experts." in name:
                parameter.allreduce = False
                if name.endswith(".bias"):
                    # megatron-core takes that of the second linear for a dense MLP's, of which every tensor-parallel
                    # rank has the same, with a gradient from its part of the sequence.
                    parameter.sequence_parallel = False
                    mark_split(parameter)
