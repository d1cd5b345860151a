"""torch's fused attention, which computes the same bits each time where the run asks for that."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional


def fused_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> torch.Tensor:
    """`scaled_dot_product_attention` of [b, heads, s, d], with its options; [b, heads, s, d].

    A deterministic run has torch warn of operations that have no deterministic kernel, and goes on. On a GPU fused
    attention has one, but takes it only where torch is to stop instead of to warn: cuDNN's is left out then
    (`check_cudnn_deterministic`), and the backward passes of the others add gradients up in order
    (`_flash_attention_backward`, `_efficient_attention_backward`). So torch is to stop while they run.
    """
    if not torch.is_deterministic_algorithms_warn_only_enabled():
        return functional.scaled_dot_product_attention(query, key, value, **options)
    _stop_where_there_is_none()
    try:
        out = functional.scaled_dot_product_attention(query, key, value, **options)
    finally:
        _warn_where_there_is_none()
    if out.requires_grad:
        out.register_hook(_stop_where_there_is_none)
        for each in (query, key, value):
            if each.requires_grad:
                each.register_hook(_warn_where_there_is_none)
    return out


def _stop_where_there_is_none(_gradient: torch.Tensor | None = None) -> None:
    torch.use_deterministic_algorithms(True)


def _warn_where_there_is_none(_gradient: torch.Tensor | None = None) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
