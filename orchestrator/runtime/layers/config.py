"""The configuration that layers are built from, and what it says of each."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple

from megatron.core.transformer.transformer_block import get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

from orchestrator.models.blocks.grouped_query_attention.layers import GroupedQueryConfig
from orchestrator.models.blocks.registry import GROUPED_QUERY
from orchestrator.models.blocks.residual_stream.layers import ResidualStreamConfig


@dataclass
class LayerConfig(GroupedQueryConfig, ResidualStreamConfig):
    """megatron-core's, and what modules of the runtime read beyond it. Attributes that only a block's own modules read
    are set without a declaration here.
    """

    attention: str = GROUPED_QUERY.name
    """The block of `models.blocks` that its layers attend with."""
    mixers: tuple[str, ...] = ()
    """Where layers differ in that, the block of each; else nothing."""
    rotates_projection: bool = False
    """Queries and keys are rotated where their projection left them."""
    rotates_images: bool = False
    """Those of an encoder of images are."""
    normalizes_in_kernels: bool = False
    """Norms for whose width Transformer Engine has none of its own are kernels of ours."""
    flash_attention: bool = False
    """The core of attention is FlashAttention 4."""
    packs: bool = False
    """A sequence holds several conversations, and attention takes a mask that keeps them apart."""
    masks_images: bool = False
    """The tokens of an image attend to each other in both directions, which a mask says."""

    def mixer_of(self, layer_number: int) -> str:
        """The block of `models.blocks` that a layer attends with. Layers count from 1."""
        return self.mixers[layer_number - 1] if self.mixers else self.attention


def defaults_beyond_megatron() -> dict[str, Any]:
    """Of the attributes that megatron-core's configuration has not: a plain layer's."""
    theirs = {field.name for field in dataclasses.fields(TransformerConfig)}
    return {field.name: field.default for field in dataclasses.fields(LayerConfig) if field.name not in theirs}


class LayerKind(NamedTuple):
    """What layers differ in."""

    mixer: str
    """The block of `models.blocks` that it attends with."""
    has_experts: bool


def layers_of_chunk(config: LayerConfig, vp_stage: int | None) -> list[LayerKind]:
    """Each layer of a model chunk of this rank's stage."""
    count: int = get_num_layers_to_build(config, vp_stage=vp_stage)
    are_alike = not config.mixers and not isinstance(config.moe_layer_freq, list)
    first: int = 0 if are_alike else get_transformer_layer_offset(config, vp_stage=vp_stage)
    numbers = range(first + 1, first + count + 1)
    return [LayerKind(config.mixer_of(number), _has_experts(config, number)) for number in numbers]


def _has_experts(config: TransformerConfig, layer_number: int) -> bool:
    if config.num_moe_experts is None:
        return False
    listed = config.moe_layer_freq
    return bool(listed[layer_number - 1]) if isinstance(listed, list) else True
