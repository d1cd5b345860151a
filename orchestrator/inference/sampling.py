"""Choosing the next token."""

from __future__ import annotations

import torch


def sample(logits: torch.Tensor, temperature: float, top_k: int, generator: torch.Generator) -> int:
    """One token id from logits [v]: the largest at temperature 0, else drawn from the softmax of the `top_k` largest.

    `top_k` 0 means all.
    """
    if temperature == 0.0:
        return int(logits.argmax())
    scaled = logits.float() / temperature
    if 0 < top_k < scaled.numel():
        smallest_kept = scaled.topk(top_k).values[-1]
        scaled = scaled.masked_fill(scaled < smallest_kept, -torch.inf)
    return int(torch.multinomial(scaled.softmax(dim=-1), 1, generator=generator))
