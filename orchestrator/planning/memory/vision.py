"""What encoding images keeps, in bytes of one rank of the first stage and one micro-batch."""

from __future__ import annotations

from orchestrator.models.blocks.base import FP32, RankShape, norm_statistics
from orchestrator.models.layers import layers as layers_of
from orchestrator.planning.memory.chunk_activations import Activations, of_layers
from orchestrator.planning.memory.layer_activations import core_kernels, rank_shape, saved_by_layer
from orchestrator.planning.vision import CHANNELS, encoder_job, projector_widths
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.runtime import Layers
from orchestrator.spec.vision import VisionSpec


def with_images(job: JobSpec, layers: Layers, stages: list[tuple[Activations, ...]]) -> list[tuple[Activations, ...]]:
    """[stage][chunk]: what each keeps, of which the first encodes images where the job has some."""
    if not job.model.has_vision:
        return stages
    vision = job.model.image_encoder
    (first, *others), *rest = stages
    images = _of_images(job, vision, layers)
    # Their backward pass comes last: what the chunk's layers kept is free then.
    backward = max(first.backward, images.backward - first.saved)
    return [(Activations(first.saved + images.saved, backward, images.saved), *others), *rest]


def _of_images(job: JobSpec, vision: VisionSpec, layers: Layers) -> Activations:
    """A frozen encoder keeps nothing, but makes a layer's tensors in the forward pass, when the decoder's are not there
    yet.
    """
    own = encoder_job(job, vision)
    if vision.kind.keeps_shape:  # torch attends, in either's layers
        layers = "torch"
    sizes, layer = rank_shape(own), layers_of(own.model)[0]
    numbers = own.batch.micro_batch_size * CHANNELS * vision.image_size**2
    projector = (_pooled if vision.kind.pools else _matrices)(job, own, vision, sizes)
    kept = numbers + projector.saved  # the images themselves
    if vision.freeze:
        made = saved_by_layer(own, layer, sizes, core_kernels(own, layers, is_recomputed=False))
        return Activations(kept, max(projector.backward, made))
    # In the activations' format, for the matrix of patches; and the input of the norm before the layers or behind them.
    kept += numbers * sizes.width + sizes.stream + sizes.own_tokens * norm_statistics(own.model)
    encoder = of_layers(own, sizes, layers, ((layer, vision.num_layers),))
    return Activations(kept + encoder.saved, max(projector.backward, encoder.backward))


def _matrices(job: JobSpec, own: JobSpec, vision: VisionSpec, sizes: RankShape) -> Activations:
    """Of two matrices for each token: what the last layer gives, and the activation's input and output."""
    tp, (_, inner, hidden) = job.parallelism.tensor_model_parallel_size, projector_widths(job.model)
    tokens = own.batch.micro_batch_size * vision.tokens_per_image
    given, between = tokens * hidden * sizes.width, tokens * inner * sizes.width
    return Activations(sizes.stream + 2 * between // tp, given + between // tp + hidden * inner // tp * sizes.width)


def _pooled(job: JobSpec, own: JobSpec, vision: VisionSpec, sizes: RankShape) -> Activations:
    """Of a norm, in fp32, and a matrix for means of patches: what both read, and the norm's statistics."""
    tokens, hidden, width = own.batch.micro_batch_size * vision.tokens_per_image, job.model.hidden_size, sizes.width
    normed = tokens * vision.hidden_size
    gradients = tokens * hidden * width + 2 * normed * FP32 + hidden * vision.hidden_size * width
    return Activations(normed * (FP32 + width) + tokens * FP32, gradients)
