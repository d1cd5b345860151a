"""What one device does in a second: matrix products, attention, streaming memory, starting kernels."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from orchestrator.runtime.processes.host import start_seconds

_CHUNKS = 3
_LAUNCHES = 2000
_REST = 0.5
"""Seconds before each burst, so that it does not meet the limit that what ran before had reached."""
_BURST = 0.015
"""Seconds, too few for the power limit to lower the clock: an H200's falls after 30 ms of large products."""
_BURSTS = 3
_LOOP = 2.0
"""Seconds, in the second half of which a GPU is at its power limit if it has one: an H200 is from 120 ms on."""


@dataclass(frozen=True)
class Sizes:
    """What is measured, as large as it has to be for the device to be busy."""

    gemms: tuple[tuple[int, int, int], ...]
    attention: tuple[int, int, int, int]
    """Sequences, heads, length, width of a head."""
    stream_bytes: int


GPU = Sizes(
    gemms=((8192, 8192, 8192), (16384, 8192, 2048), (4096, 4096, 4096)),
    attention=(4, 16, 4096, 128),
    stream_bytes=512 << 20,
)
SMALL = Sizes(gemms=((512, 512, 512), (1024, 256, 256)), attention=(2, 4, 256, 64), stream_bytes=32 << 20)
"""For the CPU."""


def measure_kernels(device: torch.device, dtype: torch.dtype, sizes: Sizes, seconds: float) -> dict[str, Any]:
    """Seconds of each kernel; each is repeated for about `seconds` seconds, but for matrix products on a GPU: those are
    measured undisturbed, and the largest also at the power limit. The CPU computes with one thread, as the ranks of a
    job do where there are several.
    """
    if device.type == "cpu":
        torch.set_num_threads(1)
    forward, backward = _attention(device, dtype, sizes.attention, seconds)
    return {
        "gemms": [_gemm(device, dtype, shape, seconds) for shape in sizes.gemms],
        "sustained_gemm": None if device.type == "cpu" else _sustained_gemm(device, dtype, sizes.gemms),
        "attention": {
            **dict(zip(("sequences", "heads", "length", "head_dim"), sizes.attention, strict=True)),
            "forward_seconds": forward,
            "backward_seconds": backward,
        },
        "stream": {"bytes": 3 * sizes.stream_bytes, "seconds": _stream(device, dtype, sizes.stream_bytes, seconds)},
        "launch_seconds": start_seconds(device) if device.type == "cuda" else _launch(device),
    }


def _gemm(device: torch.device, dtype: torch.dtype, shape: tuple[int, int, int], seconds: float) -> dict[str, Any]:
    work = _product(device, dtype, shape)
    once = _time(work, device, seconds) if device.type == "cpu" else burst_seconds(work, device)
    return {**dict(zip("mnk", shape, strict=True)), "seconds": once}


def _sustained_gemm(
    device: torch.device, dtype: torch.dtype, shapes: tuple[tuple[int, int, int], ...]
) -> dict[str, Any]:
    """The largest, which draws the most power."""
    shape = max(shapes, key=math.prod)
    once = sustained_seconds(_product(device, dtype, shape), device)
    return {**dict(zip("mnk", shape, strict=True)), "seconds": once, "loop_seconds": _LOOP}


def _product(device: torch.device, dtype: torch.dtype, shape: tuple[int, int, int]) -> Callable[[], Any]:
    """Random numbers: zeros would draw less power and run faster."""
    m, n, k = shape
    a, b = torch.randn(m, k, device=device, dtype=dtype), torch.randn(n, k, device=device, dtype=dtype)
    out = torch.empty(m, n, device=device, dtype=dtype)
    return lambda: torch.matmul(a, b.t(), out=out)


def _attention(
    device: torch.device, dtype: torch.dtype, shape: tuple[int, int, int, int], seconds: float
) -> tuple[float, float]:
    """Causal attention: (forward, backward)."""
    query, key, value = (torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3))

    def forward() -> torch.Tensor:
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True)

    with torch.no_grad():
        ahead = _time(forward, device, seconds)
    gradient = torch.randn(shape, device=device, dtype=dtype)
    out = forward()
    back = _time(lambda: torch.autograd.grad(out, (query, key, value), gradient, retain_graph=True), device, seconds)
    return ahead, back


def _stream(device: torch.device, dtype: torch.dtype, count: int, seconds: float) -> float:
    """Adding two tensors of `count` bytes into a third."""
    elements = count // torch.empty((), dtype=dtype).element_size()
    a, b = (torch.randn(elements, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(a)
    return _time(lambda: torch.add(a, b, out=out), device, seconds)


def _launch(device: torch.device) -> float:
    """Seconds to start an operation that does next to nothing."""
    x = torch.zeros(1, device=device)
    for _ in range(100):
        x.add_(1)
    started = time.perf_counter()
    for _ in range(_LAUNCHES):
        x.add_(1)
    return (time.perf_counter() - started) / _LAUNCHES


def _time(work: Callable[[], Any], device: torch.device, seconds: float) -> float:
    """Seconds of one call: the median over a few rows of calls that take `seconds` seconds together."""
    calls = _calls_in(seconds / _CHUNKS, work, device)
    return statistics.median(_row(work, device, calls) for _ in range(_CHUNKS))


def burst_seconds(work: Callable[[], Any], device: torch.device) -> float:
    """Seconds of one call on a GPU that has rested, before its power limit lowers its clock: the median of bursts."""
    calls = _calls_in(_BURST, work, device)
    bursts = []
    for _ in range(_BURSTS):
        time.sleep(_REST)
        work()
        synchronize(device)
        bursts.append(_row(work, device, calls))
    return statistics.median(bursts)


def sustained_seconds(work: Callable[[], Any], device: torch.device) -> float:
    """Seconds of one call where calls follow each other for long: in the second half of a loop."""
    calls = _calls_in(_LOOP / 2, work, device)
    _row(work, device, calls)
    return _row(work, device, calls)


def _calls_in(seconds: float, work: Callable[[], Any], device: torch.device) -> int:
    """How many calls take so long. The first call of all chooses a kernel and is not counted."""
    work()
    synchronize(device)
    return max(1, int(seconds / max(_row(work, device, 1), 1e-7)))


def _row(work: Callable[[], Any], device: torch.device, calls: int) -> float:
    """Seconds of one of so many calls."""
    started = time.perf_counter()
    for _ in range(calls):
        work()
    synchronize(device)
    return (time.perf_counter() - started) / calls


def synchronize(device: torch.device) -> None:
    """Wait until the device has done everything."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
