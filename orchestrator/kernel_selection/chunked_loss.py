"""The chunks of tokens over which the output layer and the loss are computed together."""

from __future__ import annotations

_LOGITS = 2**25
"""Logits of a chunk at least: 64 MiB in bf16, enough for matrix products to run at full speed."""
CHUNKS = 8
"""At most: each reads and writes the gradient of the whole table once."""


def tokens_of_chunk(tokens: int, vocab: int) -> int:
    """Of so many tokens those whose logits exist at once, over `vocab` rows of the vocabulary on each rank."""
    return max(_LOGITS // vocab, -(-tokens // CHUNKS), 1)
