"""torch's fused attention in a deterministic run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from orchestrator.runtime.layers.attention.scaled_dot_product import scaled_dot_product_attention
from orchestrator.runtime.megatron_compat import deterministic_algorithms


class Strictness(TorchDispatchMode):
    """Which operations ran while torch stopped where it has no deterministic kernel, and which while it warned."""

    def __init__(self) -> None:
        super().__init__()
        self.strict: set[str] = set()
        self.warning: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        warns = torch.is_deterministic_algorithms_warn_only_enabled()
        (self.warning if warns else self.strict).add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "CUBLAS_WORKSPACE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("options", [{"is_causal": True}, {"attn_mask": torch.zeros(8, 8)}])
@pytest.mark.usefixtures("deterministic")
def test_it_alone_is_to_stop_without_a_deterministic_kernel(options: dict[str, Any]) -> None:
    """torch's kernels for GPUs are deterministic then, and not where it is to warn."""
    weight = torch.randn(16, 16, requires_grad=True)
    q, k, v = (torch.randn(2, 4, 8, 16) @ weight for _ in range(3))
    with Strictness() as seen:
        scaled_dot_product_attention(q, k, v, **options).square().sum().backward()
    fused = "_scaled_dot_product_flash_attention_for_cpu"
    assert seen.strict - {"detach"} == {fused, f"{fused}_backward"}
    assert "mm" in seen.warning
    assert torch.is_deterministic_algorithms_warn_only_enabled()


@pytest.mark.usefixtures("deterministic")
def test_cublas_has_a_workspace_without_which_torch_stops_at_its_products() -> None:
    """In attention that falls back to them."""
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_other_runs_are_left_alone() -> None:
    q = torch.randn(2, 4, 8, 16, requires_grad=True)
    scaled_dot_product_attention(q, q, q).sum().backward()
    assert not torch.are_deterministic_algorithms_enabled()
