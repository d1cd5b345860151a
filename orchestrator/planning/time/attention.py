"""Seconds of attention as fused kernels do it (FlashAttention; Dao 2023, Shah et al. 2024)."""

from __future__ import annotations

from orchestrator.planning.hardware.devices import Device
from orchestrator.planning.time.gemm import peak
from orchestrator.planning.time.kernels import ForwardBackward, Kernels

_BLOCK = 128
"""Tokens of a block: those on the diagonal are computed whole."""
_SOFTMAX = 43
"""The exponentials of a score take as long as this much of a head's width."""
_BESIDE = ForwardBackward(220, 490)
"""What there is to do for a query beside its scores, to read it and to write what becomes of it, takes as long as so
many keys (H200, cuDNN, 512 to 4,096 tokens; docs/benchmarks/2026-11-23-h200-7.md).
"""
_STATED_LENGTH, _STATED_WIDTH = 4096, 128
_STATED_KEYS = (_STATED_LENGTH + _BLOCK) / 2
"""Efficiencies are stated for heads of this, and for as many keys as a query of a causal sequence has on average."""
_LAST = 2.2
"""Under a causal mask blocks take unequally long, and processors wait for the last ones: as long as so many heads of
one sequence would take, up to that length. A block takes longer in proportion to the length, a head to its square."""
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
    parts: int = 1,
) -> ForwardBackward:
    """Forward and backward over `sequences` of `length` tokens with `heads` heads; causal: half the scores masked.
    `parts`: ranks that share each sequence, of which `sequences` counts this one's part. Among their pieces only those
    of the same tokens are masked within.
    """
    keys = (length + _BLOCK) / 2 if causal else length
    waiting = _LAST * min(_STATED_LENGTH / length, 1.0) / parts if causal and not device.is_cpu else 0.0
    flops = 4.0 * (sequences * heads + waiting) * length  # of a key, and of one number of a head
    width = head_dim + _SOFTMAX
    drawn = kernels.score_dropout if drops else ForwardBackward(0, 0)
    efficiency = device.efficiency
    if kernels.fused_attention:
        reached = ForwardBackward(efficiency.fused_attention_forward, efficiency.fused_attention_backward)
    else:
        reached = ForwardBackward(efficiency.attention_forward, efficiency.attention_backward)

    def seconds(beside: float, drawn: float, reached: float) -> float:
        stated = (_STATED_WIDTH + _SOFTMAX) / _STATED_WIDTH * (_STATED_KEYS + beside) / _STATED_KEYS
        rate = peak(device, dtype) * stated * reached * kernels.attention_rate
        return flops * (keys * (width + drawn) + beside * width) / rate

    return ForwardBackward(
        seconds(_BESIDE.forward, drawn.forward, reached.forward),
        _RECOMPUTATION * seconds(_BESIDE.backward, drawn.backward, reached.backward),
    )
