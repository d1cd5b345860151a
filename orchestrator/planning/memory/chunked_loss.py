"""The chunks of tokens over which the output layer and the loss are computed together."""

from __future__ import annotations

_LOGITS = 2**25
"""Logits of a chunk: 64 MiB in bf16, enough for matrix products to run at full speed."""


def tokens_of_chunk(vocab: int) -> int:
    """Tokens whose logits exist at once, over `vocab` rows of the vocabulary on each rank."""
    return max(_LOGITS // vocab, 1)
