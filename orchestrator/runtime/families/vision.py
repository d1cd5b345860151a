"""A decoder that sees: a GPT with embeddings of images among those of its tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias, TypeVar

import torch
from megatron.core.tensor_parallel import copy_to_tensor_model_parallel_region

from orchestrator.models.image_encoders import ImageEncoderName
from orchestrator.planning.vocabulary import Vocabulary
from orchestrator.runtime.families.base import virtual_stage
from orchestrator.runtime.families.gpt import GPT, decoder
from orchestrator.runtime.layers.config import LayerConfig
from orchestrator.runtime.layers.images.encoder import ImageEncoder
from orchestrator.runtime.layers.images.masks import image_masks
from orchestrator.runtime.layers.images.native_encoder import NativeEncoder
from orchestrator.runtime.layers.images.patch_placement import place
from orchestrator.runtime.layers.images.pooled_encoder import PooledImageEncoder
from orchestrator.runtime.layers.layer_backend import block_spec_function
from orchestrator.runtime.processes.process_groups import Ranks, get_tensor_model_parallel_rank
from orchestrator.runtime.steps.vision import NextTokenAfterImages
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.runtime import Layers

_Encoder: TypeAlias = ImageEncoder | PooledImageEncoder | NativeEncoder
_ENCODERS: Final[Mapping[ImageEncoderName, type[_Encoder]]] = {
    "llava": ImageEncoder,
    "gemma3": PooledImageEncoder,
    "qwen2.5": NativeEncoder,
}


class VisionLanguageModel(GPT):
    """A GPT whose first stage has an encoder of images."""

    def set_image_encoder(self, encoder: _Encoder) -> None:
        """Give the chunk that embeds tokens its encoder, behind the constructor, which all decoders share."""
        self.vision = encoder

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        *arguments: Any,
        images: torch.Tensor | None = None,
        image_mask: torch.Tensor | None = None,
        **options: Any,
    ) -> torch.Tensor:
        """As a GPT's, with embeddings of images' patches in place of those of the tokens [b, s] where `image_mask`
        [b, s] is not 0: the patches of `images` [b, n, 3, size, size] in their order. Without images it is a GPT's.
        Where the tokens of an image attend to each other, every stage takes `image_mask`.
        """
        if self.pre_process and images is not None:
            assert image_mask is not None, "images come with the places where they stand"
            embedded = self.embedding(input_ids=input_ids, position_ids=position_ids)
            options["decoder_input"] = self.with_images(embedded, images, image_mask)
        if image_mask is not None:
            attention_mask = self.attention_masks(image_mask)
        output: torch.Tensor = super().forward(input_ids, position_ids, attention_mask, *arguments, **options)
        return output

    def attention_masks(self, image_mask: torch.Tensor) -> torch.Tensor | None:
        """What attention takes for tokens [b, s] of which `image_mask` says which are images'; None where each token
        attends to those before it alone."""
        if not self.config.masks_images:
            return None
        window = self.config.window_size
        return image_masks(image_mask, None if window is None else window[0] + 1, self.config.params_dtype)

    def with_images(self, embedded: torch.Tensor, images: torch.Tensor, image_mask: torch.Tensor) -> torch.Tensor:
        """Embeddings of tokens, [s, b, h], s over TP under SP, with those of images among them; see `forward`."""
        seen = self.vision(images)  # [patches, b, h]
        first = torch.arange(seen.size(1), device=seen.device)
        return self.with_patches(embedded, seen.flatten(0, 1), image_mask, first, apart=seen.size(1))

    def with_patches(
        self,
        embedded: torch.Tensor,
        seen: torch.Tensor,
        image_mask: torch.Tensor,
        first: torch.Tensor,
        *,
        apart: int = 1,
    ) -> torch.Tensor:
        """The same, of embeddings of patches [patches, h], of which those of each row begin at its `first` [b], `apart`
        from each other."""
        is_patch = (image_mask > 0).t().contiguous()  # what is sent to the next stage is laid out as it is
        which = (first + apart * (is_patch.cumsum(dim=0) - 1)).clamp(min=0, max=seen.size(0) - 1)
        if self.config.sequence_parallel:
            # Of each rank's part of the sequence the gradient is its own, and the encoder's is that of the whole.
            seen = copy_to_tensor_model_parallel_region(seen)
            start = get_tensor_model_parallel_rank() * embedded.size(0)
            is_patch, which = (each[start : start + embedded.size(0)] for each in (is_patch, which))
        return place(embedded, seen, is_patch, which)


_Model = TypeVar("_Model", bound=VisionLanguageModel)


def is_of_images(name: str) -> bool:
    """Whether a weight is of what encodes images."""
    return name.startswith("vision.")


def is_zero_centered(name: str) -> bool:
    """Whether a weight of what encodes images is of a norm that multiplies by 1 + weight."""
    return name.startswith("vision.projector.norm.")


def build_chunk(
    job: JobSpec, config: LayerConfig, layers: Layers, vocabulary: Vocabulary, ranks: Ranks, index: int
) -> VisionLanguageModel:
    """Model chunk `index` of this rank."""
    return chunk_of(VisionLanguageModel, job, config, layers, vocabulary, ranks, index)


def chunk_of(
    model: type[_Model],
    job: JobSpec,
    config: LayerConfig,
    layers: Layers,
    vocabulary: Vocabulary,
    ranks: Ranks,
    index: int,
) -> _Model:
    """The same, of a model of this class."""
    block = block_spec_function(layers)(config, virtual_stage(job, index))
    chunk = decoder(job, config, block, vocabulary, ranks, index, model)
    if chunk.pre_process:
        vision = job.model.image_encoder
        chunk.set_image_encoder(_ENCODERS[vision.type](vision, config, layers))
    return chunk


def train_step(job: JobSpec) -> NextTokenAfterImages:
    """Cross entropy of the next token, of which some follow images."""
    return NextTokenAfterImages(job.model.image_encoder)
