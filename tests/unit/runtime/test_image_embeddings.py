"""Patches among embeddings: values and gradients of the plain way, and what an encoder's activation keeps."""

from __future__ import annotations

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core

# isort: split
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.models.blocks.mlp.layers import quick_gelu
from orchestrator.runtime.layers.images.patch_placement import place


@given(st.integers(1, 6), st.integers(1, 3), st.integers(0, 2**16), st.integers(0, 3))
def test_places_and_gradients(length: int, batch: int, bits: int, more: int) -> None:
    """Against the look-up whose gradient is summed; a part of a sequence begins with any patch, some never stand."""
    is_patch = torch.tensor([bool(bits >> number & 1) for number in range(length * batch)]).view(length, batch)
    first = min(more, 1)
    which = (is_patch.cumsum(dim=0) - 1).clamp(min=0) + first
    which = which * batch + torch.arange(batch)
    seen = torch.randn((length + more + 1) * batch, 4, requires_grad=True, dtype=torch.float64)
    embedded = torch.randn(length, batch, 4, requires_grad=True, dtype=torch.float64)
    plain = torch.where(is_patch.unsqueeze(2), seen[which], embedded)
    placed = place(embedded, seen, is_patch, which)
    assert torch.equal(plain, placed)
    wanted = torch.randn_like(plain)
    expected = torch.autograd.grad(plain, (embedded, seen), wanted)
    found = torch.autograd.grad(placed, (embedded, seen), wanted)
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))


def test_quick_gelu_keeps_one_tensor() -> None:
    """As the plan has it."""
    x = torch.linspace(-6, 6, 101, dtype=torch.float64, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        found = quick_gelu(x)
    assert [tensor.shape for tensor in kept] == [x.shape]
    assert found.detach().numpy() == pytest.approx(
        (x * torch.sigmoid(1.702 * x)).detach().numpy(), rel=1e-12, abs=1e-15
    )
