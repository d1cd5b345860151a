"""Mixture of experts: the spec in megatron-core's words, and which layers of a chunk have experts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from megatron.core.transformer.moe.moe_layer import MoELayer
from megatron.core.transformer.transformer_block import get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

from orchestrator.errors import MissingDependency
from orchestrator.runtime import megatron_compat
from orchestrator.runtime.process_groups import Ranks
from orchestrator.spec.job import JobSpec
from orchestrator.spec.runtime import Layers


def expert_settings(job: JobSpec, layers: Layers) -> dict[str, Any]:
    """What TransformerConfig takes about experts; nothing for a model that has none.

    Raises MissingDependency when grouped matrix products are asked for where Transformer Engine's layers are not used.
    """
    model, parallelism = job.model, job.parallelism
    if model.num_experts is None:
        return {}
    grouped = model.moe_grouped_gemm
    if grouped and layers != "transformer_engine":
        raise MissingDependency(
            "model.moe_grouped_gemm is true, which needs Transformer Engine's layers, and this run has torch's: "
            "Transformer Engine is not installed, or there is no GPU; leave moe_grouped_gemm out"
        )
    if grouped is None:
        grouped = layers == "transformer_engine"
    every = all(model.moe_layers)
    return {
        "num_moe_experts": model.num_experts,
        # A list gives each layer keys of its own in a checkpoint, which layers that differ need.
        "moe_layer_freq": 1 if every else [int(has) for has in model.moe_layers],
        "moe_ffn_hidden_size": model.moe_ffn_size,
        "moe_shared_expert_intermediate_size": model.moe_shared_expert_intermediate_size,
        "moe_router_topk": model.moe_router_topk,
        "moe_router_score_function": model.moe_router_score_function,
        "moe_router_pre_softmax": model.moe_router_pre_softmax,
        "moe_router_dtype": model.moe_router_dtype,
        "moe_router_load_balancing_type": model.moe_router_load_balancing_type,
        "moe_aux_loss_coeff": model.moe_aux_loss_coeff,
        "moe_z_loss_coeff": model.moe_z_loss_coeff,
        "moe_expert_capacity_factor": model.moe_expert_capacity_factor,
        "moe_token_dispatcher_type": model.moe_token_dispatcher_type,
        "moe_grouped_gemm": grouped,
        "expert_model_parallel_size": parallelism.expert_model_parallel_size,
        "expert_tensor_parallel_size": parallelism.expert_tensor_parallel,
    }


def layers_of_chunk(config: TransformerConfig, vp_stage: int | None) -> list[bool]:
    """For each layer of a model chunk of this rank's stage whether it has experts."""
    count = get_num_layers_to_build(config, vp_stage=vp_stage)
    if config.num_moe_experts is None:
        return [False] * count
    if not isinstance(config.moe_layer_freq, list):
        return [True] * count
    first = get_transformer_layer_offset(config, vp_stage=vp_stage)
    return [bool(has) for has in config.moe_layer_freq[first : first + count]]


def auxiliary_losses(job: JobSpec) -> dict[str, str]:
    """The losses that balance a job's experts: their names here, and megatron-core's."""
    model = job.model
    if model.num_experts is None:
        return {}
    found = {}
    if model.moe_aux_loss_coeff > 0:
        by_sequence = model.moe_router_load_balancing_type == "seq_aux_loss"
        found["load_balancing_loss"] = "seq_load_balancing_loss" if by_sequence else "load_balancing_loss"
    if model.moe_z_loss_coeff is not None:
        found["z_loss"] = "z_loss"
    return found


class AuxiliaryLosses:
    """This rank's part of the losses that balance experts, without their weights, to be averaged over layers,
    micro-batches and replicas.
    """

    def __init__(self, job: JobSpec, modules: Iterable[Any], ranks: Ranks) -> None:
        self._keys = auxiliary_losses(job)
        self._layers = sum(isinstance(module, MoELayer) for chunk in modules for module in chunk.modules())
        # Of the load-balancing loss each of the ranks that share a sequence has a part; of the other a mean of its own.
        self._shares = {"load_balancing_loss": ranks.tp_size * ranks.cp_size}
        self._sums: dict[str, torch.Tensor] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._keys)

    def collect(self) -> None:
        """Take what the layers left of a step; on a GPU the copy to the host is under way when this returns."""
        if self._keys:
            self._sums = {
                name: value.to("cpu", non_blocking=True)
                for name, value in megatron_compat.take_auxiliary_losses().items()
            }

    def report(self, micro_batches: int) -> torch.Tensor | None:
        """Sum and count of each, [names, 2], of the last step; None where there are none."""
        if not self._keys:
            return None
        rows = []
        for name, key in self._keys.items():
            count = self._layers * micro_batches / self._shares.get(name, 1)
            rows.append([float(self._sums[key]) if key in self._sums else 0.0, count])
        return torch.tensor(rows, dtype=torch.float64)


def keep_experts_apart(chunks: Iterable[Any]) -> None:
    """Reduce the gradients of experts over the ranks that hold the same ones, also where none are spread (EP = 1).

    megatron-core does so with EP > 1 only, and gives them an optimizer of their own then. Always the same way means
    that a checkpoint is the same at every EP, and that experts may be split otherwise than attention is.
    """
    for chunk in chunks:
        for name, parameter in chunk.named_parameters():
            if ".mlp.experts." in name:
                parameter.allreduce = False
