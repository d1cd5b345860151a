"""Which parameters are decayed, and which have a learning rate of their own."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.optimizer.optimizer_config import ParamKey, ParamWithNamePredicate

from orchestrator.spec.sections.optimizer import OptimizerSpec


def group_overrides(spec: OptimizerSpec) -> dict[ParamKey, Any]:
    """What megatron-core makes groups of parameters by: `wd_mult` 0 for what is not decayed, and `is_decoupled_lr`."""
    not_decayed = ParamWithNamePredicate(
        name="not_decayed", fn=lambda parameter, name: not is_decayed(spec, parameter, name)
    )
    overrides: dict[ParamKey, Any] = {ParamKey(with_name_predicate=not_decayed): {"wd_mult": 0.0}}
    if spec.decoupled_lr is not None:
        # megatron-core marks the table of words and the output layer, and the copy of a tied one.
        overrides[ParamKey(attr="is_embedding_or_output_parameter")] = {"is_decoupled_lr": True}
    return overrides


def is_decayed(spec: OptimizerSpec, parameter: torch.Tensor, name: str) -> bool:
    """Whether weight decay acts on a parameter. `name`: as torch names it in the network."""
    last = name.rpartition(".")[2]
    if last.endswith("bias"):
        return False
    if parameter.dim() == 1:
        of_queries_and_keys = spec.apply_wd_to_qk_layernorm and ("q_layernorm." in name or "k_layernorm." in name)
        return spec.decay_norms or of_queries_and_keys
    if is_embedding(name) or getattr(parameter, "shared_embedding", False):
        return spec.decay_embeddings
    return True


def is_embedding(name: str) -> bool:
    """Whether a parameter is a table of words, positions or segments; an output layer of its own is none."""
    return "embedding." in name or "embeddings." in name
