"""Choosing the next token."""

from __future__ import annotations

import torch


def sample(logits: torch.Tensor, temperature: float, top_k: int, generator: torch.Generator) -> int:
    """One token id from logits [v]: the largest at temperature 0, else drawn from the softmax of the `top_k` largest.

    `top_k` 0 means all.
    """
    if temperature == 0.0:
        return int(logits.argmax())
    candidates = logits.float().topk(min(top_k, logits.numel()) or logits.numel())
    chosen = torch.multinomial((candidates.values / temperature).softmax(dim=-1), 1, generator=generator)
    return int(candidates.indices[chosen])
