"""What a launch computes on, and by which kernels: what its ranks chose where the spec says `auto`, from what they said
as they started.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LAYERS = {"torch": "torch's layers", "transformer_engine": "Transformer Engine's layers"}


def choices_line(choices: Mapping[str, Any]) -> str:
    """`NVIDIA H200, Transformer Engine's layers, FlashAttention 4`."""
    layers = choices.get("layers")
    parts = [
        "the CPU" if choices["device"] == "cpu" else str(choices["device"]),
        *([_LAYERS.get(layers, layers)] if isinstance(layers, str) else []),
        *(["FlashAttention 4"] if choices.get("attention_backend") == "flash" else []),
        *(["tensor parallelism overlapped"] if choices.get("tp_comm_overlap") is True else []),
        *(["CUDA graphs"] if choices.get("cuda_graphs") is True else []),
    ]
    return ", ".join(parts)
