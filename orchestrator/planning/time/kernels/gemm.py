"""Seconds of a matrix product by its shape."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from orchestrator.planning.hardware.devices import Device
from orchestrator.planning.hardware.fitted_constants import Gemm
from orchestrator.spec.sections.precision import DTYPE_BYTES
from orchestrator.spec.sections.quantization import ELEMENT_BYTES


class Linear(NamedTuple):
    """A linear layer of width [inputs, outputs] on each tensor-parallel rank. Column-parallel ones gather their input
    before (or sum its gradient after), row-parallel ones sum their output.
    """

    inputs: float
    outputs: float
    is_column: bool


class _Rate(NamedTuple):
    """How fast operands of a quantized format are multiplied."""

    peak: str
    """Whose peak it is in `devices.json`."""
    speedup: int
    """Over bf16."""


_RATES = {"fp8": _Rate("fp8", 2), "mxfp8": _Rate("fp8", 2), "nvfp4": _Rate("fp4", 4)}
"""By format of the operands."""


def multiplies(device: Device, number_format: str) -> bool:
    """Whether a device multiplies operands in FP8, MXFP8 or NVFP4."""
    return _RATES[number_format].peak in device.peak_flops


def gemm_seconds(m: float, n: float, k: float, device: Device, dtype: str) -> float:
    """Seconds of an [m, k] by [k, n] product: the slower of arithmetic and memory. `dtype` fp8, mxfp8 or nvfp4: of
    operands in this format that are there, with a result in bf16.
    """
    efficiency, fitted = device.efficiency, device.fitted.gemm
    read: float
    if (rate_of := _RATES.get(dtype)) is None:
        read = written = DTYPE_BYTES[dtype]
        prologue, reached, of_peak = fitted.prologue_steps, 1.0, dtype
    else:
        read, written = ELEMENT_BYTES[dtype], DTYPE_BYTES["bf16"]
        prologue, reached, of_peak = rate_of.speedup * fitted.prologue_steps, fitted.fp8_of_bf16, rate_of.peak
    undisturbed = efficiency.gemm * _tiled(m, n, k, prologue, device.multiprocessors, fitted)
    rate = peak(device, of_peak) * reached * min(undisturbed, efficiency.gemm_at_power_limit)
    arithmetic = 2.0 * m * n * k / rate
    memory = (read * (m * k + k * n) + written * m * n) / (device.memory_bandwidth * efficiency.memory)
    return max(arithmetic, memory, 0.0 if device.is_cpu else fitted.shortest_seconds)


def peak(device: Device, dtype: str) -> float:
    """FLOP/s of a dtype; where the datasheet has none (bf16 on a V100) that of fp32, which then does the work."""
    return device.peak_flops.get(dtype) or device.peak_flops["fp32"]


@lru_cache(maxsize=4096)  # layouts have the same products
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
