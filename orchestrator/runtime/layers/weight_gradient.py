"""Weight gradients that the matrix product which computes them adds to their buffer, without a tensor between.

megatron-core asks apex for such a product; cuBLAS has it, and torch 2.10 and later hand it on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from orchestrator.errors import MissingDependency
from orchestrator.kernel_selection.fused_kernels import adds_in_products
from orchestrator.runtime.processes.device import Device
from orchestrator.spec.job import JobSpec

Accumulate = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]
"""Adds a weight's gradient to a buffer: `accumulate`, or `add_product`."""


def accumulate(inputs: torch.Tensor, of_output: torch.Tensor, buffer: torch.Tensor) -> None:
    """buffer [out, in] += of_output [n, out]ᵀ · inputs [n, in], in place; the arguments are apex's.

    The product of 16-bit matrices is added to an fp32 buffer without being rounded. On the CPU, which has no such
    product, they are copied to fp32 first.
    """
    transposed = of_output.t()
    if inputs.dtype == buffer.dtype:
        buffer.addmm_(transposed, inputs)
    elif buffer.is_cuda:
        addmm: Any = torch.addmm
        addmm(buffer, transposed, inputs, out_dtype=buffer.dtype, out=buffer)
    else:
        buffer.addmm_(transposed.to(buffer.dtype), inputs.to(buffer.dtype))


def add_product(inputs: torch.Tensor, of_output: torch.Tensor, buffer: torch.Tensor) -> None:
    """As `accumulate`, by two kernels that every torch has: the product is a rounded matrix of its own."""
    buffer += of_output.t() @ inputs


def nothing_to_add(weight: torch.Tensor) -> torch.Tensor:
    """What autograd gets as the gradient of a weight whose buffer has it already: one has to arrive for megatron-core
    to know that there was any. Only where embeddings share the weight (`zero_out_wgrad`) is it read, in a sum.
    """
    vars(weight)["grad_added_to_main_grad"] = True
    return torch.zeros_like(weight) if getattr(weight, "zero_out_wgrad", False) else torch.empty_like(weight)


def fuses_accumulation(job: JobSpec, device: Device, dtype: torch.dtype) -> bool:
    """Whether products of `dtype` add to the gradients' buffers in a run.

    Raises MissingDependency when it is asked for and this torch cannot do it.
    """
    by_itself = job.runtime.gradient_accumulation_fusion == "auto"
    if not adds_in_products(job) or (by_itself and not device.is_cuda):
        return False
    # The joined loss has a sum of its own where gradients are in 16 bits: in fp32.
    in_fp32 = job.precision.grad_reduce_in_fp32 or job.runtime.fused_linear_cross_entropy
    possible = _can_accumulate(device, dtype, torch.float32 if in_fp32 else dtype)
    if job.runtime.gradient_accumulation_fusion is True and not possible:
        raise MissingDependency(
            f"runtime.gradient_accumulation_fusion is true, but torch {torch.__version__} cannot add a product of "
            f"{job.precision.dtype} matrices to sums in fp32 on a GPU, as 2.10 and later do; "
            "leave gradient_accumulation_fusion out",
            code="torch_too_old",
        )
    return possible


def _can_accumulate(device: Device, dtype: torch.dtype, of_buffer: torch.dtype) -> bool:
    """Found out by doing it: torch 2.8 and 2.9 have the product, but only for a buffer in the dtype of the matrices."""
    ones = torch.ones(16, 16, dtype=dtype, device=device.torch_device)
    buffer = torch.ones(16, 16, dtype=of_buffer, device=device.torch_device)
    try:
        accumulate(ones, ones, buffer)
    except (RuntimeError, TypeError):  # a dtype that it does not take; an argument that it does not have
        return False
    return bool((buffer == 17).all())
