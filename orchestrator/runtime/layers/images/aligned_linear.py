"""A matrix product over a width whose rows begin at no multiple of 16 bytes, such as the 3,420 of Qwen2.5-VL's MLPs:
filled up with zeros, as cuBLAS's fast kernels take other rows only.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.tensor_parallel import RowParallelLinear
from torch.autograd.function import once_differentiable

from orchestrator.kernel_selection.fused_kernels import filling
from orchestrator.runtime.layers.weight_gradient import accumulate, nothing_to_add


class AlignedRowParallelLinear(RowParallelLinear):
    """megatron-core's, whose inputs and weights are filled up for each product. The weights stay as they are."""

    def _forward_impl(
        self, input: torch.Tensor, weight: torch.Tensor, *, gradient_accumulation_fusion: bool, **unused: Any
    ) -> torch.Tensor:
        return aligned_product(input, weight, fuses=gradient_accumulation_fusion)


def aligned_product(inputs: torch.Tensor, weight: torch.Tensor, *, fuses: bool) -> torch.Tensor:
    """inputs: [..., in]; weight: [out, in]; [..., out]. `fuses`: the weight's gradient is added to its buffer."""
    apply: Any = _FilledUp.apply
    product: torch.Tensor = apply(inputs, weight, fuses)
    return product


class _FilledUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weight: torch.Tensor, fuses: bool) -> torch.Tensor:
        filled = _filled_up(inputs)
        ctx.save_for_backward(filled, weight)
        ctx.fuses = fuses
        return filled @ _filled_up(weight).t()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, None]:
        filled, weight = ctx.saved_tensors
        width = weight.size(1)
        of_inputs = (gradient @ _filled_up(weight))[..., :width]
        if not ctx.needs_input_grad[1]:
            return of_inputs, None, None
        rows, of_rows = filled.flatten(0, -2), gradient.flatten(0, -2)
        if not ctx.fuses:
            return of_inputs, (of_rows.t() @ rows)[:, :width], None
        # Not to the buffer at once, whose rows begin anywhere too.
        of_weight = weight.main_grad.new_zeros(weight.size(0), rows.size(1))
        accumulate(rows, of_rows, of_weight)
        weight.main_grad += of_weight[:, :width]
        return of_inputs, nothing_to_add(weight), None


def _filled_up(rows: torch.Tensor) -> torch.Tensor:
    """[..., width] as [..., the next width that is aligned], with zeros."""
    width = rows.size(-1)
    filled = rows.new_empty(*rows.shape[:-1], width + filling(width, rows.element_size()))
    filled[..., :width].copy_(rows)
    filled[..., width:].zero_()
    return filled
