"""Gradient accumulation in the matrix product, in bf16 on a GPU: what it adds, and what it saves."""

from __future__ import annotations

import importlib.util
import itertools
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.faults import Ranks
from support.training import four_layer_job, largest_difference, losses, make_run, values

from orchestrator.runtime.layers.weight_gradient import accumulate
from orchestrator.spec.job import JobSpec

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(580)]

LAYERS = ("torch", "transformer_engine")
MODEL = {"num_layers": 4, "hidden_size": 2048, "num_attention_heads": 16, "seq_length": 2048, "vocab_size": 32000}


def trained_job(layers: str, *, in_fp32: bool, fused: bool) -> JobSpec:
    return four_layer_job(
        f"{'fused' if fused else 'plain'}-{'fp32' if in_fp32 else 'bf16'}",
        model=MODEL,
        batch={"micro_batch_size": 2, "global_batch_size": 16},
        precision={"dtype": "bf16", "grad_reduce_in_fp32": in_fp32},
        schedule={"train_iters": 12},
        runtime={"layers": layers, "gradient_accumulation_fusion": fused},
    )


def jobs(text: str) -> list[JobSpec]:
    """Every job of this file, which needs no text."""
    choices = itertools.product(LAYERS, (True, False), (False, True))
    return [trained_job(layers, in_fp32=in_fp32, fused=fused) for layers, in_fp32, fused in choices]


def milliseconds(run: Callable[[], Any], times: int = 20) -> float:
    for _ in range(5):
        run()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(times):
        run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / times


@pytest.mark.parametrize(("tokens", "outputs", "inputs"), [(8192, 8192, 2048), (8192, 2048, 8192), (0, 256, 128)])
def test_the_product_is_exact_and_in_place(tokens: int, outputs: int, inputs: int) -> None:
    torch.manual_seed(1)
    options: Any = {"device": "cuda", "dtype": torch.bfloat16}
    taken, of_output = torch.randn(tokens, inputs, **options), torch.randn(tokens, outputs, **options)
    storage = torch.randn(outputs * inputs + 256, device="cuda")
    buffer, before = storage[128:-128].view(outputs, inputs), storage.clone()
    memory = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    accumulate(taken, of_output, buffer)
    # cuBLAS takes a workspace once; no matrix of the gradient's size comes beside the buffer.
    extra = torch.cuda.max_memory_allocated() - memory
    exact = before[128:-128].view(outputs, inputs).double() + of_output.t().double() @ taken.double()
    scale = max(tokens, 1) ** 0.5
    fused_error = ((buffer - exact).abs().max() / scale).item()
    plain = before[128:-128].view(outputs, inputs) + of_output.t() @ taken
    plain_error = ((plain - exact).abs().max() / scale).item()
    assert torch.equal(storage[:128], before[:128])
    assert torch.equal(storage[-128:], before[-128:])
    assert fused_error < 1e-4
    if tokens == 0:
        return
    assert fused_error < plain_error
    together = milliseconds(lambda: accumulate(taken, of_output, buffer))
    apart = milliseconds(lambda: buffer.add_(of_output.t() @ taken))
    print(
        f"\nRESULT weight gradient {outputs} x {inputs} of {tokens} tokens: {together:.3f} ms in one, {apart:.3f} ms "
        f"in two; largest error {fused_error:.1e} and {plain_error:.1e}; {extra / 2**20:.0f} MiB beside the buffer"
    )


@pytest.mark.parametrize("in_fp32", [True, False], ids=["fp32", "bf16"])
@pytest.mark.parametrize("layers", LAYERS)
def test_trains_the_same(layers: str, in_fp32: bool, ranks: Ranks, tmp_path: Path) -> None:
    if layers == "transformer_engine" and importlib.util.find_spec("transformer_engine") is None:
        pytest.skip("Transformer Engine is not installed")
    curves, norms, said = [], [], []
    for fused in (False, True):
        job = trained_job(layers, in_fp32=in_fp32, fused=fused)
        run = ranks.must_train(make_run(tmp_path, job), job)
        curves.append(losses(run))
        norms.append(values(run, "train/grad_norm"))
        seconds = statistics.median(list(values(run, "throughput/step_seconds").values())[4:])
        peak = max(values(run, "memory/peak_bytes").values()) / 2**30
        said.append(f"{seconds * 1000:.1f} ms per step, {peak:.2f} GiB")
    of_losses, of_norms = largest_difference(*curves), abs(norms[1][1] / norms[0][1] - 1)
    print(
        f"\nRESULT gradient accumulation {layers} in {'fp32' if in_fp32 else 'bf16'}: apart {said[0]}; "
        f"fused {said[1]}; losses differ by {of_losses:.1e}, the first gradient's norm by {of_norms:.1e}"
    )
    assert of_losses < 5e-3
    assert of_norms < 5e-3, "a gradient that is missing or counted twice"
