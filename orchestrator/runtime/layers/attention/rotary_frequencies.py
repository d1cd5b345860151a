"""Frequencies of rotary positions, scaled for sequences longer than those of the training before."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from orchestrator.models.blocks.grouped_query_attention.rope_scaling import RopeScaling
from orchestrator.spec.model import ModelSpec


def scaled_frequencies(inv_freq: torch.Tensor, base: float, scaling: RopeScaling) -> torch.Tensor:
    """The frequencies [r / 2] of r rotated channels, in radians per position, slowed down as `scaling` says.

    `inv_freq[i]` is base^(-2i / r). Linear: Chen et al. 2023. llama3: as Llama 3.1 was trained. yarn: Peng et al. 2023,
    "YaRN: Efficient Context Window Extension of Large Language Models", section 3.2. longrope: Ding et al.
    2024, of sequences up to the original length.
    """
    if scaling.type == "longrope":
        return divided(inv_freq, scaling.short_factor)
    slow = inv_freq / scaling.factor
    if scaling.type == "linear":
        return slow
    assert scaling.original_max_position_embeddings is not None, "a rule of the spec"
    length = scaling.original_max_position_embeddings
    if scaling.type == "llama3":
        turns = length * inv_freq / (2 * math.pi)
        low, blended = scaling.low_freq_factor, scaling.high_freq_factor - scaling.low_freq_factor
        kept = (turns - low) / blended if blended else (turns > low).to(inv_freq.dtype)
    else:
        first, last = (
            _channel(turns, length, base, 2 * len(inv_freq)) for turns in (scaling.beta_fast, scaling.beta_slow)
        )
        if scaling.truncate:
            first, last = math.floor(first), math.ceil(last)
        low, high = max(first, 0), min(last, 2 * len(inv_freq) - 1)
        pairs = torch.arange(len(inv_freq), dtype=torch.float32, device=inv_freq.device)
        kept = 1 - (pairs - low) / (high - low if high > low else 0.001)
    kept = kept.clamp(0, 1)
    return kept * inv_freq + (1 - kept) * slow


def divided(inv_freq: torch.Tensor, factors: Sequence[float] | None) -> torch.Tensor:
    """The frequencies [r / 2], each slowed down by a factor of its own."""
    assert factors is not None, "a rule of the spec"
    return inv_freq / torch.tensor(factors, dtype=torch.float32, device=inv_freq.device)


def set_frequencies(rotary: Any, model: ModelSpec) -> None:
    """Let megatron-core's rotary embedding, which has those of `rotary_base`, give a model's angles: [s, 1, 1, r], or
    where layers with a window have others, these behind them, [2, s, 1, 1, r].
    """
    scaling = model.rope_scaling
    if scaling is not None and scaling.type == "longrope":
        longer = copy.copy(rotary)
        longer.inv_freq = divided(rotary.inv_freq, scaling.long_factor)
        rotary.register_forward_hook(_beyond(scaling.lengths_like(1)[1], longer), with_kwargs=True)
    if model.rotary_base_local is not None:
        local = local_rotation(rotary, model.rotary_base_local)
        rotary.register_forward_hook(_beside(local), with_kwargs=True)
    if scaling is not None:
        rotary.inv_freq = scaled_frequencies(rotary.inv_freq, model.rotary_base, scaling)


def _beside(local: Any) -> Callable[..., torch.Tensor]:
    """A forward hook that has the angles of another rotary embedding follow."""
    return lambda module, arguments, options, angles: torch.stack((angles, local.forward(*arguments, **options)))


def _beyond(length: int | None, longer: Any) -> Callable[..., torch.Tensor]:
    """A forward hook that gives the angles of another rotary embedding for longer sequences."""
    assert length is not None, "it has one"
    return lambda module, arguments, options, angles: (
        longer.forward(*arguments, **options) if arguments[0] > length else angles
    )


def local_rotation(rotary: Any, base: float) -> Any:
    """megatron-core's rotary embedding with the frequencies of another base, not scaled."""
    local = copy.copy(rotary)
    local.inv_freq = frequencies(rotary, base)
    return local


def frequencies(rotary: Any, base: float) -> torch.Tensor:
    """Of another base, [r / 2] as megatron-core's rotary embedding has them."""
    half = len(rotary.inv_freq)
    exponents = torch.arange(half, dtype=torch.float32, device=rotary.inv_freq.device) / half
    return 1.0 / (base**exponents)


def _channel(turns: float, length: int, base: float, rotated: int) -> float:
    """The pair of channels, counted with fractions, that turns so often over `length` positions."""
    return rotated * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))
