"""From the seconds of single kernels, as `orchestrator.runtime.calibration` measures them, to what of a datasheet is
reached: each efficiency is the one with which the model of time gives the seconds that were measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from orchestrator.planning.hardware.devices import Device
from orchestrator.planning.time.kernels.accesses import TORCH
from orchestrator.planning.time.kernels.attention import attention_seconds
from orchestrator.planning.time.kernels.gemm import gemm_seconds, peak


class KernelEfficiency(NamedTuple):
    """One measurement beside its datasheet figure."""

    what: str
    measured: float
    datasheet: float | None
    unit: str


def efficiency_of(found: Mapping[str, Any], base: Device) -> dict[str, float]:
    """The fields of Efficiency that were measured. `base` gives the datasheet."""
    ideal = replace(
        base,
        efficiency=replace(
            base.efficiency,
            gemm=1.0,
            gemm_at_power_limit=1.0,
            memory=1.0,
            attention_forward=1.0,
            attention_backward=1.0,
        ),
    )
    dtype, sizes, fitted = found["dtype"], found["attention"], base.fitted.calibration
    products = [gemm_seconds(one["m"], one["n"], one["k"], ideal, dtype) / one["seconds"] for one in found["gemms"]]
    attention = attention_seconds(
        sizes["sequences"], sizes["length"], sizes["heads"], sizes["head_dim"], ideal, dtype, TORCH
    )
    reached = {
        "gemm": math.exp(sum(map(math.log, products)) / len(products))
        * (1.0 if base.is_cpu else fitted.gemm_in_training),
        "attention_forward": attention.forward / sizes["forward_seconds"],
        "attention_backward": attention.backward / sizes["backward_seconds"],
        "memory": found["stream"]["bytes"] / found["stream"]["seconds"] / base.memory_bandwidth,
        "launch": found["launch_seconds"] * (fitted.cpu_launch if base.is_cpu else 1.0),
    }
    held = found["sustained_gemm"]
    if held:
        # Written where nothing holds it too: a GPU of the base's kind may have a limit that this one has not.
        limit = min(1.0, fitted.gemm_at_power_limit * _rate(held) / peak(base, dtype))
        reached["gemm_at_power_limit"] = limit if _is_limited(found, held, base) else 1.0
    links = found.get("links")
    if links:
        reached["link"] = _ring_bandwidth(links) / base.link_bandwidth
        reached["link_latency"] = links["latency_seconds"]
    return reached


def table_of(found: Mapping[str, Any], base: Device) -> list[KernelEfficiency]:
    """What was measured, for people."""
    dtype, sizes, stream = found["dtype"], found["attention"], found["stream"]
    top = None if base.is_cpu else peak(base, dtype) / 1e12
    bandwidth = None if base.is_cpu else base.memory_bandwidth / 1e9
    rows = [
        KernelEfficiency(
            f"matrix product {one['m']} x {one['k']} x {one['n']}, {dtype}", _rate(one) / 1e12, top, "TFLOP/s"
        )
        for one in found["gemms"]
    ]
    held = found["sustained_gemm"]
    if held:
        limit = "the power limit" if _is_limited(found, held, base) else "no power limit"
        rows.append(
            KernelEfficiency(
                f"the largest for {held['loop_seconds']:g} s, at {limit}", _rate(held) / 1e12, top, "TFLOP/s"
            )
        )
    flops = 2.0 * sizes["sequences"] * sizes["heads"] * sizes["length"] ** 2 * sizes["head_dim"]
    rows += [
        KernelEfficiency("attention, causal, forward", flops / sizes["forward_seconds"] / 1e12, top, "TFLOP/s"),
        KernelEfficiency("attention, causal, backward", 2.5 * flops / sizes["backward_seconds"] / 1e12, top, "TFLOP/s"),
        KernelEfficiency("adding two tensors", stream["bytes"] / stream["seconds"] / 1e9, bandwidth, "GB/s"),
        KernelEfficiency("starting a kernel", found["launch_seconds"] * 1e6, None, "µs"),
    ]
    links = found.get("links")
    if links:
        link = None if base.is_cpu else base.link_bandwidth / 1e9
        name = f"all-gather over {links['processes']} {'processes' if base.is_cpu else 'GPUs'}"
        rows.append(KernelEfficiency(name, _ring_bandwidth(links) / 1e9, link, "GB/s"))
        rows.append(KernelEfficiency("shortest all-reduce", links["latency_seconds"] * 1e6, None, "µs"))
    return rows


def _is_limited(found: Mapping[str, Any], held: Mapping[str, Any], base: Device) -> bool:
    """Whether a product is so much slower in a loop than in bursts that it is slower in a training step as well."""
    burst = next(one for one in found["gemms"] if all(one[size] == held[size] for size in "mnk"))
    return base.fitted.calibration.gemm_at_power_limit * _rate(held) < _rate(burst)


def _rate(product: Mapping[str, Any]) -> float:
    """FLOP/s."""
    return float(2.0 * product["m"] * product["n"] * product["k"] / product["seconds"])


def _ring_bandwidth(links: Mapping[str, Any]) -> float:
    """B/s that pass through each rank, in all-gather and reduce-scatter alike."""
    count, total = links["processes"], links["bytes"]
    return float(2 * total * (count - 1) / count / (links["gather_seconds"] + links["scatter_seconds"]))
