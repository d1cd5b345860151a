"""Adam's update of many tensors on a GPU, in one kernel and one pass: clipping, both moments, decay, and the weights in
16 bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
import triton
import triton.language as tl

_CHUNK, _BLOCK, _WARPS = 1024, 1024, 4
"""Elements that a program updates, those that it updates at a time, and by how many warps."""
_ALIGNED = 16
"""What begins at a multiple of so many bytes, and has a multiple of so many elements, is read by wider instructions."""
_WEIGHTS = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, None: None}


@dataclass(frozen=True)
class Tensors:
    """Of one parameter: itself, its gradient and moments in fp32, and its copy in 16 bits where it has one. All are
    contiguous, and of as many elements.
    """

    parameter: torch.Tensor
    gradient: torch.Tensor
    first: torch.Tensor
    second: torch.Tensor
    weight: torch.Tensor | None

    @property
    def addresses(self) -> tuple[int, ...]:
        """Where they begin; 0 for no weight."""
        four = (self.parameter, self.gradient, self.first, self.second)
        return (*(each.data_ptr() for each in four), 0 if self.weight is None else self.weight.data_ptr())

    @property
    def kind(self) -> tuple[str, bool]:
        """Tensors of one kind are updated by one kernel."""
        aligned = all(number % _ALIGNED == 0 for number in (*self.addresses, self.parameter.numel()))
        return "" if self.weight is None else str(self.weight.dtype), aligned


@dataclass(frozen=True)
class Launch:
    """One kernel: where its tensors are, on the GPU."""

    elements: tuple[int, ...]
    """Of each tensor."""
    addresses: torch.Tensor
    """[5, tensors]"""
    counts: torch.Tensor
    """The elements, [tensors]."""
    chunks: torch.Tensor
    """Of each program its tensor, and which chunk of it, [2, programs]."""
    dtype: torch.dtype | None
    """Of the weights."""
    is_aligned: bool


def launches_of(tensors: Sequence[Tensors], earlier: Sequence[Launch] = ()) -> Iterator[Launch]:
    """The kernels that update these tensors while they stay where they are.

    `earlier`: those from which some have moved. Gradients that are not fp32 are copied to a new place in each step, and
    to share out billions of elements anew takes the host longer than the update takes the GPU.
    """
    shared_out = {each.elements: (each.counts, each.chunks) for each in earlier}
    for (_, is_aligned), each in groupby(sorted(tensors, key=lambda one: one.kind), key=lambda one: one.kind):
        same = list(each)
        device, weight = same[0].parameter.device, same[0].weight
        elements = tuple(one.parameter.numel() for one in same)
        counts, chunks = shared_out.get(elements) or _shared_out(elements, device)
        yield Launch(
            elements,
            torch.tensor([one.addresses for one in same]).t().contiguous().to(device),
            counts,
            chunks,
            None if weight is None else weight.dtype,
            is_aligned,
        )


def _shared_out(elements: tuple[int, ...], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """`counts` and `chunks` of a launch."""
    counts = torch.tensor(elements)
    programs = -(-counts // _CHUNK)
    owner = torch.repeat_interleave(torch.arange(len(elements)), programs)
    chunk = torch.arange(len(owner)) - torch.repeat_interleave(programs.cumsum(0) - programs, programs)
    return counts.to(device), torch.stack([owner, chunk]).to(device)


def update(
    launch: Launch,
    *,
    step: int,
    factor: float,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    decoupled: bool,
) -> None:
    """Update parameters and their moments by factor · gradient, and round them to their weights."""
    tensors, programs = launch.counts.numel(), launch.chunks.size(1)
    _adam_update[(programs,)](
        launch.addresses,
        launch.counts,
        launch.chunks,
        tensors,
        programs,
        factor,
        betas[0],
        1 - betas[0],
        betas[1],
        1 - betas[1],
        lr / (1 - betas[0] ** step),
        (1 - betas[1] ** step) ** 0.5,
        eps,
        lr * weight_decay if decoupled else weight_decay,
        decoupled=decoupled,
        dtype=_WEIGHTS[launch.dtype],
        aligned=launch.is_aligned,
        chunk=_CHUNK,
        block=_BLOCK,
        num_warps=_WARPS,
    )


@triton.jit
def _adam_update(
    addresses,
    counts,
    chunks,
    tensors,
    programs,
    factor,
    beta1,
    rest1,
    beta2,
    rest2,
    step_size,
    correction,
    eps,
    decay,
    decoupled: tl.constexpr,
    dtype: tl.constexpr,
    aligned: tl.constexpr,
    chunk: tl.constexpr,
    block: tl.constexpr,
):
    program = tl.program_id(0)
    tensor = tl.load(chunks + program)
    start = tl.load(chunks + programs + program) * chunk
    count = tl.load(counts + tensor)
    parameters = tl.load(addresses + tensor).to(tl.pointer_type(tl.float32))
    gradients = tl.load(addresses + tensors + tensor).to(tl.pointer_type(tl.float32))
    firsts = tl.load(addresses + 2 * tensors + tensor).to(tl.pointer_type(tl.float32))
    seconds = tl.load(addresses + 3 * tensors + tensor).to(tl.pointer_type(tl.float32))
    if aligned:
        count = tl.multiple_of(count, 16)
        parameters = tl.multiple_of(parameters, 16)
        gradients = tl.multiple_of(gradients, 16)
        firsts = tl.multiple_of(firsts, 16)
        seconds = tl.multiple_of(seconds, 16)
    for first_place in range(0, chunk, block):
        places = start + first_place + tl.arange(0, block)
        here = places < count
        parameter = tl.load(parameters + places, mask=here)
        gradient = tl.load(gradients + places, mask=here) * factor
        first = tl.load(firsts + places, mask=here)
        second = tl.load(seconds + places, mask=here)
        if decoupled:
            parameter -= decay * parameter
        else:
            gradient += decay * parameter
        first = beta1 * first + rest1 * gradient
        second = beta2 * second + rest2 * gradient * gradient
        parameter -= step_size * first / (tl.sqrt_rn(second) / correction + eps)
        tl.store(parameters + places, parameter, mask=here)
        tl.store(firsts + places, first, mask=here)
        tl.store(seconds + places, second, mask=here)
        if dtype is not None:
            weights = tl.load(addresses + 4 * tensors + tensor).to(tl.pointer_type(dtype))
            if aligned:
                weights = tl.multiple_of(weights, 16)
            tl.store(weights + places, parameter.to(dtype), mask=here)
