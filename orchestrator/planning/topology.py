"""Which process holds what: rank → (tp, cp, ep, dp, pp), its node, and the layers of its stage.

Ranks are laid out in megatron-core's default order tp-cp-ep-dp-pp, tp fastest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from orchestrator.spec.job import JobSpec
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.parallelism import ParallelismSpec


class Rank(NamedTuple):
    """One process."""

    rank: int
    tp: int
    cp: int
    ep: int
    dp: int
    pp: int
    node: int
    local_rank: int


class LayerRange(NamedTuple):
    """Consecutive transformer layers, counted from 0; `last` is included."""

    first: int
    last: int


@dataclass(frozen=True)
class Topology:
    """Sizes of the groups, every rank, and the layers of every stage."""

    world_size: int
    nodes: int
    tensor_model_parallel_size: int
    pipeline_model_parallel_size: int
    virtual_pipeline_model_parallel_size: int | None
    context_parallel_size: int
    expert_model_parallel_size: int
    data_parallel_size: int
    ranks: tuple[Rank, ...]
    stages: tuple[tuple[LayerRange, ...], ...]
    """For each pipeline stage, the layers of each of its model chunks."""

    @property
    def tensor_parallel_crosses_nodes(self) -> bool:
        """Whether some tensor-parallel group spans two machines, which is slow."""
        size = self.tensor_model_parallel_size
        return any(
            self.ranks[first].node != self.ranks[first + size - 1].node for first in range(0, self.world_size, size)
        )


def topology(job: JobSpec) -> Topology:
    """The topology of a job."""
    degrees = job.parallelism
    return Topology(
        world_size=job.world_size,
        nodes=job.launch.nodes,
        tensor_model_parallel_size=degrees.tensor_model_parallel_size,
        pipeline_model_parallel_size=degrees.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=degrees.virtual_pipeline_model_parallel_size,
        context_parallel_size=degrees.context_parallel_size,
        expert_model_parallel_size=degrees.expert_model_parallel_size,
        data_parallel_size=job.data_parallel_size,
        ranks=tuple(rank_of(job, rank) for rank in range(job.world_size)),
        stages=layers_of_stages(job.model, degrees),
    )


def rank_of(job: JobSpec, rank: int) -> Rank:
    """The coordinates of one rank. Experts are spread over the context- and data-parallel ranks."""
    degrees = job.parallelism
    outer, tp = divmod(rank, degrees.tensor_model_parallel_size)
    ep = outer % degrees.expert_model_parallel_size
    outer, cp = divmod(outer, degrees.context_parallel_size)
    pp, dp = divmod(outer, job.data_parallel_size)
    node, local_rank = divmod(rank, job.processes_per_node)
    return Rank(rank, tp, cp, ep, dp, pp, node, local_rank)


def layers_of_stages(model: ModelSpec, degrees: ParallelismSpec) -> tuple[tuple[LayerRange, ...], ...]:
    """For each pipeline stage the layers of its chunks: chunk v of stage p follows chunk v of stage p - 1."""
    pp, chunks = degrees.pipeline_model_parallel_size, degrees.num_model_chunks
    size = model.num_layers // (pp * chunks)
    return tuple(
        tuple(LayerRange(first, first + size - 1) for first in ((chunk * pp + stage) * size for chunk in range(chunks)))
        for stage in range(pp)
    )
