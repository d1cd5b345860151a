"""A decoder that sees images of any size, and whose positions are in time, by row and by column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from megatron.core.transformer.transformer_config import TransformerConfig

from orchestrator.planning.vocabulary import Vocabulary
from orchestrator.runtime.families.vision import VisionLanguageModel, chunk_of
from orchestrator.runtime.layers.attention.multimodal_rotation import MultimodalRotation
from orchestrator.runtime.layers.config import LayerConfig
from orchestrator.runtime.layers.images.patch_order import token_positions
from orchestrator.runtime.processes.process_groups import Ranks
from orchestrator.runtime.steps.native_resolution import NextTokenAfterImagesOfAnySize
from orchestrator.spec.job import JobSpec
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.sections.runtime import Layers


class NativeResolutionModel(VisionLanguageModel):
    """A GPT whose first stage has an encoder of images of any size."""

    rotary_pos_emb: Any
    """As megatron-core's model calls it."""

    def __init__(self, config: TransformerConfig, spec: Any, *, model: ModelSpec, **options: Any) -> None:
        super().__init__(config, spec, model=model, **options)
        self.merge_size = model.image_encoder.merge_size
        self.position_embedding_type, self.mrope_section = "mrope", list(model.mrope_sections)
        self.rotary_pos_emb = MultimodalRotation(self.rotary_pos_emb.inv_freq)

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        *arguments: Any,
        images: torch.Tensor | Sequence[torch.Tensor] | None = None,
        image_mask: torch.Tensor | None = None,
        grids: torch.Tensor | None = None,
        **options: Any,
    ) -> torch.Tensor:
        """As that of `VisionLanguageModel`, of `images` whose grids of patches are `grids` [b, n, 2], both as
        `NativeEncoder` takes them. Positions [b, s] are those of text: with images they follow from the grids, on every
        stage.
        """
        positions = position_ids.expand(3, -1, -1)
        if grids is not None:
            assert image_mask is not None, "images come with the places where they stand"
            sides = grids.to(image_mask.device, non_blocking=True)
            positions = token_positions(image_mask, sides, self.merge_size)
            if self.pre_process and images is not None:
                embedded = self.embedding(input_ids=input_ids, position_ids=position_ids)
                options["decoder_input"] = self.with_images(embedded, images, image_mask, grids)
        output: torch.Tensor = super().forward(input_ids, positions, attention_mask, *arguments, **options)
        return output

    def with_images(
        self,
        embedded: torch.Tensor,
        images: torch.Tensor | Sequence[torch.Tensor],
        image_mask: torch.Tensor,
        grids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `VisionLanguageModel`."""
        assert grids is not None, "images of any size come with their grids"
        tokens = (grids // self.merge_size).prod(dim=-1).sum(dim=1)
        first = (tokens.cumsum(dim=0) - tokens).to(embedded.device, non_blocking=True)
        return self.with_patches(embedded, self.vision(images, grids), image_mask, first)


def build_chunk(
    job: JobSpec, config: LayerConfig, layers: Layers, vocabulary: Vocabulary, ranks: Ranks, index: int
) -> NativeResolutionModel:
    """Model chunk `index` of this rank."""
    return chunk_of(NativeResolutionModel, job, config, layers, vocabulary, ranks, index)


def train_step(job: JobSpec) -> NextTokenAfterImagesOfAnySize:
    """Cross entropy of the next token, of which some follow images."""
    return NextTokenAfterImagesOfAnySize(job.model.image_encoder)
