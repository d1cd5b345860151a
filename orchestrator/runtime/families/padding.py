"""The vocabulary's padding, which no family's loss may depend on."""

from __future__ import annotations

import torch

from orchestrator.runtime.process_groups import get_tensor_model_parallel_rank


def hide_padding(logits: torch.Tensor, valid_vocab_size: int) -> None:
    """Give padded entries no probability, in place. `logits`: [s, b, v], this rank's part of the vocabulary.

    How many there are depends on the tensor-parallel size; so the loss does not.
    """
    local = logits.size(-1)
    first_padding = valid_vocab_size - get_tensor_model_parallel_rank() * local
    if first_padding < local:
        logits[..., max(first_padding, 0) :] = torch.finfo(logits.dtype).min
