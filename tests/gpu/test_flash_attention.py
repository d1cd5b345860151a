"""FlashAttention 4 computes attention as torch does in fp32, and trains what the layers' own attention trains."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.flash import needs_flash
from support.measured import Meter, largest_differences, needs_layers
from support.training import four_layer_job, layout
from torch.nn import functional

from orchestrator.runtime.layers.attention.flash import attend
from orchestrator.runtime.layers.attention.rotation import thirds_of_one
from orchestrator.spec.job import JobSpec

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(580)]

SHAPES = {
    "thirds": (512, 2, 4, 4, 128),
    "thirds, odd": (333, 3, 5, 5, 128),
    "one sequence": (700, 1, 4, 4, 128),
    "less than a block": (40, 2, 4, 4, 128),
    "grouped": (512, 2, 8, 2, 128),
    "grouped, odd": (333, 1, 6, 2, 128),
    "one group": (200, 2, 4, 1, 128),
    "narrow thirds": (512, 2, 4, 4, 64),
    "narrow, odd": (333, 1, 5, 5, 64),
    "narrow, grouped": (257, 2, 8, 4, 64),
}
LOSSES, NORMS = 2e-3, 2e-2
"""Largest relative differences of two trainings in bf16."""
WIDE: dict[str, Any] = {"num_attention_heads": 4, "num_query_groups": 4}
GROUPED: dict[str, Any] = {"num_attention_heads": 8, "num_query_groups": 2, "position_embedding_type": "rope"}
CASES: dict[str, dict[str, Any]] = {
    "torch": {"model": WIDE, "layers": "torch"},
    "te": {"model": {**WIDE, "position_embedding_type": "rope"}, "layers": "transformer_engine"},
    "te-grouped": {"model": GROUPED, "layers": "transformer_engine"},
    "te-recomputed": {"model": GROUPED, "layers": "transformer_engine", "recompute_granularity": "selective"},
    "te-captured": {"model": GROUPED, "layers": "transformer_engine", "cuda_graphs": True},
}


def flash_job(case: str, backend: str) -> JobSpec:
    given = dict(CASES[case])
    model = {"hidden_size": 512, "seq_length": 512, "vocab_size": 50000, "init_method_std": 0.05, **given.pop("model")}
    return four_layer_job(
        f"{case}-{backend}",
        model=model,
        batch={"micro_batch_size": 4, "global_batch_size": 8},
        parallelism=layout(),
        precision={"dtype": "bf16"},
        runtime={"cuda_graphs": False, **given, "attention_backend": backend},
        schedule={"train_iters": 12},
    )


def jobs(text: str) -> list[JobSpec]:
    """Every job of this file, which needs no text."""
    return [flash_job(case, backend) for case in CASES for backend in ("fused", "flash")]


@pytest.mark.parametrize("together", [True, False], ids=["together", "apart"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_values_and_gradients(shape: tuple[int, ...], dtype: torch.dtype, together: bool) -> None:
    needs_flash()
    s, b, heads, groups, d = shape
    torch.manual_seed(1)
    if heads == groups:
        given = list(torch.randn(s, b, heads, 3, d, device="cuda", dtype=dtype).unbind(3))
    else:
        given = [torch.randn(s, b, each, d, device="cuda", dtype=dtype) for each in (heads, groups, groups)]
    upstream = torch.randn(s, b, heads * d, device="cuda", dtype=dtype)
    scale = 0.7 * d**-0.5
    wanted = _by_torch([each.float() for each in given], upstream.float(), scale)
    rounded = _by_torch(given, upstream, scale)
    leaves = [each.requires_grad_() for each in given]
    out = attend(*leaves, scale, together=together)
    gradients = torch.autograd.grad(out, leaves, upstream)
    assert (thirds_of_one(*gradients) is not None) == (together and heads == groups)
    for name, ours, theirs, exact in zip(("out", "dq", "dk", "dv"), (out, *gradients), rounded, wanted, strict=True):
        own, others = (_error(each, exact) for each in (ours, theirs))
        print(f"\nRESULT {shape} {dtype} {name}: {own:.1e} from fp32, torch {others:.1e}")
        assert own < max(2 * others, 5e-3)


def _error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.detach().float() - exact).norm() / exact.norm())


def _by_torch(given: list[torch.Tensor], upstream: torch.Tensor, scale: float) -> list[torch.Tensor]:
    leaves = [each.detach().clone().requires_grad_() for each in given]
    q, k, v = (each.permute(1, 2, 0, 3) for each in leaves)
    out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
    out = out.permute(2, 0, 1, 3).flatten(2)
    return [out.detach(), *torch.autograd.grad(out, leaves, upstream)]


@pytest.mark.parametrize("case", CASES)
def test_it_trains_the_same(case: str, trainer: Meter) -> None:
    """Demanded, so that a job that does not have it fails."""
    needs_flash()
    fused, flash = (flash_job(case, backend) for backend in ("fused", "flash"))
    needs_layers(fused.runtime.layers)
    found = trainer.measure_all([fused, flash])
    for each in found.values():
        assert each.outcome == "measured", each.message
    losses, norms = largest_differences(found[fused.name], found[flash.name])
    print(f"\nRESULT flash attention, {case}, against the layers' own: losses {losses:.1e} norms {norms:.1e}")
    assert losses < LOSSES
    assert norms < NORMS
