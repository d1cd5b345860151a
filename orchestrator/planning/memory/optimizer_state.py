"""Where the optimizer's state of a rank is: on its GPU, or in the memory of the host."""

from __future__ import annotations

from typing import NamedTuple

from orchestrator.models.blocks.base import FP32
from orchestrator.planning.offloaded_state import BLOCK_ELEMENTS, BLOCKS_ON_DEVICE
from orchestrator.spec.job import JobSpec


class StateBytes(NamedTuple):
    """Of one rank, with the fp32 copies of 16-bit weights."""

    on_gpu: int
    """At all times: with what state on the host is brought to for an update."""
    on_host: int


def optimizer_state(job: JobSpec, trained: int, experts: int) -> StateBytes:
    """The state of so many parameters that are trained on a rank. `experts`: of `trained` those of experts, which have
    an optimizer of their own.
    """
    width = bytes_of_state(job)
    whole, fraction = shard(job, trained, experts, width), job.optimizer.offload_fraction
    if not fraction:
        return StateBytes(whole, 0)
    on_host = round(whole * fraction)
    parts = shard(job, trained - experts, 0, 1), shard(job, experts, experts, 1)
    blocks = sum(BLOCKS_ON_DEVICE * min(BLOCK_ELEMENTS, round(part * fraction)) * width for part in parts)
    return StateBytes(whole - on_host + min(blocks, on_host), on_host)


def bytes_of_state(job: JobSpec) -> int:
    """Per parameter: fp32 weights are their own main copy."""
    return (FP32 if job.precision.dtype != "fp32" else 0) + job.optimizer.state_bytes


def shard(job: JobSpec, count: int, experts: int, width: int) -> int:
    """Bytes of `width` per parameter over this rank's part of the parameters. The data- and context-parallel ranks of a
    stage share them out; of experts those ranks that hold the same ones.
    """
    if not job.parallelism.use_distributed_optimizer:
        return count * width
    copies = job.sharded_copies
    held = -(-(count - experts) * width // (job.weight_replicas // copies))
    return held + (-(-experts * width // max(job.expert_replicas // copies, 1)) if experts else 0)
