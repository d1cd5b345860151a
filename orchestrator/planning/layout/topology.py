"""Which process holds what: rank → (tp, cp, ep, dp, pp), its node, the layers of its stage, and the groups it is in.

Ranks are laid out in megatron-core's default order tp-cp-ep-dp-pp, tp fastest.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from orchestrator.planning.layout.groups import GroupKind, GroupPlacement, group_kinds
from orchestrator.spec.encoder_decoder import HALVES, Half, layers_of_stage, stages_of
from orchestrator.spec.job import JobSpec
from orchestrator.spec.layout.parallelism import ParallelismSpec
from orchestrator.spec.layout.stages import layers_of_chunks
from orchestrator.spec.model import ModelSpec


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
    """Consecutive transformer layers, counted from 0; `last` is included, and is `first` - 1 where there are none."""

    first: int
    last: int
    half: Half | None = None
    """Of which half of a T5, whose halves count their layers each by itself."""

    def __str__(self) -> str:
        """`4-7`, `4`, `encoder 0-5`, or `none`."""
        if self.last < self.first:
            return "none"
        layers = f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"
        return f"{self.half} {layers}" if self.half else layers

    def to_dict(self) -> dict[str, Any]:
        """Plain data; `half` where there are halves."""
        return {key: value for key, value in self._asdict().items() if value is not None}


class Topology(NamedTuple):
    """Sizes of the groups, every rank, and the layers of every stage."""

    world_size: int
    nodes: int
    tensor_model_parallel_size: int
    pipeline_model_parallel_size: int
    virtual_pipeline_model_parallel_size: int | None
    context_parallel_size: int
    expert_model_parallel_size: int
    expert_tensor_parallel_size: int
    data_parallel_size: int
    ranks: tuple[Rank, ...]
    stages: tuple[tuple[LayerRange, ...], ...]
    """For each pipeline stage, the layers of each of its model chunks; of a T5, those of encoder and decoder."""

    @property
    def processes_per_node(self) -> int:
        """Processes on each machine."""
        return self.world_size // self.nodes

    @property
    def groups(self) -> dict[str, GroupKind]:
        """The groups of each kind: tp, cp, ep, dp, pp and what `group_kinds` names."""
        return group_kinds(
            tp=self.tensor_model_parallel_size,
            cp=self.context_parallel_size,
            ep=self.expert_model_parallel_size,
            etp=self.expert_tensor_parallel_size,
            dp=self.data_parallel_size,
            pp=self.pipeline_model_parallel_size,
            processes_per_node=self.processes_per_node,
        )

    @property
    def replicas_with_all_experts(self) -> int:
        """How many replicas share out the experts among them."""
        over = self.expert_tensor_parallel_size * self.expert_model_parallel_size
        return max(over // (self.tensor_model_parallel_size * self.context_parallel_size), 1)

    @property
    def tensor_parallel_crosses_nodes(self) -> bool:
        """Whether some tensor-parallel group spans two machines, which is slow."""
        return self.groups["tp"].crossing().crossing > 0

    def to_dict(self) -> dict[str, Any]:
        """Plain data: sizes, groups (without their ranks), stages and every rank."""
        return {
            **{key: value for key, value in self._asdict().items() if key not in ("ranks", "stages")},
            "groups": {name: kind.to_dict() for name, kind in self.groups.items()},
            "ranks": [rank._asdict() for rank in self.ranks],
            "stages": [
                {"pp": stage, "chunks": [chunk.to_dict() for chunk in chunks]}
                for stage, chunks in enumerate(self.stages)
            ],
        }


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
        expert_tensor_parallel_size=degrees.expert_tensor_parallel,
        data_parallel_size=job.data_parallel_size,
        ranks=tuple(rank_of(job, rank) for rank in range(job.world_size)),
        stages=layers_of_stages(job.model, degrees),
    )


def crossing(layout: Topology) -> dict[str, GroupPlacement]:
    """How the groups of each kind lie on the nodes, without those kinds whose groups have one rank."""
    return {name: kind.crossing() for name, kind in layout.groups.items() if kind.size > 1}


def rank_of(job: JobSpec, rank: int) -> Rank:
    """The coordinates of one rank. Experts are spread over all ranks of a stage, each over ETP ranks."""
    degrees = job.parallelism
    outer, tp = divmod(rank, degrees.tensor_model_parallel_size)
    ep = rank // degrees.expert_tensor_parallel % degrees.expert_model_parallel_size
    outer, cp = divmod(outer, degrees.context_parallel_size)
    pp, dp = divmod(outer, job.data_parallel_size)
    node, local_rank = divmod(rank, job.processes_per_node)
    return Rank(rank, tp, cp, ep, dp, pp, node, local_rank)


def layers_of_stages(model: ModelSpec, degrees: ParallelismSpec) -> tuple[tuple[LayerRange, ...], ...]:
    """For each pipeline stage the layers of its chunks: chunk v of stage p follows chunk v of stage p - 1."""
    if model.family.is_encoder_decoder:
        return tuple(_halves_of_stage(stage, model, degrees) for stage in range(degrees.pipeline_model_parallel_size))
    counts = layers_of_chunks(model.num_layers, degrees)
    ranges: list[list[LayerRange]] = [[] for _ in counts]
    first = 0
    for chunk in range(degrees.num_model_chunks):
        for stage, held in enumerate(counts):
            ranges[stage].append(LayerRange(first, first + held[chunk] - 1))
            first += held[chunk]
    return tuple(tuple(each) for each in ranges)


def _halves_of_stage(stage: int, model: ModelSpec, degrees: ParallelismSpec) -> tuple[LayerRange, ...]:
    """The layers of a T5's stage: of its encoder, of its decoder, or of both where there is one stage."""
    ranges = []
    for half in HALVES:
        held, stages = layers_of_stage(half, stage, model, degrees), stages_of(half, degrees)
        if stage in stages:
            first = stages.index(stage) * held
            ranges.append(LayerRange(first, first + held - 1, half))
    return tuple(ranges)
