"""Attention sinks (Xiao et al. 2023): a learned number of each head beside its scores, by megatron-core's name."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint

from orchestrator.runtime.layers.parameter_attributes import mark_split

_NAME = "softmax_offset"


def sinks_of(config: TransformerConfig) -> torch.nn.Parameter | None:
    """Those of this rank's heads, [heads], not filled; None where the softmax is the usual one."""
    if config.softmax_type != "learnable":
        return None
    heads = config.num_attention_heads // config.tensor_model_parallel_size
    sinks = torch.nn.Parameter(torch.empty(heads, dtype=config.params_dtype))
    mark_split(sinks)
    return sinks


def sharded_sinks(core: Any, prefix: str, offsets: tuple[Any, ...]) -> dict[str, Any]:
    """For a checkpoint, as megatron-core and Transformer Engine keep them: split by heads. `core`: of attention."""
    if core.softmax_offset is None:
        return {}
    state = {_NAME: core.softmax_offset}
    found: dict[str, Any] = make_sharded_tensors_for_checkpoint(state, prefix, {_NAME: 0}, offsets)
    return found


def softmax_beside(scores: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """The softmax over the last dimension of the scores, in fp32, each sum with exp of a sink: scores [..., q, k];
    sinks of any shape that goes with [..., q, 1].
    """
    if sinks is None:
        return scores.softmax(dim=-1, dtype=torch.float32)
    beside = sinks.to(scores.dtype).expand(*scores.shape[:-1], 1)
    return torch.cat([scores, beside], dim=-1).softmax(dim=-1, dtype=torch.float32)[..., :-1]
