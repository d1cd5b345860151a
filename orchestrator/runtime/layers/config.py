"""The configuration that layers are built from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import is_layer_window_attention

from orchestrator.models.blocks.registry import GROUPED_QUERY


@dataclass
class LayerConfig(TransformerConfig):
    """megatron-core's, and what our attention does beyond it."""

    attention: str = GROUPED_QUERY.name
    """The block of `models.blocks` that its layers attend with."""
    mixers: tuple[str, ...] = ()
    """Where layers differ in that, the block of each; else nothing."""
    alibi: bool = False
    """Lower scores by distance, with a slope for each head."""
    attention_logit_softcapping: float | None = None
    """Scores x become cap · tanh(x / cap)."""
    rotates_projection: bool = False
    """Queries and keys are rotated where their projection left them."""
    has_local_rotation: bool = False
    """Layers with a window have rotary frequencies of their own."""
    no_rotation_freq: int | None = None
    """Layers whose number is a multiple of this do not rotate queries and keys. megatron-core's `no_rope_freq` asks for
    as many layers as make up whole rounds."""
    normalizes_rotated: bool = False
    """Heads of rotated queries and keys are normalised, without weights."""
    query_temperature: tuple[float, int] | None = None
    """Queries that are not rotated are multiplied by a factor that grows with their position: its scale, and tokens
    between two values."""
    flash_attention: bool = False
    """The core of attention is FlashAttention 4."""
    norm_bias: bool = True
    """LayerNorms have a bias. megatron-core's, and Transformer Engine's, always have one."""
    normalizes_inputs: bool = True
    """There are norms before attention and MLP."""
    normalizes_outputs: bool = False
    """There are norms of what attention and MLP give."""
    parallel_residual: Literal["two_norms", "one_norm"] | None = None
    """Attention and MLP have the same input, through a norm each or through one, and both are added to it."""
    residual_multiplier: float = 1.0
    """What attention and MLP give is multiplied by this."""
    packs: bool = False
    """A sequence holds several conversations, and attention takes a mask that keeps them apart."""

    @property
    def changes_queries_by_layer(self) -> bool:
        """Whether layers differ in how they rotate queries and keys, or in what they do to those."""
        return self.has_local_rotation or self.no_rotation_freq is not None or self.normalizes_rotated

    def rotation_of(self, layer_number: int) -> int | None:
        """Which rotary frequencies a layer has: 0 for those of the model, 1 for those of layers with a window; None for
        no rotation. Layers count from 1.
        """
        if self.no_rotation_freq is not None and layer_number % self.no_rotation_freq == 0:
            return None
        return int(self.has_local_rotation and self.window_of(layer_number) is not None)

    def mixer_of(self, layer_number: int) -> str:
        """The block of `models.blocks` that a layer attends with. Layers count from 1."""
        return self.mixers[layer_number - 1] if self.mixers else self.attention

    def window_of(self, layer_number: int) -> int | None:
        """Tokens that a token attends to in a layer, itself included; None for all. Layers count from 1."""
        windowed = is_layer_window_attention(self.window_size, self.window_attn_skip_freq, layer_number)
        return self.window_size[0] + 1 if windowed else None
