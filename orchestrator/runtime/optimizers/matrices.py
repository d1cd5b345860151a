"""Which weights of a network are matrices that Muon orthogonalises, and which of them hold several matrices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core import parallel_state

from orchestrator.runtime.optimizers.parameter_groups import is_embedding
from orchestrator.spec.sections.optimizer import OptimizerSpec


@dataclass(frozen=True)
class Matrix:
    """A weight [rows, columns] of which this rank has a part."""

    shape: tuple[int, int]
    """Of that part."""
    split_dim: int | None
    """The dimension that tensor-parallel ranks split; None where each has all of it."""
    fused: tuple[int, ...]
    """Rows of each matrix in a group of rows, where the weight holds several in turns; () where it is one."""
    group: Any
    """The tensor-parallel ranks."""

    @property
    def numel(self) -> int:
        """Elements of the part."""
        return self.shape[0] * self.shape[1]

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Of the matrices that it holds."""
        lengths = [*self.shape]
        if self.split_dim is not None:
            lengths[self.split_dim] *= self.group.size()
        rows, columns = lengths
        if not self.fused:
            return [(rows, columns)]
        return [(rows // sum(self.fused) * each, columns) for each in self.fused]

    def joined(self, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Its matrices, from the part of each rank, flat."""
        shaped = [part.view(self.shape) for part in parts]
        whole = shaped[0] if self.split_dim is None else torch.cat(shaped, self.split_dim)
        if not self.fused:
            return [whole]
        columns = whole.shape[1]
        groups = whole.view(-1, sum(self.fused), columns)
        return [each.reshape(-1, columns) for each in torch.split(groups, list(self.fused), 1)]

    def parts(self, matrices: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The part of each rank, from its matrices."""
        whole = matrices[0]
        if self.fused:
            columns = whole.shape[1]
            grouped = [each.view(-1, rows, columns) for each, rows in zip(matrices, self.fused, strict=True)]
            whole = torch.cat(grouped, 1).view(-1, columns)
        return [whole] if self.split_dim is None else torch.split(whole, self.shape[self.split_dim], self.split_dim)


_FOR_ADAM = frozenset(
    ("output_layer", "binary_head", "task_head", "encoder_relative_attention_bias", "decoder_relative_attention_bias")
)
"""Modules that give scores of tokens or sequences, and tables of biases."""


def matrices_of(chunk: torch.nn.Module, spec: OptimizerSpec) -> dict[torch.Tensor, Matrix]:
    """The matrices of a model chunk that are trained: all weights of two dimensions but embeddings, tables, output
    layers and what gives a sequence its scores.

    Queries, keys and values are apart with `muon_split_qkv`, and the two halves of a gated MLP always are. Other fused
    weights (the input projection of a state space layer) are taken as one matrix.
    """
    fused = dict(_fused(chunk, spec))
    return {
        weight: _matrix(weight, name, fused.get(weight, ()))
        for name, weight in chunk.named_parameters()
        if weight.requires_grad and weight.dim() == 2 and not _is_for_adam(weight, name)
    }


def _is_for_adam(weight: torch.Tensor, name: str) -> bool:
    *modules, last = name.split(".")
    is_weight = last.startswith("weight")  # those of experts in one product are numbered; positions of images are none
    is_marked = any(getattr(weight, mark, False) for mark in ("is_embedding_or_output_parameter", "shared_embedding"))
    return not is_weight or is_marked or is_embedding(name) or not _FOR_ADAM.isdisjoint(modules)


def _matrix(weight: torch.Tensor, name: str, fused: tuple[int, ...]) -> Matrix:
    if "experts" in name.split("."):
        group = parallel_state.get_expert_tensor_parallel_group()
        # Experts' linear layers are not told that they are split.
        split_dim = 1 if "linear_fc2" in name else 0
        is_split = group.size() > 1
    else:
        group = parallel_state.get_tensor_model_parallel_group()
        split_dim = getattr(weight, "partition_dim", -1)
        is_split = getattr(weight, "tensor_model_parallel", False) and group.size() > 1
    rows, columns = weight.shape
    return Matrix((rows, columns), split_dim if is_split else None, fused, group)


def _fused(chunk: torch.nn.Module, spec: OptimizerSpec) -> Iterator[tuple[torch.Tensor, tuple[int, ...]]]:
    """Weights that hold several matrices, each with its `Matrix.fused`."""
    modules: Iterator[Any] = chunk.modules()
    for module in modules:
        children: dict[str, Any] = dict(module.named_children())
        config: Any = getattr(module, "config", None)
        if spec.muon_split_qkv and "linear_qkv" in children:
            width, queries = (
                module.hidden_size_per_attention_head,
                config.num_attention_heads // config.num_query_groups,
            )
            gates = (queries * width,) if config.attention_output_gate else ()
            yield children["linear_qkv"].weight, (queries * width, *gates, width, width)
        if spec.muon_split_qkv and "linear_kv" in children:
            width = module.hidden_size_per_attention_head
            yield children["linear_kv"].weight, (width, width)
        if "linear_fc1" in children and getattr(config, "gated_linear_unit", False):
            for weight in children["linear_fc1"].parameters():
                if weight.dim() == 2:
                    half = weight.shape[0] // 2
                    yield weight, (half, half)
