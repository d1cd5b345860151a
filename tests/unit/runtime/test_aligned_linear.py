"""A product over a width that is filled up is that of the width itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from orchestrator.kernel_selection.fused_kernels import filling
from orchestrator.runtime.layers.images.aligned_linear import aligned_product


def test_which_widths_are_filled_up() -> None:
    """Qwen2.5-VL's 3,420 on one rank and on two, in 16 bits and in fp32."""
    assert [filling(width, 2) for width in (3420, 1710, 4, 3424, 1712, 8)] == [4, 2, 4, 0, 0, 0]
    assert [filling(width, 4) for width in (3420, 3424, 1710)] == [0, 0, 2]


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("fuses", [False, True])
@pytest.mark.parametrize("width", [1, 6, 8, 11])
def test_values_and_gradients(width: int, fuses: bool, frozen: bool) -> None:
    torch.manual_seed(1)
    inputs, gradient = torch.randn(5, 2, width, requires_grad=True), torch.randn(5, 2, 3)
    weight: Any = torch.nn.Parameter(torch.randn(3, width), requires_grad=not frozen)
    wanted = functional.linear(inputs, weight)
    of_inputs, *of_weight = torch.autograd.grad(wanted, [inputs] if frozen else [inputs, weight], gradient)
    weight.main_grad, weight.grad_added_to_main_grad = torch.ones_like(weight), False
    found = aligned_product(inputs, weight, fuses=fuses)
    torch.testing.assert_close(found, wanted)
    found.backward(gradient)
    torch.testing.assert_close(inputs.grad, of_inputs)
    if frozen:
        assert weight.grad is None
        return
    torch.testing.assert_close(weight.main_grad - 1 if fuses else weight.grad, *of_weight)
    assert weight.grad_added_to_main_grad == fuses
