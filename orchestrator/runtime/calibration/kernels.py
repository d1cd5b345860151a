"""What one device does in a second: matrix products, attention, streaming memory, starting kernels."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

_CHUNKS = 3
_LAUNCHES = 2000


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
    """Seconds of each kernel; each is repeated for about `seconds` seconds. The CPU computes with one thread, as the
    ranks of a job do where there are several.
    """
    if device.type == "cpu":
        torch.set_num_threads(1)
    forward, backward = _attention(device, dtype, sizes.attention, seconds)
    return {
        "gemms": [
            {"m": m, "n": n, "k": k, "seconds": _gemm(device, dtype, (m, n, k), seconds)} for m, n, k in sizes.gemms
        ],
        "attention": {
            **dict(zip(("sequences", "heads", "length", "head_dim"), sizes.attention, strict=True)),
            "forward_seconds": forward,
            "backward_seconds": backward,
        },
        "stream": {"bytes": 3 * sizes.stream_bytes, "seconds": _stream(device, dtype, sizes.stream_bytes, seconds)},
        "launch_seconds": _launch(device),
    }


def _gemm(device: torch.device, dtype: torch.dtype, shape: tuple[int, int, int], seconds: float) -> float:
    """Random numbers: zeros would draw less power and run faster."""
    m, n, k = shape
    a, b = torch.randn(m, k, device=device, dtype=dtype), torch.randn(n, k, device=device, dtype=dtype)
    out = torch.empty(m, n, device=device, dtype=dtype)
    return _time(lambda: torch.matmul(a, b.t(), out=out), device, seconds)


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
    """Seconds of the host to start one kernel that does next to nothing."""
    x = torch.zeros(1, device=device)
    for _ in range(100):
        x.add_(1)
    synchronize(device)
    started = time.perf_counter()
    for _ in range(_LAUNCHES):
        x.add_(1)
    seconds = time.perf_counter() - started
    synchronize(device)
    return seconds / _LAUNCHES


def _time(work: Callable[[], Any], device: torch.device, seconds: float) -> float:
    """Seconds of one call: the median over a few rows of calls that take `seconds` seconds together."""
    work()
    started = time.perf_counter()
    work()
    synchronize(device)
    once = max(time.perf_counter() - started, 1e-7)
    calls = max(1, int(seconds / _CHUNKS / once))
    rows = []
    for _ in range(_CHUNKS):
        started = time.perf_counter()
        for _ in range(calls):
            work()
        synchronize(device)
        rows.append((time.perf_counter() - started) / calls)
    return statistics.median(rows)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done everything."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
