"""Seconds of a matrix product by its shape."""

from __future__ import annotations

from typing import NamedTuple

from orchestrator.planning.hardware.devices import Device
from orchestrator.spec.sections.precision import DTYPE_BYTES

_TILES = ((128, 256, 1.0), (256, 128, 1.0), (128, 128, 0.85), (64, 128, 0.6))
"""(rows, columns, rate): output tiles that a library chooses from; a small one loads more operands per product."""
_PROLOGUE = 192
"""Filling and draining a tile's pipeline takes as long as this many steps along K; in FP8, as twice as many."""
_SPLITS = ((1, 1.0), (2, 0.95), (4, 0.95))
"""(parts, rate): into how many parts of K a tile may be split, so that few tiles fill the processors; their sums are
then added up."""
_FP8 = 0.92
"""What a product in FP8 reaches of its peak, of what one in bf16 reaches: the power limit comes first. Fitted to whole
steps of two models on H200s (docs/how-to/precision.md)."""
_SHORTEST = 4e-6
"""Seconds that a kernel takes on a GPU at the least."""


class Linear(NamedTuple):
    """A linear layer of width [inputs, outputs] on each tensor-parallel rank. Column-parallel ones gather their input
    before (or sum its gradient after), row-parallel ones sum their output.
    """

    inputs: float
    outputs: float
    is_column: bool


def gemm_seconds(m: float, n: float, k: float, device: Device, dtype: str) -> float:
    """Seconds of an [m, k] by [k, n] product: the slower of arithmetic and memory. `dtype` fp8: of operands in FP8 that
    are there, with a result in bf16.
    """
    in_fp8 = dtype == "fp8"
    read, written = (1, DTYPE_BYTES["bf16"]) if in_fp8 else (DTYPE_BYTES[dtype], DTYPE_BYTES[dtype])
    prologue, reached = (2 * _PROLOGUE, _FP8) if in_fp8 else (_PROLOGUE, 1.0)
    efficiency = device.efficiency
    undisturbed = efficiency.gemm * _tiled(m, n, k, prologue, device.multiprocessors)
    rate = peak(device, dtype) * reached * min(undisturbed, efficiency.gemm_at_power_limit)
    arithmetic = 2.0 * m * n * k / rate
    memory = (read * (m * k + k * n) + written * m * n) / (device.memory_bandwidth * efficiency.memory)
    return max(arithmetic, memory, 0.0 if device.is_cpu else _SHORTEST)


def peak(device: Device, dtype: str) -> float:
    """FLOP/s of a dtype; where the datasheet has none (bf16 on a V100) that of fp32, which then does the work."""
    return device.peak_flops.get(dtype) or device.peak_flops["fp32"]


def _tiled(m: float, n: float, k: float, prologue: int, processors: int) -> float:
    """Part of the processors' time that is spent on wanted output: tiles stick out at the edges, the last wave of tiles
    leaves processors idle, and each tile has its prologue. The best of the tile sizes and splits.
    """
    best = 0.0
    for rows, columns, rate in _TILES:
        tiles = -(-m // rows) * -(-n // columns)
        for parts, of_rate in _SPLITS:
            waves = -(-tiles * parts // processors) / parts
            filled = m * n / (waves * processors * rows * columns)
            best = max(best, rate * of_rate * filled * k / (k + parts * prologue))
    return best
