"""The least seconds of a step's parts on a device: every kernel as fast as a large one of its kind, every byte moved
once, all communication hidden, and the GPU never idle.
"""

from __future__ import annotations

from orchestrator.models.blocks.base import ForwardBackward
from orchestrator.planning.hardware.devices import Device
from orchestrator.planning.time.kernels.accesses import Kernels, TokenExchange
from orchestrator.planning.time.step import estimate_with
from orchestrator.spec.job import JobSpec

PARTS = ("gemm", "attention", "memory_bound", "loss", "optimizer")
"""What a step cannot do without."""

IDEAL = Kernels(
    layers="transformer_engine",
    fused_attention=True,
    norm=ForwardBackward(2, 3),
    rope=ForwardBackward(2, 2),
    projection=ForwardBackward(2, 2),
    gelu=ForwardBackward(2, 3),
    latent_copies=ForwardBackward(2, 2),
    attention_layout=ForwardBackward(0, 0),
    joins=0,
    dropout=ForwardBackward(0.5, 1.5),
    score_dropout=ForwardBackward(0, 0),
    bias=ForwardBackward(0, 0),
    accumulation=2,  # fp32 instead of bf16 is written by the product that computes it
    # Norm 4; Adam reads the gradient, reads and writes the weight and two moments in fp32, and writes bf16: 30.
    optimizer=34,
    launches=ForwardBackward(0, 0),
    rings=True,
    collective=0,
    optimizer_launches=0,
    loss=ForwardBackward(2, 4),  # logits are read, and read and replaced by their gradient, in bf16
    overlaps_tensor_parallel=True,
    token_exchange=TokenExchange(moved=ForwardBackward(2, 2), fuses_router=False),
)
"""Kernels that read and write nothing twice."""


def roofline(job: JobSpec, padded_vocab: int, device: Device) -> dict[str, float]:
    """Seconds by part (PARTS) on the busiest pipeline stage, at what the device's efficiencies say is reached of its
    datasheet. Nothing is recomputed.
    """
    parts = estimate_with(job, padded_vocab, IDEAL, device).parts
    return {part: parts[part] for part in PARTS}
