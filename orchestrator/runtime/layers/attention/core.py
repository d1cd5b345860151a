"""What every attention of ours is in megatron-core's eyes: how it is made, scaled, and drops weights."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

from megatron.core import tensor_parallel
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig

from orchestrator.runtime.layers.attention.sinks import sharded_sinks, sinks_of


class CoreAttention(MegatronModule):
    """The core of an attention layer, between its two linears, with megatron-core's constructor."""

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: AttnMaskType,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        **unused: Any,
    ) -> None:
        super().__init__(config=config)
        self.dropout = config.attention_dropout if attention_dropout is None else attention_dropout
        self.scale = softmax_scale if softmax_scale is not None else 1.0 / math.sqrt(config.kv_channels)
        self.softmax_offset = sinks_of(config)

    @contextlib.contextmanager
    def dropping(self) -> Iterator[float]:
        """The probability to drop a weight with, and the generator to draw from.

        Each tensor-parallel rank drops different heads; under sequence parallelism the default generator already
        differs between them.
        """
        dropout = self.dropout if self.training else 0.0
        own_randomness = dropout > 0 and not self.config.sequence_parallel
        with tensor_parallel.get_cuda_rng_tracker().fork() if own_randomness else contextlib.nullcontext():
            yield dropout

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Its sinks, where it has some: else attention itself has no parameters."""
        return sharded_sinks(self, prefix, sharded_offsets)
