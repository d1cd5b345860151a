"""Measurements of kernels on the CPU, and what they are taken for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import pytest
import torch
from support.clock import own_clock

from orchestrator.planning.hardware import Device, shipped
from orchestrator.planning.time.fits.kernel_measurements import efficiency_of, table_of
from orchestrator.planning.time.kernels.accesses import TORCH
from orchestrator.planning.time.kernels.attention import attention_seconds
from orchestrator.planning.time.kernels.gemm import gemm_seconds
from orchestrator.runtime.calibration.kernels import Sizes, burst_seconds, measure_kernels, sustained_seconds

TINY = Sizes(gemms=((64, 32, 16),), attention=(1, 2, 32, 8), stream_bytes=1 << 16)


@pytest.fixture
def one_thread() -> object:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_every_kernel_is_measured() -> None:
    found = measure_kernels(torch.device("cpu"), torch.float32, TINY, 0.002)
    assert found["sustained_gemm"] is None, "no power limit is looked for on the CPU"
    assert found["gemms"][0] == {"m": 64, "n": 32, "k": 16, "seconds": found["gemms"][0]["seconds"]}
    sizes = found["attention"]
    assert (sizes["sequences"], sizes["heads"], sizes["length"], sizes["head_dim"]) == TINY.attention
    assert found["stream"]["bytes"] == 3 << 16
    measured = [found["gemms"][0]["seconds"], sizes["forward_seconds"], sizes["backward_seconds"]]
    for seconds in (*measured, found["stream"]["seconds"], found["launch_seconds"]):
        assert 1e-8 < seconds < 1.0


@dataclass
class LimitedGpu:
    """A clock, and a GPU whose products slow down when it has been busy for long without a rest."""

    flops: float
    rates: tuple[tuple[float, float], ...]
    """(busy seconds, FLOP/s from then on), the last first."""
    now: float = 0.0
    busy: float = 0.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.busy = 0.0 if seconds >= 0.3 else self.busy

    def multiply(self) -> None:
        taken = self.flops / next(rate for since, rate in self.rates if self.busy >= since)
        self.now += taken
        self.busy += taken


H200_RATES = {
    (8192, 8192, 8192): ((0.12, 680e12), (0.03, 725e12), (0.0, 785e12)),
    (16384, 8192, 2048): ((0.03, 647e12), (0.0, 760e12)),
    (4096, 4096, 4096): ((0.03, 673e12), (0.0, 779e12)),
}
"""As seen on an idle one (docs/benchmarks/accuracy.md, "The power limit")."""


def test_bursts_are_undisturbed_and_loops_at_the_power_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cpu")
    for (m, n, k), rates in H200_RATES.items():
        gpu = LimitedGpu(2.0 * m * n * k, rates, busy=1.0)
        own_clock(monkeypatch, "orchestrator.runtime.calibration.kernels", gpu)
        assert burst_seconds(gpu.multiply, device) == pytest.approx(gpu.flops / rates[-1][1])
        assert 1.5 < gpu.now < 1.6, "half a second of rest and 15 ms, three times"
        gpu.now, gpu.busy = 0.0, 0.0
        assert sustained_seconds(gpu.multiply, device) == pytest.approx(gpu.flops / rates[0][1])
        assert 1.9 < gpu.now < 2.5


def test_the_largest_product_is_the_one_that_is_looped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors without data stand for a GPU's: their products are only counted."""
    module = "orchestrator.runtime.calibration.kernels"
    monkeypatch.setattr(f"{module}.burst_seconds", lambda work, device: 0.25)
    monkeypatch.setattr(f"{module}.sustained_seconds", lambda work, device: float(work().numel()))
    sizes = replace(TINY, gemms=((64, 32, 16), (8, 512, 16), (128, 8, 8)))
    found = measure_kernels(torch.device("meta"), torch.bfloat16, sizes, 0.001)
    assert [one["seconds"] for one in found["gemms"]] == [0.25, 0.25, 0.25]
    assert found["sustained_gemm"] == {"m": 8, "n": 512, "k": 16, "seconds": 8 * 512, "loop_seconds": 2.0}


def found_on(device: Device, *, links: bool = True) -> dict[str, object]:
    """What a device that does what the model of time says would be measured at."""
    attention = attention_seconds(4, 4096, 16, 128, device, "bf16", TORCH)
    shapes = ((8192, 8192, 8192), (16384, 8192, 2048))
    return {
        "dtype": "bf16",
        "gemms": [
            {"m": m, "n": n, "k": k, "seconds": gemm_seconds(m, n, k, device, "bf16")} for m, n, k in shapes
        ],
        "sustained_gemm": {
            **{"m": 8192, "n": 8192, "k": 8192, "loop_seconds": 2.0},
            "seconds": gemm_seconds(8192, 8192, 8192, device, "bf16"),
        },
        "attention": {
            **{"sequences": 4, "length": 4096, "heads": 16, "head_dim": 128},
            **{"forward_seconds": attention.forward, "backward_seconds": attention.backward},
        },
        "stream": {"bytes": 3e9, "seconds": 3e9 / device.memory_bandwidth / device.efficiency.memory},
        "launch_seconds": 4e-6,
        "links": {
            **{"processes": 4, "bytes": 1e9, "latency_seconds": 2e-5},
            **{"gather_seconds": 0.75e9 / 300e9, "scatter_seconds": 0.75e9 / 300e9},
        }
        if links
        else None,
    }  # fmt: skip


def test_measurements_become_the_efficiencies_that_explain_them() -> None:
    sheet = shipped("H200")
    assert sheet is not None
    true = replace(sheet, efficiency=replace(sheet.efficiency, gemm=0.6, attention_backward=0.2, memory=0.7))
    reached = efficiency_of(found_on(true), sheet)
    assert reached["gemm"] == pytest.approx(0.6 * 0.98), "a little less is reached in training than alone"
    assert reached["attention_forward"] == pytest.approx(sheet.efficiency.attention_forward)
    assert reached["attention_backward"] == pytest.approx(0.2)
    assert reached["memory"] == pytest.approx(0.7)
    assert reached["link"] == pytest.approx(300 / 450)
    assert (reached["link_latency"], reached["launch"]) == (2e-5, 4e-6)
    assert not {"link", "link_latency"} & set(efficiency_of(found_on(true, links=False), sheet))


def products(*, looped: float) -> dict[str, object]:
    """An H200's bursts, and the largest product at so many FLOP/s where it is looped."""

    def product(shape: tuple[int, int, int], rate: float) -> dict[str, float]:
        return {**dict(zip("mnk", shape, strict=True)), "seconds": 2.0 * prod(shape) / rate}

    return {
        "gemms": [product(shape, rates[-1][1]) for shape, rates in H200_RATES.items()],
        "sustained_gemm": {**product((8192, 8192, 8192), looped), "loop_seconds": 2.0},
    }


def test_an_h200s_products_give_what_is_shipped_for_it() -> None:
    sheet = shipped("H200")
    assert sheet is not None
    reached = efficiency_of({**found_on(sheet), **products(looped=680e12)}, sheet)
    assert reached["gemm"] == pytest.approx(0.8345, abs=5e-5)
    assert round(reached["gemm"], 2) == sheet.efficiency.gemm
    assert reached["gemm_at_power_limit"] == pytest.approx(0.708, abs=5e-4)
    assert reached["gemm_at_power_limit"] == pytest.approx(sheet.efficiency.gemm_at_power_limit, rel=0.02)


@pytest.mark.parametrize(("looped", "limit"), [(785e12, 1.0), (763e12, 1.0), (761e12, 1.03 * 761 / 989)])
def test_a_gpu_that_is_at_no_power_limit_has_none(looped: float, limit: float) -> None:
    """Written, since the H200 that it goes over has one."""
    sheet = shipped("H200")
    assert sheet is not None
    found = {**found_on(sheet), **products(looped=looped)}
    assert efficiency_of(found, sheet)["gemm_at_power_limit"] == pytest.approx(limit)
    rows = {row.what: row.measured for row in table_of(found, sheet)}
    which = "no power limit" if limit == 1.0 else "the power limit"
    assert rows[f"the largest for 2 s, at {which}"] == pytest.approx(looped / 1e12)


def test_the_cpu_has_no_power_limit_measured() -> None:
    sheet = shipped("cpu")
    assert sheet is not None
    found = {**found_on(sheet, links=False), "sustained_gemm": None}
    assert "gemm_at_power_limit" not in efficiency_of(found, sheet)
    assert not [row for row in table_of(found, sheet) if "limit" in row.what]


def test_within_a_step_an_operation_on_the_cpu_takes_longer_to_start() -> None:
    sheet = shipped("cpu")
    assert sheet is not None
    found = {**found_on(sheet, links=False), "sustained_gemm": None}
    assert efficiency_of(found, sheet)["launch"] == 2 * 4e-6


def test_the_table_states_measured_and_datasheet() -> None:
    sheet = shipped("H200")
    assert sheet is not None
    rows = {row.what: row for row in table_of(found_on(sheet), sheet)}
    stream = rows["adding two tensors"]
    assert (stream.measured, stream.datasheet) == (pytest.approx(4800 * 0.88), 4800)
    assert rows["all-gather over 4 GPUs"].measured == pytest.approx(300)
    assert rows["matrix product 8192 x 8192 x 8192, bf16"].datasheet == 989
