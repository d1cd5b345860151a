"""Measurements of kernels on the CPU, and what they are taken for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from orchestrator.planning.hardware import Device, shipped
from orchestrator.planning.time.attention import attention_seconds
from orchestrator.planning.time.gemm import gemm_seconds
from orchestrator.planning.time.kernels import TORCH
from orchestrator.planning.time.measured import efficiency_of, table_of
from orchestrator.runtime.calibration.kernels import Sizes, measure_kernels

TINY = Sizes(gemms=((64, 32, 16),), attention=(1, 2, 32, 8), stream_bytes=1 << 16)


@pytest.fixture
def one_thread() -> object:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_every_kernel_is_measured() -> None:
    found = measure_kernels(torch.device("cpu"), torch.float32, TINY, 0.002)
    assert found["gemms"][0] == {"m": 64, "n": 32, "k": 16, "seconds": found["gemms"][0]["seconds"]}
    sizes = found["attention"]
    assert (sizes["sequences"], sizes["heads"], sizes["length"], sizes["head_dim"]) == TINY.attention
    assert found["stream"]["bytes"] == 3 << 16
    measured = [found["gemms"][0]["seconds"], sizes["forward_seconds"], sizes["backward_seconds"]]
    for seconds in (*measured, found["stream"]["seconds"], found["launch_seconds"]):
        assert 1e-8 < seconds < 1.0


def found_on(device: Device, *, links: bool = True) -> dict[str, object]:
    """What a device that does what the model of time says would be measured at."""
    attention = attention_seconds(4, 4096, 16, 128, device, "bf16", TORCH)
    shapes = ((8192, 8192, 8192), (16384, 8192, 2048))
    return {
        "dtype": "bf16",
        "gemms": [
            {"m": m, "n": n, "k": k, "seconds": gemm_seconds(m, n, k, device, "bf16")} for m, n, k in shapes
        ],
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
    assert (reached["link_latency"], reached["launch"]) == (2e-5, 8e-6)
    assert not {"link", "link_latency"} & set(efficiency_of(found_on(true, links=False), sheet))


def test_the_best_known_product_gives_the_shipped_efficiency() -> None:
    """8192 x 8192 x 8192 alone at 790 TFLOP/s on an H200."""
    sheet = shipped("H200")
    assert sheet is not None
    found = found_on(sheet)
    found["gemms"] = [{"m": 8192, "n": 8192, "k": 8192, "seconds": 2 * 8192**3 / 790e12}]
    assert efficiency_of(found, sheet)["gemm"] == pytest.approx(sheet.efficiency.gemm, rel=0.02)


def test_the_table_states_measured_and_datasheet() -> None:
    sheet = shipped("H200")
    assert sheet is not None
    rows = {row.what: row for row in table_of(found_on(sheet), sheet)}
    stream = rows["adding two tensors"]
    assert (stream.measured, stream.datasheet) == (pytest.approx(4800 * 0.88), 4800)
    assert rows["all-gather over 4 GPUs"].measured == pytest.approx(300)
    assert rows["matrix product 8192 x 8192 x 8192, bf16"].datasheet == 989
