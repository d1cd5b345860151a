"""What a layer backend does to memory: how often each activation is read or written, and in how many kernels.

Counted in accesses: one read or one write of a whole activation by a kernel that streams. Where a kernel was slower
than that in a profile of a step (H200, 1.7B, micro-batches of 1 and of 4 sequences; docs/benchmarks has them), it
counts as the accesses that would have taken as long. The figures are in planning/hardware/fitted_constants.json.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from orchestrator.kernel_selection.experts import can_fuse_permutation, can_fuse_router
from orchestrator.kernel_selection.fused_kernels import adds_in_products
from orchestrator.kernel_selection.tensor_overlap import overlaps_tensor_parallel
from orchestrator.models.blocks.base import NOTHING, ForwardBackward
from orchestrator.planning.hardware.fitted_constants import fitted_constants, values
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.runtime import Layers


class TokenExchange(NamedTuple):
    """How tokens reach the ranks of their experts and come back. The default is this project's runtime, to which the
    fitted constants of experts belong; other software sends otherwise.
    """

    sends_once: bool = False
    """Whether a token goes once to each machine that has experts of it and there once to each of their ranks, whatever
    the number of its experts on them (DeepEP and HybridEP). Otherwise each expert's copy goes by itself.
    """
    overlaps: bool = False
    """Whether it runs beside a pass over another micro-batch (megatron-core's overlap_moe_expert_parallel_comm)."""
    moved: ForwardBackward | None = None
    """Accesses of [tokens * chosen experts, h] to sort tokens by expert and back, where they are not as fitted."""
    fuses_permutation: bool = True
    """Whether tokens are sorted by Transformer Engine's kernels, and not by an operation at a time."""
    fuses_router: bool = True
    """Whether experts are chosen, and scores summed up, by Transformer Engine's kernels, which do not stream."""
    waits_for_counts: int = 1
    """How often the host waits to know how many tokens each expert has: never where they are padded to a capacity."""


OWN_EXCHANGE = TokenExchange()


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
    latent_copies: ForwardBackward
    """Accesses of queries, keys and values of latent attention, to join the parts of queries and keys, and to take
    values out of their projection.
    """
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
    """Kernels of a layer that take the host as long as one of its collectives."""
    optimizer_launches: float
    """Kernels that the host starts per parameter tensor in the optimizer's step."""
    loss: ForwardBackward
    """Bytes per logit of the cross entropy, the matrix product aside."""
    gelu: ForwardBackward
    """Accesses of [tokens, ffn] for the exact GeLU."""
    norm_of_any_width: ForwardBackward | None = None
    """What `norm` says, of widths for which there is no kernel; None where all widths are alike."""
    own_norm: ForwardBackward | None = None
    """The same where such norms are kernels of our own (`normalizes_in_kernels`)."""
    exchange: ForwardBackward = NOTHING
    """Kernels of a layer that would take the host as long as what attention has it do more where ranks share a
    sequence: gathering its keys and values, and attending piece by piece.
    """
    ring: ForwardBackward = NOTHING
    """The same of each round where they go round, one for each of these ranks."""
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
    after_transfer: float = 0.0
    """Seconds in which the GPU has nothing to do after a transfer between stages. None where the host does not wait
    for it, as with this project's runtime.
    """
    overlaps_tensor_parallel: bool = False
    """Whether a layer's matrix products go in pieces with the collective before or after them, as with Transformer
    Engine's user buffers (`parallelism.tp_comm_overlap`).
    """
    token_exchange: TokenExchange = OWN_EXCHANGE
    """Of layers with experts."""
    own_experts: bool = True
    """Whether experts are computed as by this project's runtime; otherwise as by megatron-core itself."""
    replayed: Literal["nothing", "attention", "layers"] = "nothing"
    """What of a layer is in CUDA graphs with the collectives between them, so that the host does not start its kernels:
    nothing but a job's own graphs, all but what is done for experts, or all.
    """
    attention_rate: float = 1.0
    """How many times as fast as the device's efficiencies say attention is."""
    sums_with_input_gradient: bool = False
    """Whether the gradient of a column-parallel layer's input is among these, summed as it is multiplied: the runtime's
    way. Otherwise it is summed behind the gradient of the weight, as by megatron-core itself.
    """


TORCH = Kernels(layers="torch", fused_attention=False, **values("kernels"), **values("torch_kernels"))
"""torch's operations one by one, and its scaled dot product attention."""

TRANSFORMER_ENGINE = Kernels(
    layers="transformer_engine",
    fused_attention=True,
    rings=True,
    returns_together=True,
    **values("kernels"),
    **values("transformer_engine_kernels"),
)
"""Fused norms and rotation, cuDNN's attention."""

OVERLAPPING = replace(
    TRANSFORMER_ENGINE, overlaps_tensor_parallel=True, sums_with_input_gradient=True, **values("overlapping_kernels")
)
"""The same with user buffers as the runtime sets them up."""


def kernels_of(job: JobSpec, layers: Layers) -> Kernels:
    """The backend that the job's `runtime.layers` resolves to, and what the job has it overlap."""
    kernels, fitted = TORCH, fitted_constants()
    if layers != "torch":
        kernels = OVERLAPPING if overlaps_tensor_parallel(job, layers) else TRANSFORMER_ENGINE
    if not adds_in_products(job):
        in_16_bits = job.precision.dtype != "fp32" and not job.precision.grad_reduce_in_fp32
        behind = fitted.accumulation
        bytes_ = behind.behind_products_in_16_bits if in_16_bits else behind.behind_products
        kernels = replace(kernels, accumulation=bytes_)
    if job.model.has_experts:
        engines = layers == "transformer_engine"
        exchange = kernels.token_exchange._replace(
            fuses_permutation=engines and can_fuse_permutation(job), fuses_router=engines and can_fuse_router(job)
        )
        kernels = replace(kernels, token_exchange=exchange)
    is_flash = job.runtime.attention_backend == "flash"
    return replace(kernels, attention_rate=fitted.attention.flash_attention_speedup) if is_flash else kernels
