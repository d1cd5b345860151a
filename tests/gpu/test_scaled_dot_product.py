"""What torch's scaled dot product attention computes is the same bits each time in a deterministic run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from support.measured import needs_gpus

from orchestrator.runtime.layers.attention.scaled_dot_product import scaled_dot_product_attention
from orchestrator.runtime.megatron_compat import deterministic_algorithms

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

TIMES = 20
CASES: dict[str, tuple[int, bool, bool]] = {
    # the width of a head, whether there is a mask, and whether it has a gradient
    "causal": (128, False, False),
    "masked": (128, True, False),
    "biased": (128, True, True),
    "wide": (512, True, False),
}


@pytest.fixture
def deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "CUBLAS_WORKSPACE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def gradients(case: str) -> tuple[torch.Tensor, ...]:
    """Those of query, key and value, [3, 2, 4, 2048, width], and of a mask that has one, of the same numbers."""
    width, is_masked, has_gradient = CASES[case]
    given = torch.randn(3, 2, 4, 2048, width, generator=torch.Generator().manual_seed(1)).to("cuda", torch.bfloat16)
    leaves = [each.requires_grad_() for each in given]
    mask = torch.zeros(2, 4, 2048, 2048, device="cuda", dtype=torch.bfloat16) if is_masked else None
    if mask is not None and has_gradient:
        leaves.append(mask.requires_grad_())
    out = scaled_dot_product_attention(*leaves[:3], attn_mask=mask, is_causal=not is_masked)
    return torch.autograd.grad(out.float().sin().sum(), leaves)


def different(case: str) -> int:
    """How many of some passes have other gradients than the first."""
    first = gradients(case)
    return sum(not all(map(torch.equal, first, gradients(case))) for _ in range(TIMES - 1))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("deterministic")
def test_gradients_are_bitwise_the_same(case: str) -> None:
    needs_gpus(1, "torch")
    found = different(case)
    torch.use_deterministic_algorithms(False)
    print(f"\nRESULT attention, {case}: {found} of {TIMES - 1} differ, otherwise {different(case)}")
    assert found == 0
