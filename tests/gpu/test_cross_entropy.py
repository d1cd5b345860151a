"""The kernels of the cross entropy give what torch's operations give, in one pass over the logits each."""

from __future__ import annotations

import pytest
import torch
from support.gpu_clock import fastest, memory_bandwidth
from support.measured import needs_gpus

from orchestrator.runtime.cross_entropy import rows
from orchestrator.runtime.cross_entropy.rows import rows_on

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

BYTES_PER_LOGIT = 6
"""Read; read again and replaced by the gradient."""
LEAST_SHARE = 0.52
"""Of the bandwidth in the datasheet: an H200 reaches 0.87, and a pass that read the logits twice less than this."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("width", "valid"), [(50304, 50257), (4096, 4096), (300, 290), (7, 7), (65536, 0), (9000, 4097)]
)
def test_kernels_give_what_operations_give(width: int, valid: int, dtype: torch.dtype) -> None:
    needs_gpus(1, "torch")
    kernels = rows_on(torch.device("cuda"))
    generator = torch.Generator("cuda").manual_seed(width)
    logits = (6 * torch.randn(33, width, device="cuda", generator=generator)).to(dtype)
    targets = torch.randint(-5, width + 5, (33,), device="cuda", generator=generator)
    logits[3] = torch.finfo(dtype).min
    logits[4, 0] = 40000.0
    expected, found = (each.statistics(logits, targets, valid) for each in (rows, kernels))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    gradient = torch.linspace(-1, 3, 33, device="cuda")
    if not valid:  # of a row whose other columns are on another rank
        expected[0], expected[1] = 0.0, 1.0
    one, other = logits.clone(), logits.clone()
    rows.turn_into_gradient(one, targets, valid, expected, gradient)
    version = other._version
    kernels.turn_into_gradient(other, targets, valid, expected, gradient)
    torch.testing.assert_close(other, one)
    assert other._version > version, "autograd is told that the logits are gone"


def test_what_is_not_finite_is_seen() -> None:
    needs_gpus(1, "torch")
    for bad in (float("nan"), float("inf")):
        logits = torch.zeros(2, 5000, device="cuda")
        logits[1, 4500] = bad
        found = rows_on(logits.device).statistics(logits, torch.tensor([0, 1], device="cuda"), 5000)
        losses = found[1].log() + found[0] - found[2]
        assert losses.isfinite().tolist() == [True, False]


def test_the_logits_are_read_once_in_each_pass() -> None:
    needs_gpus(1, "torch")
    kernels = rows_on(torch.device("cuda"))
    logits = torch.randn(16384, 131072, device="cuda", dtype=torch.bfloat16)
    targets, gradient = torch.randint(0, 131072, (16384,), device="cuda"), torch.ones(16384, device="cuda") / 16384

    def both_passes() -> None:
        found = kernels.statistics(logits, targets, 131072)
        kernels.turn_into_gradient(logits, targets, 131072, found, gradient)

    seconds = fastest(both_passes)
    rate = BYTES_PER_LOGIT * logits.numel() / seconds
    print(f"\nRESULT 16,384 tokens over 131,072 words: {seconds * 1e3:.2f} ms, {rate / 1e12:.2f} TB/s")
    assert rate > LEAST_SHARE * memory_bandwidth()
