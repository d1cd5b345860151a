"""The loss of each token, which no family lets depend on the vocabulary's padding."""

from __future__ import annotations

import torch

from orchestrator.runtime.cross_entropy.vocab_parallel import vocab_parallel_cross_entropy
from orchestrator.runtime.processes.process_groups import (
    get_tensor_model_parallel_group,
    get_tensor_model_parallel_rank,
)


def token_losses(labels: torch.Tensor, logits: torch.Tensor, valid_vocab_size: int) -> torch.Tensor:
    """Cross entropy per token, [b, s] in fp32, from labels [b, s] and this rank's part of the logits, [s, b, v], which
    the backward pass overwrites.

    Padded entries get no probability: how many there are depends on the tensor-parallel size.
    """
    first = get_tensor_model_parallel_rank() * logits.size(-1)
    losses = vocab_parallel_cross_entropy(
        logits.flatten(0, 1), labels.t().flatten(), valid_vocab_size, first, get_tensor_model_parallel_group()
    )
    return losses.view(logits.shape[:2]).t().contiguous()
