"""The configuration that layers are built from."""

from __future__ import annotations

from dataclasses import dataclass

from megatron.core.transformer.transformer_config import TransformerConfig

from orchestrator.models.blocks.registry import GROUPED_QUERY


@dataclass
class LayerConfig(TransformerConfig):
    """megatron-core's, and what our attention does beyond it."""

    attention: str = GROUPED_QUERY.name
    """The block of `models.blocks` that its layers attend with."""
    alibi: bool = False
    """Lower scores by distance, with a slope for each head."""
    attention_logit_softcapping: float | None = None
    """Scores x become cap · tanh(x / cap)."""
    rotates_projection: bool = False
    """Queries and keys are rotated where their projection left them."""
    flash_attention: bool = False
    """The core of attention is FlashAttention 4."""
    normalizes_inputs: bool = True
    """There are norms before attention and MLP."""
    normalizes_outputs: bool = False
    """There are norms of what attention and MLP give."""
    packs: bool = False
    """A sequence holds several conversations, and attention takes a mask that keeps them apart."""

    def window_of(self, layer_number: int) -> int | None:
        """Tokens that a token attends to in a layer, itself included; None for all. Layers count from 1."""
        skipped = self.window_attn_skip_freq is not None and layer_number % self.window_attn_skip_freq == 0
        return None if self.window_size is None or skipped else self.window_size[0] + 1
