"""Seconds of a matrix product by its shape."""

from __future__ import annotations

from typing import NamedTuple

from orchestrator.planning.hardware.devices import Device
from orchestrator.planning.hardware.fitted_constants import Gemm
from orchestrator.spec.sections.precision import DTYPE_BYTES


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
    efficiency, fitted = device.efficiency, device.fitted.gemm
    prologue, reached = fitted.prologue_steps, 1.0
    if in_fp8:
        prologue, reached = 2 * prologue, fitted.fp8_of_bf16
    undisturbed = efficiency.gemm * _tiled(m, n, k, prologue, device.multiprocessors, fitted)
    rate = peak(device, dtype) * reached * min(undisturbed, efficiency.gemm_at_power_limit)
    arithmetic = 2.0 * m * n * k / rate
    memory = (read * (m * k + k * n) + written * m * n) / (device.memory_bandwidth * efficiency.memory)
    return max(arithmetic, memory, 0.0 if device.is_cpu else fitted.shortest_seconds)


def peak(device: Device, dtype: str) -> float:
    """FLOP/s of a dtype; where the datasheet has none (bf16 on a V100) that of fp32, which then does the work."""
    return device.peak_flops.get(dtype) or device.peak_flops["fp32"]


def _tiled(m: float, n: float, k: float, prologue: int, processors: int, fitted: Gemm) -> float:
    """Part of the processors' time that is spent on wanted output: tiles stick out at the edges, the last wave of tiles
    leaves processors idle, and each tile has its prologue. The best of the tile sizes and splits.
    """
    best = 0.0
    for rows, columns, rate in fitted.tiles:
        tiles = -(-m // rows) * -(-n // columns)
        for parts, of_rate in fitted.splits:
            waves = -(-tiles * parts // processors) / parts
            filled = m * n / (waves * processors * rows * columns)
            best = max(best, rate * of_rate * filled * k / (k + parts * prologue))
    return best
