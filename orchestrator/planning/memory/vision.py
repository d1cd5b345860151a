"""What encoding images keeps, in bytes of one rank of the first stage and one micro-batch."""

from __future__ import annotations

from orchestrator.models.blocks.base import norm_statistics
from orchestrator.models.layers import layers as layers_of
from orchestrator.planning.memory.chunks import Activations, of_layers
from orchestrator.planning.memory.layer import rank_shape, saved_by_layer
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
    own, tp = encoder_job(job, vision), job.parallelism.tensor_model_parallel_size
    sizes, hidden, layer = rank_shape(own), job.model.hidden_size, layers_of(own.model)[0]
    numbers = own.batch.micro_batch_size * CHANNELS * vision.image_size**2
    _, inner, _ = projector_widths(job.model)
    tokens = own.batch.micro_batch_size * vision.tokens_per_image
    given, between = tokens * hidden * sizes.width, tokens * inner * sizes.width
    # The images themselves, what the last layer gives, and the activation's input and output.
    kept = numbers + sizes.stream + 2 * between // tp
    projector = given + between // tp + hidden * inner // tp * sizes.width
    if vision.freeze:
        return Activations(kept, max(projector, saved_by_layer(own, layer, sizes, layers, selective=False)))
    # In the activations' format, for the matrix of patches; and the input of the norm before, or behind, the layers.
    kept += numbers * sizes.width + sizes.stream + sizes.own_tokens * norm_statistics(own.model)
    encoder = of_layers(own, sizes, layers, ((layer, vision.num_layers),))
    return Activations(kept + encoder.saved, max(projector, encoder.backward))
