"""Layers of an encoder and a decoder that attends to it: megatron-core's, with an attention of our own.

The attention knows three things that the decoder-only one does not: keys that are padding, keys and queries of two
different sequences, and a bias by the distance between query and key.
"""

from __future__ import annotations

import importlib
import math
import warnings
from typing import Any

import torch
from megatron.core import tensor_parallel
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_block import TransformerBlock, TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.utils import make_tp_sharded_tensor_for_checkpoint
from torch.nn import functional

from orchestrator.runtime.layers.attention.masked import Bias, MaskedAttention
from orchestrator.runtime.layers.normalization.norms import Norm
from orchestrator.spec.encoder_decoder import Half
from orchestrator.spec.sections.runtime import Layers

with warnings.catch_warnings():
    # It warns that apex is not installed; its norms are replaced below.
    warnings.simplefilter("ignore")
    from megatron.core.models.T5 import t5_spec


class RelativeBias(MegatronModule):
    """T5's bias by the distance between query and key (Raffel et al. 2020, section 2.1), the same in every layer.

    Half of the buckets are single distances, the others grow up to `max_distance`; a bidirectional bias has half of all
    for keys that come later. Its weight [buckets, heads] is split over the tensor-parallel ranks by heads, and copied
    to every pipeline stage of its half of the network.
    """

    def __init__(
        self,
        config: TransformerConfig,
        *,
        bidirectional: bool,
        buckets: int,
        max_distance: int,
        stage: int,
        tp_group: torch.distributed.ProcessGroup,
    ) -> None:
        super().__init__(config=config)
        self.bidirectional, self.buckets, self.max_distance, self.stage = bidirectional, buckets, max_distance, stage
        heads = config.num_attention_heads // tp_group.size()
        self.weight = torch.nn.Parameter(torch.zeros(buckets, heads, dtype=config.params_dtype))
        tensor_parallel.set_tensor_model_parallel_attributes(self.weight, is_parallel=True, dim=1, stride=1)
        # Its gradient is summed over the stages after the replicas': so its own gradient bucket, which every stage
        # then cuts alike for the distributed optimizer, and only the first stage's copy counts in the norm.
        parameter: Any = self.weight
        parameter.shared_embedding = True
        parameter.shared = stage > 0

    def forward(self, sq: int, sk: int) -> torch.Tensor:
        """The bias of sq queries on sk keys, both from position 0: [1, heads of this rank, sq, sk]."""
        distances = torch.arange(-(sq - 1), sk, device=self.weight.device)  # key's position less query's
        by_distance = functional.embedding(self.bucket(distances), self.weight).t()  # [heads, sq + sk - 1]
        # Row q is the window of sk distances that begins at -q.
        return by_distance.unfold(1, sk, 1).flip(1).unsqueeze(0)

    def bucket(self, distances: torch.Tensor) -> torch.Tensor:
        """The bucket of each distance."""
        buckets = self.buckets
        later = torch.zeros_like(distances)
        if self.bidirectional:
            buckets //= 2
            later = (distances > 0) * buckets
            distances = distances.abs()
        else:
            distances = (-distances).clamp(min=0)
        exact = buckets // 2
        growth = torch.log(distances.clamp(min=1).float() / exact) / math.log(self.max_distance / exact)
        far = (exact + (growth * (buckets - exact)).long()).clamp(max=buckets - 1)
        return later + torch.where(distances < exact, distances, far)

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """One tensor for all stages; the copies are replicas of the first."""
        key = f"{prefix}weight"
        data_parallel_rank = torch.distributed.get_rank((metadata or {})["dp_cp_group"])
        tensor = make_tp_sharded_tensor_for_checkpoint(
            self.weight, key, tp_axis=1, replica_id=(self.stage, 0, data_parallel_rank)
        )
        return {key: tensor}


def block_spec(half: Half, layers: Layers, num_layers: int) -> TransformerBlockSubmodules:
    """The layers of one stage of one half."""
    if layers == "transformer_engine":
        layer = getattr(t5_spec, f"{half}_model_with_transformer_engine_default_spec")()
        norm = importlib.import_module("megatron.core.extensions.transformer_engine").TENorm
    else:
        layer, norm = getattr(t5_spec, f"{half}_model_with_local_spec")(), Norm
        layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = Norm
        if half == "decoder":
            layer.submodules.pre_cross_attn_layernorm = Norm
    layer.submodules.self_attention.submodules.core_attention = MaskedAttention
    if half == "decoder":
        layer.submodules.cross_attention.submodules.core_attention = MaskedAttention
    return TransformerBlockSubmodules(layer_specs=[layer] * num_layers, layer_norm=norm)


def bias_self_attention(block: TransformerBlock, bias: Bias) -> None:
    """Let every self-attention of a block add the same bias; it stays the caller's module."""
    for layer in block.layers:
        layer.self_attention.core_attention.bias = lambda sq, sk: bias(sq, sk)
