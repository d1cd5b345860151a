"""Low-rank adapters beside the matrices of a network's layers (Hu et al. 2021), under tensor and sequence parallelism.

A matrix that is split over its output (`linear_qkv`, `linear_fc1`) has an adapter whose second matrix is split; one
that is split over its input (`linear_proj`, `linear_fc2`) has one whose first is. The other matrix of the adapter is
held whole by every rank, and both are beside a matrix that every rank has whole (`linear_kv_down_proj`).

Around experts, megatron-core brings tokens together and sums what comes out, so that the adapters beside their matrices
send nothing: the gradient of what each rank holds whole is that of its part, and is summed over the ranks that split an
expert.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from megatron.core.tensor_parallel import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    get_cuda_rng_tracker,
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
    set_tensor_model_parallel_attributes,
)
from megatron.core.transformer.mlp import apply_swiglu_sharded_factory
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch.nn import functional

from orchestrator.models.blocks.base import Parallel
from orchestrator.models.layers import layers, matrices_of
from orchestrator.runtime.layers.parameter_attributes import mark_sequence_parallel
from orchestrator.spec.lora import LoraSpec
from orchestrator.spec.model import ModelSpec

_MARK = ".lora."


class Adapter(torch.nn.Module):
    """scale · B(A(x)), of the same shape as the output of the linear layer that it stands beside."""

    def __init__(self, linear: Any, spec: LoraSpec, config: TransformerConfig, parallel: Parallel) -> None:
        super().__init__()
        weight: torch.Tensor = linear.weight
        outputs, inputs = weight.shape  # of this rank
        options: Any = {"dtype": weight.dtype, "device": weight.device}
        self.a = torch.nn.Parameter(torch.empty(spec.rank, inputs, **options))
        self.b = torch.nn.Parameter(torch.zeros(outputs, spec.rank, **options))
        self.scale, self.dropout = spec.scale, spec.lora_dropout
        self.sequence_parallel, self.parallel = config.sequence_parallel, parallel
        self.group, self.is_of_expert = linear.tp_group, bool(linear.is_expert)
        self.split_axes = {"column": {"b": 0}, "row": {"a": 1}, "replicated": {}}[parallel]
        for name, parameter in (("a", self.a), ("b", self.b)):
            axis = self.split_axes.get(name)
            if axis is not None:
                set_tensor_model_parallel_attributes(tensor=parameter, is_parallel=True, dim=axis, stride=1)
            elif self.is_of_expert:
                # megatron-core would count what is not split on the first tensor-parallel rank alone, but other ranks
                # have other experts, or other tokens.
                first, other = self.group.rank() == 0, int(name == "a")
                set_tensor_model_parallel_attributes(tensor=parameter, is_parallel=first, dim=other, stride=1)
            else:
                # Under sequence parallelism each rank's gradient of it is that of its part of the sequence.
                mark_sequence_parallel(parameter, config)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """What is added, from what the matrix takes: [s, b, in] of this rank, of an expert [tokens, in]."""
        if self.is_of_expert:
            a, b = self.a, self.b
            if self.parallel == "column":
                a = copy_to_tensor_model_parallel_region(a, self.group)
            else:
                b = copy_to_tensor_model_parallel_region(b, self.group)
            return functional.linear(functional.linear(self._dropped(inputs), a), b) * self.scale
        narrow = functional.linear(self._dropped(inputs), self.a)
        if self.parallel == "column" and self.sequence_parallel:
            narrow = gather_from_sequence_parallel_region(narrow)
        elif self.parallel == "column":
            narrow = copy_to_tensor_model_parallel_region(narrow)
        elif self.parallel == "row" and self.sequence_parallel:
            narrow = reduce_scatter_to_sequence_parallel_region(narrow)
        elif self.parallel == "row":
            narrow = reduce_from_tensor_model_parallel_region(narrow)
        return functional.linear(narrow, self.b) * self.scale

    def _dropped(self, inputs: torch.Tensor) -> torch.Tensor:
        if not self.training or self.dropout == 0.0:
            return inputs
        if self.parallel != "row" and not self.sequence_parallel and not self.is_of_expert:
            return functional.dropout(inputs, self.dropout)  # the same on every rank, as the inputs are
        with get_cuda_rng_tracker().fork():
            return functional.dropout(inputs, self.dropout)

    @torch.no_grad()
    def product(self) -> torch.Tensor:
        """What it adds to the matrix, this rank's part, in fp32."""
        return self.scale * (self.b.float() @ self.a.float())


def add_adapters(chunk: Any, model: ModelSpec, config: TransformerConfig) -> None:
    """Put adapters beside the chosen matrices of a model chunk, and freeze everything else."""
    for parameter in chunk.parameters():
        parameter.requires_grad_(False)
    matrices = (matrix for layer in dict.fromkeys(layers(model)) for matrix in matrices_of(model, layer))
    chosen = {matrix.name: matrix.parallel for matrix in matrices if matrix.name in model.adapted_modules}
    for name, module in list(chunk.named_modules()):
        kind = name.rpartition(".")[2]
        if kind in chosen:
            module.lora = Adapter(module, model.adapters, config, chosen[kind])
            module.lora_hook = module.register_forward_hook(_add)
            _save_split(module, gated=kind == "linear_fc1" and config.gated_linear_unit)
    if _recomputes_adapters(config) and getattr(chunk, "embedding", None) is not None:
        # What is recomputed and whose input needs no gradient is taken for something that has nothing to learn.
        chunk.embedding.register_forward_hook(lambda module, inputs, output: output.requires_grad_())


def _recomputes_adapters(config: TransformerConfig) -> bool:
    modules = config.recompute_modules or () if config.recompute_granularity == "selective" else ()
    return config.recompute_granularity == "full" or not {"mlp", "moe"}.isdisjoint(modules)


def _add(module: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, Any]) -> tuple[torch.Tensor, Any]:
    result, bias = output
    return result + module.lora(inputs[0]), bias


def _save_split(module: Any, *, gated: bool) -> None:
    """Let checkpoints hold the adapter whole, so that another layout can read it."""
    adapter = module.lora
    if not adapter.split_axes:
        return  # as they do what every rank has whole
    of_the_matrix = module.sharded_state_dict

    def sharded_state_dict(prefix: str = "", sharded_offsets: Any = (), metadata: Any = None) -> dict[str, Any]:
        entries: dict[str, Any] = of_the_matrix(prefix, sharded_offsets, metadata)
        own = f"{prefix}lora."
        entries |= make_sharded_tensors_for_checkpoint(
            {"a": adapter.a, "b": adapter.b},
            own,
            adapter.split_axes,
            sharded_offsets,
            tp_group=adapter.group,
            dp_cp_group=metadata["dp_cp_group"],
        )
        if gated:  # each rank has a part of the gate and one of what it gates
            entries[f"{own}b"] = apply_swiglu_sharded_factory(entries[f"{own}b"], sharded_offsets)
        return entries

    module.sharded_state_dict = sharded_state_dict


def is_adapter(key: str) -> bool:
    """Whether a weight of a checkpoint is an adapter's."""
    return _MARK in key


def merge_adapters(chunk: Any) -> None:
    """Add every adapter to its matrix and take it away: the network is then one that never had any."""
    for module in list(_adapted(chunk)):
        with torch.no_grad():
            module.weight.copy_(module.weight.float() + module.lora.product())
        module.lora_hook.remove()
        vars(module).pop("sharded_state_dict", None)
        del module.lora, module.lora_hook


def _adapted(chunk: Any) -> Iterator[Any]:
    return (module for module in chunk.modules() if isinstance(getattr(module, "lora", None), Adapter))
