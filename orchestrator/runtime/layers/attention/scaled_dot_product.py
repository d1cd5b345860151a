"""torch's scaled dot product attention, which computes the same bits each time where the run asks for that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional


def scaled_dot_product_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
) -> torch.Tensor:
    """torch's function of this name, of [b, heads, s, d], with its options; [b, heads, s, d].

    A deterministic run has torch warn of operations that have no deterministic kernel, and goes on. On a GPU fused
    attention has one, but takes it only where torch is to stop instead of to warn: cuDNN's is left out then
    (`check_cudnn_deterministic`), and the backward passes of the others add gradients up in order
    (`_flash_attention_backward`, `_efficient_attention_backward`). So torch is to stop while they run.
    """
    if not torch.is_deterministic_algorithms_warn_only_enabled():
        return functional.scaled_dot_product_attention(query, key, value, **options)
    _require_deterministic_kernels()
    try:
        out = functional.scaled_dot_product_attention(query, key, value, **options)
    finally:
        _prefer_deterministic_kernels()
    if out.requires_grad:
        _at_gradient(out, _require_deterministic_kernels)
        for each in (query, key, value):
            if each.requires_grad:
                _at_gradient(each, _prefer_deterministic_kernels)
    return out


def _at_gradient(tensor: Any, action: Callable[[torch.Tensor], None]) -> None:
    """When a tensor's gradient is known, before it is passed on. `register_hook` has no types."""
    tensor.register_hook(action)


def _require_deterministic_kernels(_gradient: torch.Tensor | None = None) -> None:
    torch.use_deterministic_algorithms(True)


def _prefer_deterministic_kernels(_gradient: torch.Tensor | None = None) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
