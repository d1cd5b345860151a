"""Starting experts from the weights of a dense model (`checkpoint.upcycle`).

Each expert reads its part of the dense MLP of its layer from the checkpoint, whatever the layout of either; everything
else is read as it is there, where all layers are alike. The router is new. With a granularity G, every G experts, whose
rows of the router are the same, share out a copy of the MLP, as in megatron-core's upcycling_utils; the factor that
makes up for the router's weights is all in the second matrix, where no activation follows on it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory

from orchestrator.models.blocks.experts.upcycling import granularity, output_factor
from orchestrator.models.layers import layers_differ
from orchestrator.runtime.network.initialization import shards_of
from orchestrator.spec.job import JobSpec

NEW = "the routers of experts"
_OF_EXPERTS, _ROUTER = ".mlp.experts.experts.", ".mlp.router."
_OF_FIRST, _OF_SECOND = 0, 1
"""The axis of the width inside an MLP, of its first matrix and of its second."""
_NUMBERED = re.compile(r"(decoder\.layers\.)(\d+)\.(.+)")
_NORM = ("pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_")
"""Its name where experts follow on it, and where an MLP does."""


@dataclass(frozen=True)
class _Piece:
    """Of the matrix of an expert, what one tensor that is read has: rows or columns, of one half of a gated one."""

    name: str
    """Of what is read."""
    ours: torch.Tensor
    axis: int
    first: int
    """Within what is read."""

    def fill(self, read: torch.Tensor, factor: float) -> None:
        part = read.narrow(self.axis, self.first, self.ours.shape[self.axis])
        self.ours.copy_(part if factor == 1 else part.float() * factor)


class DenseWeights:
    """What a chunk of a model with experts reads from a dense checkpoint."""

    def __init__(self, chunk: Any, job: JobSpec) -> None:
        self._model, self._chunk, degrees = job.model, chunk, job.parallelism
        self._stacks_layers = not layers_differ(job.model.model_copy(update={"num_experts": None}))
        """Whether the dense model has one key for all layers."""
        self.state: dict[str, Any] = {}
        """What is to be read: weights by their names here, and parts of dense MLPs by their own."""
        self._pieces: list[_Piece] = []
        # megatron-core reads a tensor in equal parts: as layers that stay dense split it, where there are some.
        self._unit = self._model.moe_ffn_size // degrees.expert_tensor_parallel
        if not all(self._model.moe_layers):
            self._unit = self._model.ffn_size // degrees.tensor_model_parallel_size
        for name, entry in chunk.sharded_state_dict().items():
            key = getattr(entry, "key", "")
            if _OF_EXPERTS in key:
                for shard in shards_of([entry]):
                    self._read_for(shard)
            elif isinstance(entry, ShardedTensor | ShardedTensorFactory) and _ROUTER not in key:
                self.state[name] = self._as_stored(entry)

    @torch.no_grad()
    def fill(self, loaded: dict[str, Any]) -> None:
        """Bring what was read into the chunk."""
        pieces = [piece for piece in self._pieces if piece.name in loaded]  # layers of further tokens may be new
        mlps = {name: loaded.pop(name) for name in {piece.name for piece in pieces}}
        self._chunk.load_state_dict({**self._chunk.state_dict(), **loaded})
        factor = output_factor(self._model)
        for piece in pieces:
            piece.fill(mlps[piece.name], factor if piece.axis == _OF_SECOND else 1.0)
        _join_routers(self._chunk, granularity(self._model))

    def _read_for(self, shard: ShardedTensor) -> None:
        """Of an expert's shard: which parts of the wider matrix, that has no axis of experts, are to be read."""
        shard, parts, width = self._stacked(shard), granularity(self._model), self._model.moe_ffn_size
        experts = shard.prepend_axis_num - 1
        axis = _OF_FIRST if shard.key.endswith("linear_fc1.weight") else _OF_SECOND
        shape, offset = (_without(each, experts) for each in (shard.global_shape, shard.global_offset))
        half, within = divmod(offset[experts + axis], width)  # of a gated matrix: the gate, and what it gates
        shape[experts + axis] *= parts
        first = (half * parts + shard.global_offset[experts] % parts) * width + within
        left = shard.data
        while left.shape[axis]:
            number, skipped = divmod(first, self._unit)
            offset[experts + axis] = number * self._unit
            count = min(self._unit - skipped, left.shape[axis])
            name = self._wanted(shard, axis, shape, offset)
            self._pieces.append(_Piece(name, left.narrow(axis, 0, count), axis, skipped))
            left, first = left.narrow(axis, count, left.shape[axis] - count), first + count

    def _wanted(self, shard: ShardedTensor, axis: int, shape: list[int], offset: list[int]) -> str:
        """The name of a part of a dense MLP, which is read once for all experts that have something of it."""
        key = shard.key.replace(_OF_EXPERTS, ".mlp.")
        name = f"{key}:{offset}"  # begins as the key does, by which what may be new is told
        if name not in self.state:
            local = list(shard.local_shape)
            local[axis] = self._unit
            each = (*(1,) * (len(shape) - len(local)), *local)
            self.state[name] = replace(
                shard,
                key=key,
                data=shard.data.new_empty(local),
                local_shape=tuple(local),
                global_shape=tuple(shape),
                global_offset=tuple(offset),
                axis_fragmentations=tuple(whole // part for whole, part in zip(shape, each, strict=True)),
                prepend_axis_num=shard.prepend_axis_num - 1,
            )
        return name

    def _as_stored(self, entry: Any) -> Any:
        """A weight by its key in a checkpoint whose layers are all dense."""
        if isinstance(entry, ShardedTensor):
            return self._stacked(replace(entry, key=entry.key.replace(*_NORM)))
        build = entry.build_fn

        def built(*arguments: Any) -> Any:
            found = build(*arguments)
            if isinstance(found, dict):
                return {name: self._stacked(each) for name, each in found.items()}
            return [self._stacked(each) for each in found]

        return replace(entry, build_fn=built)

    def _stacked(self, shard: ShardedTensor) -> ShardedTensor:
        """Where only some layers have experts, each has a key of its own, and in a dense model all may have one."""
        numbered = _NUMBERED.fullmatch(shard.key)
        if numbered is None or not self._stacks_layers:
            return shard
        layers = self._model.num_layers
        return replace(
            shard,
            key=numbered[1] + numbered[3],
            global_shape=(layers, *shard.global_shape),
            global_offset=(int(numbered[2]), *shard.global_offset),
            axis_fragmentations=(layers, *(shard.axis_fragmentations or ())),
            prepend_axis_num=shard.prepend_axis_num + 1,
        )


def _without(sizes: Sequence[int], axis: int) -> list[int]:
    return [*sizes[:axis], *sizes[axis + 1 :]]


def _join_routers(chunk: Any, parts: int) -> None:
    """Experts that share a copy out are chosen together: their rows of the router are those of one."""
    for name, router in chunk.named_parameters() if parts > 1 else ():
        if f".{name}".endswith(f"{_ROUTER}weight"):
            router.copy_(router[: router.shape[0] // parts].repeat_interleave(parts, dim=0))
