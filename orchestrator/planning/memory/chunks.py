"""What a pass keeps: a model chunk over one micro-batch, in bytes of one rank."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.models.blocks.base import RankShape
from orchestrator.models.blocks.mlp import memory as mlp
from orchestrator.planning.encoder_decoder import half_job, halves_of_stage
from orchestrator.planning.layout.topology import layers_of_stages
from orchestrator.planning.memory.experts import backward_of_experts, inputs_of_experts, saved_by_experts
from orchestrator.planning.memory.fp8 import kept_less
from orchestrator.planning.memory.hybrid import kept_by_kind
from orchestrator.planning.memory.layer import backward_of_layer, rank_shape, saved_by_layer
from orchestrator.planning.memory.t5 import kept_beyond
from orchestrator.planning.parameters import layers_with_experts
from orchestrator.spec.encoder_decoder import HALVES
from orchestrator.spec.hybrid import MLP, layer_pattern
from orchestrator.spec.job import JobSpec
from orchestrator.spec.layout.stages import layers_of_chunks
from orchestrator.spec.sections.runtime import Layers


@dataclass(frozen=True)
class Activations:
    """Bytes of one pass: a model chunk over one micro-batch."""

    saved: int
    """What it keeps until its backward pass."""
    backward: int
    """The most that the backward pass of its last layers takes beyond that."""
    images: int = 0
    """Of what it keeps, what encoding images keeps, until the very end of its backward pass."""


def chunks_of_stages(job: JobSpec, sizes: RankShape, layers: Layers) -> list[tuple[Activations, ...]]:
    """[stage][chunk]: what each keeps."""
    if job.model.family.is_encoder_decoder:
        return _of_halves(job, layers)
    if job.model.family.is_hybrid:
        return _of_hybrid(job, sizes, layers)
    in_stages = [
        tuple(zip(*chunks, strict=True))
        for chunks in zip(
            layers_of_chunks(job.model.num_layers, job.parallelism), layers_with_experts(job), strict=True
        )
    ]
    alike = {held: of_layers(job, sizes, layers, *held) for held in {each for stage in in_stages for each in stage}}
    return [tuple(alike[held] for held in stage) for stage in in_stages]


def of_layers(job: JobSpec, sizes: RankShape, layers: Layers, count: int, routed: int) -> Activations:
    """Of one model chunk of `count` layers, `routed` of them with experts, over one micro-batch: its transformer layers
    only.
    """
    runtime = job.runtime
    selective = "core_attn" in runtime.recomputed_modules
    of_mlp = 0 if "mlp" in runtime.recomputed_modules else mlp.inner(job.model, sizes)
    dense = largest = saved_by_layer(job, sizes, layers, selective=selective) - kept_less(job, sizes, of_mlp)
    whole, backward = count * dense, backward_of_layer(job, sizes, layers)
    if routed:
        experts = saved_by_experts(job, sizes, layers)
        largest = saved_by_layer(job, sizes, layers, selective=selective, experts=experts)
        of_experts = 0 if "moe" in runtime.recomputed_modules else inputs_of_experts(job, sizes, layers)
        largest -= kept_less(job, sizes, of_experts)
        whole = (count - routed) * dense + routed * largest
        backward = max(backward if routed < count else 0, backward_of_experts(job, sizes, layers))
    if runtime.recompute_granularity != "full":
        offloaded = min(max((runtime.cpu_offloading_num_layers or 0) - 1, 0), count)  # one of them is on its way
        return Activations(whole * (count - offloaded) // max(count, 1), backward)
    group = min(runtime.recompute_num_layers or 1, count)
    stream = sizes.stream // (job.parallelism.tensor_model_parallel_size if runtime.distribute_saved_activations else 1)
    if runtime.recompute_method == "block":
        # The first layers are recomputed. A backward pass is at its fullest with the last, which is mostly kept.
        saved = group * stream + whole * (count - group) // max(count, 1)
        return Activations(saved, backward + (largest if group == count else 0))
    groups = -(-count // max(group, 1))  # a job that is not legal may have chunks without layers
    return Activations(groups * stream, group * largest + backward)


def _of_hybrid(job: JobSpec, sizes: RankShape, layers: Layers) -> list[tuple[Activations, ...]]:
    kept, pattern = kept_by_kind(job, sizes, layers), layer_pattern(job.model)
    found = []
    for chunks in layers_of_stages(job.model, job.parallelism):
        of_chunks = [[kept.get(kind, kept[MLP]) for kind in pattern[chunk.first : chunk.last + 1]] for chunk in chunks]
        found.append(
            tuple(
                Activations(sum(each.saved for each in held), max((each.backward for each in held), default=0))
                for held in of_chunks
            )
        )
    return found


def _of_halves(job: JobSpec, layers: Layers) -> list[tuple[Activations, ...]]:
    """Of each stage of a T5, which is one chunk with layers of the encoder, of the decoder, or of both."""
    alone = {half: half_job(job, half) for half in HALVES}
    sizes = {half: rank_shape(alone[half]) for half in HALVES}
    recomputed = job.runtime.recompute_granularity == "full"
    found: list[tuple[Activations, ...]] = []
    for stage in range(job.parallelism.pipeline_model_parallel_size):
        saved = backward = 0
        for half, count in halves_of_stage(job, stage).items():
            each, more = of_layers(alone[half], sizes[half], layers, count, 0), kept_beyond(job, half, sizes)
            saved += each.saved + (0 if recomputed else count * more)
            backward = max(backward, each.backward + (more if recomputed else 0))
        found.append((Activations(saved, backward),))
    return found
