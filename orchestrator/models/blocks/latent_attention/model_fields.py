"""What latent attention asks of a model. For the type checker: nothing imports it when it runs."""

from __future__ import annotations

from typing import Protocol

from orchestrator.models.blocks.model_fields import GroupedQueryFields


class LatentFields(GroupedQueryFields, Protocol):
    """Its own fields too."""

    @property
    def kv_lora_rank(self) -> int | None: ...
    @property
    def has_latent_attention(self) -> bool: ...
    @property
    def q_lora_rank(self) -> int | None: ...
    @property
    def qk_head_dim(self) -> int: ...
    @property
    def qk_pos_emb_head_dim(self) -> int: ...
    @property
    def v_head_dim(self) -> int: ...
    @property
    def softmax_scale(self) -> float | None: ...
    @property
    def attention_dropout(self) -> float: ...
