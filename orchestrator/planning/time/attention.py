"""Seconds of attention as fused kernels do it (FlashAttention; Dao 2023, Shah et al. 2024)."""

from __future__ import annotations

from orchestrator.planning.hardware.devices import Device
from orchestrator.planning.time.gemm import peak
from orchestrator.planning.time.kernels import Kernels, Passes

_BLOCK = 128
"""Tokens of a block: those on the diagonal are computed whole."""
_SOFTMAX = 43
"""The exponentials of a score take as long as this much of a head's width; efficiencies are stated for heads of 128."""
_RECOMPUTATION = 2.5
"""The backward pass does five products where the forward does two."""


def attention_seconds(
    sequences: float,
    length: float,
    heads: float,
    head_dim: int,
    device: Device,
    dtype: str,
    kernels: Kernels,
    *,
    causal: bool = True,
    drops: bool = False,
) -> Passes:
    """Forward and backward over `sequences` of `length` tokens with `heads` heads; causal: half the scores masked."""
    flops = 4.0 * sequences * heads * length * length * (head_dim + _SOFTMAX)
    if causal:
        flops *= (1 + _BLOCK / length) / 2
    rate = peak(device, dtype) * ((128 + _SOFTMAX) / 128)
    efficiency = device.efficiency
    if kernels.fused_attention:
        forward, backward = efficiency.fused_attention_forward, efficiency.fused_attention_backward
    else:
        forward, backward = efficiency.attention_forward, efficiency.attention_backward
    drawn = kernels.score_dropout if drops else Passes(0, 0)
    width = head_dim + _SOFTMAX
    return Passes(
        flops * (1 + drawn.forward / width) / (rate * forward),
        _RECOMPUTATION * flops * (1 + drawn.backward / width) / (rate * backward),
    )
