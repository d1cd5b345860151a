"""What is done to attention scores beside scaling them: which are taken away, lowered by distance, or capped."""

from __future__ import annotations

import importlib
import math
from functools import lru_cache
from typing import Any

import torch
from torch.nn import functional

from orchestrator.runtime.layers.attention.sinks import softmax_beside


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """How fast each head's scores fall with distance (Press et al. 2022, "Train Short, Test Long").

    Of a power of two n: 2^(-8 / n), 2^(-16 / n), …, 2^-8. Else those of the power below, and then every other one of
    the power above.
    """
    power = 2 ** int(math.log2(heads))
    slopes = [2.0 ** (-8.0 * head / power) for head in range(1, power + 1)]
    between = [2.0 ** (-4.0 * head / power) for head in range(1, 2 * power + 1, 2)]
    return tuple(slopes + between[: heads - power])


@lru_cache(maxsize=4)
def causal_mask(
    sq: int, sk: int, window: int | None, slopes: tuple[float, ...] | None, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Which of sk positions the last sq see: bool [sq, sk]; with `slopes` what is added to the scores, [heads, sq, sk].

    Built once for a length and kept: all layers and micro-batches share it.
    """
    positions = torch.arange(sk, dtype=torch.int32, device=device)
    distance = positions[sk - sq :, None] - positions
    seen = distance >= 0
    if window is not None:
        seen &= distance < window
    if slopes is None:
        return seen
    lowered = torch.empty(len(slopes), sq, sk, dtype=dtype, device=device)
    for scores, slope in zip(lowered, slopes, strict=True):  # one by one: in fp32 they would need more than the result
        scores.copy_(torch.where(seen, -slope * distance, -math.inf))
    return lowered


def packed_mask(segments: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What is added to the scores so that a token attends to its own segment alone, and to nothing behind it:
    [b, 1, s, s] from [b, s].

    In the type of the scores: a mask of bool would be turned into this anew in every layer, and kept for its backward.
    """
    length = segments.size(1)
    hidden = segments[:, None, :, None] != segments[:, None, None, :]
    hidden |= ~causal_mask(length, length, None, None, torch.bool, segments.device)
    return torch.zeros(hidden.shape, dtype=dtype, device=segments.device).masked_fill_(hidden, -math.inf)


def plain_causal_mask(sq: int, sk: int, device: torch.device) -> Any:
    """Which of sk positions the last sq see, with nothing else to it.

    On a GPU in the form that torch's fused kernels know. Its module brings torch's compiler along: a second of CPU time
    of every rank, which those that compute on the CPU are spared.
    """
    if device.type != "cuda":
        return causal_mask(sq, sk, None, None, torch.bool, device)
    return importlib.import_module("torch.nn.attention.bias").causal_lower_right(sq, sk)


def for_every_head(groups: torch.Tensor, heads: int) -> torch.Tensor:
    """Keys, or values, of each head, [b, heads, s, d], from those of each group."""
    return groups if groups.size(1) == heads else groups.repeat_interleave(heads // groups.size(1), dim=1)


def attention_by_scores(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    scale: float,
    cap: float | None,
    sinks: torch.Tensor | None,
    dropout: float,
) -> torch.Tensor:
    """Attention with scores cap · tanh(x / cap) (Gemma Team 2024, "Gemma 2", section 2), or with sinks, which no fused
    kernel of torch has.

    query: [b, heads, sq, d]; key, value: [b, groups, sk, d]; returns [b, heads, sq, d]. `mask` is a `causal_mask`;
    `sinks`: those of `softmax_beside`.
    """
    key, value = for_every_head(key, query.size(1)), for_every_head(value, query.size(1))
    if cap is None:
        scores = query @ key.transpose(-2, -1) * scale
    else:
        scores = cap * torch.tanh(query @ key.transpose(-2, -1) * (scale / cap))
    scores = torch.where(mask, scores, -math.inf) if mask.dtype == torch.bool else scores + mask
    weights = softmax_beside(scores, sinks).to(query.dtype)
    if dropout:
        weights = functional.dropout(weights, dropout)
    return weights @ value
