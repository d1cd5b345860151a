"""What torch's fused attention computes is the same bits each time in a deterministic run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.measured import needs_gpus

from orchestrator.runtime.layers.attention.fused import fused_attention
from orchestrator.runtime.megatron_compat import deterministic_algorithms

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

TIMES = 20


@pytest.fixture
def deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "1")
    deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def gradients(options: dict[str, Any]) -> list[torch.Tensor]:
    """Those of query, key and value, [3, 2, 4, 2048, 128], of the same numbers each time."""
    given = torch.randn(3, 2, 4, 2048, 128, generator=torch.Generator().manual_seed(1)).to("cuda", torch.bfloat16)
    q, k, v = (each.requires_grad_() for each in given)
    out = fused_attention(q, k, v, **options)
    return list(torch.autograd.grad(out.float().sin().sum(), (q, k, v)))


def different(options: dict[str, Any]) -> int:
    """How many of some passes have other gradients than the first."""
    first = gradients(options)
    return sum(not all(map(torch.equal, first, gradients(options))) for _ in range(TIMES - 1))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.usefixtures("deterministic")
def test_gradients_are_bitwise_the_same(masked: bool) -> None:
    needs_gpus(1, "torch")
    mask = torch.zeros(2048, 2048, device="cuda", dtype=torch.bfloat16) if masked else None
    options = {"attn_mask": mask, "is_causal": not masked}
    found = different(options)
    torch.use_deterministic_algorithms(False)
    print(f"\nRESULT fused attention, masked {masked}: {found} of {TIMES - 1} differ, otherwise {different(options)}")
    assert found == 0
