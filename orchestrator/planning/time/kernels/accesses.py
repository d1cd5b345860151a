"""What a layer backend does to memory: how often each activation is read or written, and in how many kernels.

Counted in accesses: one read or one write of a whole activation by a kernel that streams. Where a kernel was slower
than that in a profile of a step (H200, 1.7B, micro-batches of 1 and of 4 sequences; docs/benchmarks has them), it
counts as the accesses that would have taken as long.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from orchestrator.backends.fused_kernels import adds_in_products
from orchestrator.backends.tensor_overlap import overlaps_tensor_parallel
from orchestrator.models.blocks.base import NOTHING, ForwardBackward
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.runtime import Layers

_GELU = ForwardBackward(3, 4.3)


@dataclass(frozen=True)
class Kernels:
    """A layer backend."""

    layers: Layers
    """Whose layers these are, which decides about grouped experts and `rotates_projection`."""
    fused_attention: bool
    """Whether attention runs at the device's `fused_attention_*` efficiencies instead of `attention_*`."""
    norm: ForwardBackward
    """Accesses of [tokens, h] for one norm."""
    rope: ForwardBackward
    """Accesses of queries and keys each, to rotate them one after the other."""
    attention_layout: ForwardBackward
    """Accesses of [tokens, query width] to bring attention's output back into [s, b, h]."""
    joins: float
    """Accesses of queries, keys and values each, to bring their gradients together."""
    dropout: ForwardBackward
    """Accesses of [tokens, h] to drop what a branch gives: the mask is half an access, its gradient one more each way;
    and each number that decides is drawn by arithmetic.
    """
    score_dropout: ForwardBackward
    """Dropping scores takes attention as long as this much of a head's width would (attention.py beside this)."""
    bias: ForwardBackward
    """Accesses of a linear layer's output for its bias, and for the gradient of it."""
    accumulation: float
    """Bytes per parameter and micro-batch, beside writing it, to add a weight gradient to the fp32 buffer."""
    optimizer: float
    """Bytes per parameter that this rank updates: norm, clipping, Adam, the copy in the model's dtype."""
    launches: ForwardBackward
    """Kernels that the host starts for one layer."""
    collective: float
    """Kernels of a layer that take the host as long as one of its collectives: 7.1B on two H100s, whose hosts were
    measured too (docs/benchmarks/2026-11-25-h100.md). 345M on two GPUs said 12, on hosts that nobody measured and that
    waited for each other.
    """
    optimizer_launches: float
    """Kernels that the host starts per parameter tensor in the optimizer's step."""
    loss: ForwardBackward
    """Bytes per logit of the cross entropy, the matrix product aside."""
    exchange: ForwardBackward = NOTHING
    """Kernels of a layer that would take the host as long as what attention has it do more where ranks share a
    sequence: gathering its keys and values, and attending piece by piece (docs/benchmarks/2026-11-26-h100.md).
    """
    ring: ForwardBackward = NOTHING
    """The same of each round where they go round, one for each of these ranks. Measured with two: in a trace a round
    was 0.5 of the 1.5 ms of a forward pass and 0.7 of the 1.9 of a backward pass."""
    rings: bool = False
    """Whether they go round: Transformer Engine's way."""
    returns_together: bool = False
    """Whether attention returns gradients of what the projection left side by side in one tensor."""
    rotated_launches: ForwardBackward | None = None
    """What `launches` says, where it is less for layers that one kernel rotates."""
    projection: ForwardBackward | None = None
    """Accesses of queries and keys each where one kernel rotates them as their projection left them, if there is one
    (`rotates_projection`); no gradients are joined then, nor is anything laid out anew.
    """
    gelu: ForwardBackward = _GELU
    """Accesses of [tokens, ffn] for the exact GeLU: 2 and 3, and torch computes longer than these take."""
    after_transfer: float = 0.0
    """Seconds in which the GPU has nothing to do after a transfer between stages. None where the host does not wait
    for it, as with this project's runtime.
    """
    overlaps_tensor_parallel: bool = False
    """Whether a layer's matrix products go in pieces with the collective before or after them, as with Transformer
    Engine's user buffers (`parallelism.tp_comm_overlap`).
    """
    attention_rate: float = 1.0
    """How many times as fast as the device's efficiencies say attention is."""
    sums_with_input_gradient: bool = False
    """Whether the gradient of a column-parallel layer's input is among these, summed as it is multiplied: the runtime's
    way. Otherwise it is summed behind the gradient of the weight, as by megatron-core itself.
    """


_FLASH_ATTENTION = 1.17
"""FlashAttention 4 beside cuDNN, of four shapes: 1.14 to 1.23 (docs/benchmarks/2026-11-24-h200-2.md)."""
_DROPOUT = ForwardBackward(2, 2.5)
"""Measured on an H200 (docs/benchmarks/2026-11-23-h200-7.md): 20.2 us forward and 9.9 backward for 16 MiB, one drawing
of a seed included. Other devices, the CPU too, are taken to be like it.
"""
_SCORE_DROPOUT = ForwardBackward(187, 32)
"""Measured there, of cuDNN's attention."""

_IN_PRODUCTS = 2
"""By the product that computes the gradient, behind its arithmetic: this is what small weights take."""
_BEHIND_PRODUCTS = 14
"""Read bf16, read and write fp32: 10, by a kernel for mixed dtypes that does not reach the bandwidth."""
_BEHIND_PRODUCTS_IN_16_BITS = 6
"""Read both, write one."""
TORCH = Kernels(
    layers="torch",
    fused_attention=False,
    norm=ForwardBackward(
        4, 9
    ),  # the backward's second kernel reads x and dy again for the gradients of weight and bias
    rope=ForwardBackward(10, 8),  # torch.compile makes one kernel of each pass, at a quarter of the bandwidth
    attention_layout=ForwardBackward(2, 2),
    joins=2,
    dropout=_DROPOUT,
    score_dropout=_SCORE_DROPOUT,
    bias=ForwardBackward(2, 1),
    accumulation=_IN_PRODUCTS,
    optimizer=34,  # norm 4, and one kernel that clips, updates and writes the weights
    launches=ForwardBackward(45, 85),
    exchange=ForwardBackward(12, 12),
    rotated_launches=ForwardBackward(
        18, 36
    ),  # 0.57 to 0.8 of Transformer Engine's (docs/benchmarks/2026-11-24-h200-4.md)
    collective=4,
    optimizer_launches=1,
    loss=ForwardBackward(2.7, 5.4),
    projection=ForwardBackward(2.2, 2.2),
    gelu=ForwardBackward(2.2, 3.0),
)
"""torch's operations one by one, and its scaled dot product attention."""

TRANSFORMER_ENGINE = Kernels(
    layers="transformer_engine",
    fused_attention=True,
    norm=ForwardBackward(2.5, 4.3),
    rope=ForwardBackward(5, 5.5),
    attention_layout=ForwardBackward(0, 5.5),
    joins=2,
    returns_together=True,
    dropout=_DROPOUT,
    score_dropout=_SCORE_DROPOUT,
    bias=ForwardBackward(0, 2),  # added by the product; its gradient is summed by a kernel of cuBLAS's
    accumulation=_IN_PRODUCTS,
    optimizer=34,
    launches=ForwardBackward(30, 60),
    exchange=ForwardBackward(12, 12),
    ring=ForwardBackward(35, 20),
    rings=True,
    collective=4,
    optimizer_launches=1,
    loss=ForwardBackward(2.7, 5.4),
    projection=ForwardBackward(2.2, 2.2),
    gelu=ForwardBackward(2.2, 3.0),
)
"""Fused norms and rotation, cuDNN's attention."""

OVERLAPPING = replace(TRANSFORMER_ENGINE, collective=2.5, overlaps_tensor_parallel=True, sums_with_input_gradient=True)
"""The same with user buffers as the runtime sets them up; what they send the products' own calls start."""


def kernels_of(job: JobSpec, layers: Layers) -> Kernels:
    """The backend that the job's `runtime.layers` resolves to, and what the job has it overlap."""
    kernels = TORCH
    if layers != "torch":
        kernels = OVERLAPPING if overlaps_tensor_parallel(job, layers) else TRANSFORMER_ENGINE
    if not adds_in_products(job):
        in_16_bits = job.precision.dtype != "fp32" and not job.precision.grad_reduce_in_fp32
        kernels = replace(kernels, accumulation=_BEHIND_PRODUCTS_IN_16_BITS if in_16_bits else _BEHIND_PRODUCTS)
    return replace(kernels, attention_rate=_FLASH_ATTENTION) if job.runtime.attention_backend == "flash" else kernels
