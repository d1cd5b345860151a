"""What a pass keeps: a model chunk over one micro-batch, in bytes of one rank."""

from __future__ import annotations

from typing import NamedTuple

from orchestrator.models.blocks.base import RankShape
from orchestrator.models.layers import layers as layers_of
from orchestrator.planning.encoder_decoder import half_job, halves_of_stage
from orchestrator.planning.layout.chunk_layers import Kinds, kinds_of_stages
from orchestrator.planning.memory.layer_activations import (
    backward_of_layer,
    core_kernels,
    linear_inputs,
    rank_shape,
    saved_by_layer,
)
from orchestrator.planning.memory.quantization import saved_by_quantization
from orchestrator.planning.memory.t5 import kept_beyond
from orchestrator.spec.encoder_decoder import HALVES
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.runtime import Layers


class Activations(NamedTuple):
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
    in_stages = kinds_of_stages(job)
    alike = {kinds: of_layers(job, sizes, layers, kinds) for kinds in {each for chunks in in_stages for each in chunks}}
    return [tuple(alike[kinds] for kinds in chunks) for chunks in in_stages]


def of_layers(job: JobSpec, sizes: RankShape, layers: Layers, kinds: Kinds) -> Activations:
    """Of the layers of one model chunk, over one micro-batch."""
    runtime = job.runtime
    kernels = core_kernels(job, layers, is_recomputed="core_attn" in runtime.recomputed_modules)
    kept = [
        saved_by_layer(job, layer, sizes, kernels)
        - saved_by_quantization(job, layer, sizes, linear_inputs(job, layer, sizes, kernels))
        for layer, _ in kinds
    ]
    count, largest = sum(count for _, count in kinds), max(kept, default=0)
    whole = sum(each * count for each, (_, count) in zip(kept, kinds, strict=True))
    behind = kernels._replace(is_recomputed=runtime.recompute_granularity == "selective")
    backward = max((backward_of_layer(job, layer, sizes, behind) for layer, _ in kinds), default=0)
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


def _of_halves(job: JobSpec, layers: Layers) -> list[tuple[Activations, ...]]:
    """Of each stage of a T5, which is one chunk with layers of the encoder, of the decoder, or of both."""
    alone = {half: half_job(job, half) for half in HALVES}
    sizes = {half: rank_shape(alone[half]) for half in HALVES}
    recomputed = job.runtime.recompute_granularity == "full"
    found: list[tuple[Activations, ...]] = []
    for stage in range(job.parallelism.pipeline_model_parallel_size):
        saved = backward = 0
        for half, count in halves_of_stage(job, stage).items():
            kinds = ((layers_of(alone[half].model)[0], count),)
            each, more = of_layers(alone[half], sizes[half], layers, kinds), kept_beyond(job, half, sizes)
            saved += each.saved + (0 if recomputed else count * more)
            backward = max(backward, each.backward + (more if recomputed else 0))
        found.append((Activations(saved, backward),))
    return found
