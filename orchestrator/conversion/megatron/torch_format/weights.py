"""The tensors of a checkpoint in the older format, joined from its ranks' as they are read."""

from __future__ import annotations

import argparse
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from orchestrator.conversion.megatron.torch_format.names import (
    COPY,
    OUTPUT,
    TABLE,
    is_encoder,
    is_older,
    key_of,
    shared_axis,
)
from orchestrator.conversion.megatron.torch_format.optimizer import MASTER, IncompleteState, RankStates, states_of
from orchestrator.conversion.megatron.torch_format.ranks import RankGrid, read_ranks
from orchestrator.conversion.shapes import shape_of
from orchestrator.conversion.weight_mapping import layers_of, stack_of
from orchestrator.errors import UserError
from orchestrator.spec.job import JobSpec

_SHOWN = 4
_FC1 = "mlp.linear_fc1.weight"
_RELEASE = "release"
_STATE = "optimizer.state."
_NO_NETWORK = ("use_legacy_models", "apply_query_key_layer_scaling")
"""Arguments that say how a network is computed. The latter divides scores by the layer's number, for fp16's sake, and
multiplies them by it again.
"""


@dataclass
class _Joined:
    """One tensor to come, or one of every layer: the parts of its tensor-parallel ranks."""

    key: str
    """Of the weight that it is, or is a state of."""
    layers: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    """By the number of the layer; 0 where it is of none."""

    @property
    def axis(self) -> int | None:
        return shared_axis(self.key)

    @property
    def shape(self) -> tuple[int, ...]:
        """Without the dimension of layers."""
        parts = self.layers[0]
        shape = list(parts[0].shape)
        if self.axis is not None:
            shape[self.axis] = sum(part.shape[self.axis] for part in parts)
        return tuple(shape)


class RankWeights:
    """What `StoredWeights` is for the distributed format, for the older one. `job`: whose network it is; without,
    names, shapes and numbers of weights can be had alone.

    Raises UserError when files are missing, damaged or not of one checkpoint, or hold another network than the job's.
    """

    def __init__(self, folder: Path, job: JobSpec | None = None) -> None:
        self._grid, self._job = read_ranks(folder), job
        self._joined: dict[str, _Joined] = {}
        self._first_of: dict[tuple[int, int], int] = {}
        names = [name for row in self._grid.ranks for chunk in row[0].chunks for name in chunk]
        self.encoder = is_encoder(names)
        _refuse_strangers(self._grid, self.encoder)
        self._collect()
        self._drop_copy()
        self._check_layers()
        if job is not None:
            self._check_shapes(job)
        self._groups: list[dict[str, Any]] = []
        self._scaler: dict[str, Any] | None = None
        self.without_optimizer = self._collect_states()

    def _collect(self) -> None:
        first = 0
        for stage, chunk in self._grid.in_order():
            self._first_of[stage, chunk] = first
            row = [rank.chunks[chunk] for rank in self._grid.ranks[stage]]
            last = first
            for name, tensor in row[0].items():
                parts = [weights.get(name) for weights in row]
                for rank, part in zip(self._grid.ranks[stage], parts, strict=True):
                    if part is None or part.shape != tensor.shape or part.dtype != tensor.dtype:
                        raise UserError(
                            f"{rank.path} has another {name} than {self._grid.ranks[stage][0].path}",
                            code="tensor_differs_across_ranks",
                        )
                key, layer = self._place(name, stage, chunk)
                self._add(key, key, layer, [part for part in parts if part is not None])
                last = max(last, layer + 1) if stack_of(key) else last
            first = last

    def _place(self, name: str, stage: int, chunk: int) -> tuple[str, int]:
        found = key_of(name, self.encoder)
        assert found is not None, "strangers are refused"
        key, layer = found
        return key, 0 if layer is None else layer + self._first_of[stage, chunk]

    def _add(self, stored_as: str, key: str, layer: int, parts: list[torch.Tensor]) -> None:
        joined = self._joined.setdefault(stored_as, _Joined(key))
        if joined.axis is not None and parts[0].dim() <= joined.axis:
            raise UserError(
                f"{self._grid.folder} has {stored_as} of {parts[0].dim()} dimensions, and needs two",
                code="tensor_not_a_matrix",
            )
        if layer in joined.layers:
            raise UserError(
                f"{self._grid.folder} has {stored_as} twice: it is no network that is here", code="duplicate_tensor"
            )
        joined.layers[layer] = parts

    def _drop_copy(self) -> None:
        """The last stage of a pipeline has its own copy of an embedding that is the output layer too."""
        if OUTPUT not in self._joined or TABLE not in self._joined:
            return
        if not self._is_tied():
            return
        if not torch.equal(self.read(OUTPUT, ()), self.read(TABLE, ())):
            raise UserError(
                f"{self._grid.folder}: the embedding of the first stage is not that of the last one, and the network "
                "has one for both; the files are not of one checkpoint",
                code="tied_weights_differ",
            )
        del self._joined[OUTPUT]

    def _is_tied(self) -> bool:
        """As the job or the arguments say; else where the copy is called one, or is equal."""
        if self._job is not None:
            return not self._job.model.untie_embeddings_and_output_weights
        if self._grid.first.arguments is not None:
            return not self._grid.first.arguments.get("untie_embeddings_and_output_weights")
        last = self._grid.ranks[-1][0].chunks[-1]
        return COPY in last or torch.equal(self.read(OUTPUT, ()), self.read(TABLE, ()))

    def _check_layers(self) -> None:
        if TABLE not in self._joined or not any(key.endswith(_FC1) for key in self._joined):
            raise UserError(
                f"{self._grid.folder} has no {TABLE} or no layers: files of some ranks are not there",
                code="missing_pipeline_stages",
            )
        layers = max((len(joined.layers) for key, joined in self._joined.items() if stack_of(key)), default=0)
        for key, joined in self._joined.items():
            if set(joined.layers) != set(range(layers if stack_of(key) else 1)):
                raise UserError(
                    f"{self._grid.folder} has {key} of {len(joined.layers)} layers of {layers}",
                    code="incomplete_layer_tensors",
                )
            if len({tuple(part.shape) for parts in joined.layers.values() for part in parts}) > 1:
                raise UserError(
                    f"{self._grid.folder} has {key} of several shapes, which no supported network has",
                    code="layer_shapes_differ",
                )

    def _check_shapes(self, job: JobSpec) -> None:
        model, rows = job.model, self._joined[TABLE].shape[0]
        if model.num_attention_heads % self._grid.tensor_parallel:
            raise UserError(
                f"{self._grid.folder} is of {self._grid.tensor_parallel} tensor-parallel ranks, which cannot share the "
                f"{model.num_attention_heads} heads of {job.name}",
                code="heads_not_divisible",
            )
        for key, joined in self._joined.items():
            try:
                wanted = shape_of(key, model, rows)
            except KeyError:
                raise UserError(
                    f"{self._grid.folder} has {key}, and the network of {job.name} has none", code="unexpected_tensors"
                ) from None
            layers = layers_of(stack_of(key), model) if stack_of(key) else 1
            if (joined.shape, len(joined.layers)) != (wanted, layers):
                there, here = (
                    [count, *shape] for count, shape in ((len(joined.layers), joined.shape), (layers, wanted))
                )
                raise UserError(
                    f"{self._grid.folder} is another network than that of {job.name}: {key} is {there} there, with "
                    f"its layers, and {here} here",
                    code="network_differs",
                )

    def _collect_states(self) -> str | None:
        """Why the optimizer's state stays behind; None where it is there."""
        if self._grid.folder.name == _RELEASE:
            return "a release has none"
        try:
            states = [[states_of(rank) for rank in row] for row in self._grid.ranks]
        except IncompleteState as reason:
            return str(reason)
        self._groups = [
            next((each.groups[half] for row in states for each in row if each.groups[half]), {}) for half in (0, 1)
        ]
        self._scaler = states[0][0].scaler
        for stage, chunk in self._grid.in_order():
            self._add_states(stage, chunk, states[stage])
        return None

    def _add_states(self, stage: int, chunk: int, row: list[RankStates]) -> None:
        for name in self._grid.ranks[stage][0].chunks[chunk]:
            key, layer = self._place(name, stage, chunk)
            if key not in self._joined:  # the copy of the embedding
                continue
            for kind in row[0].tensors[chunk, name]:
                parts = [states.tensors[chunk, name][kind] for states in row]
                if (stored_as := self._state_key(kind, key)) is not None:
                    self._add(stored_as, key, layer, parts)

    def _state_key(self, kind: str, key: str) -> str | None:
        """The distributed optimizer calls the fp32 copies otherwise; the plain one has none of weights in fp32."""
        if kind != MASTER or self._is_distributed:
            return f"{_STATE}{kind}.{key}"
        return None if self.dtype(key) == torch.float32 else f"{_STATE}fp32_param.{key}"

    @property
    def _is_distributed(self) -> bool:
        return self._job is None or self._job.parallelism.use_distributed_optimizer

    def keys(self) -> list[str]:
        """Of all tensors, sorted."""
        return sorted(self._joined)

    def objects(self) -> list[str]:
        """What megatron-core keeps for FP8 beside weights, which is empty here."""
        layers = {key.rpartition(".")[0]: len(joined.layers) for key, joined in self._joined.items() if stack_of(key)}
        found = [
            f"{module}._extra_state/shard_{layer}_{count}" for module, count in layers.items() for layer in range(count)
        ]
        return sorted([*found, "output_layer._extra_state/shard_0_1"])

    def read_object(self, key: str) -> io.BytesIO:
        """An empty one."""
        into = io.BytesIO()
        torch.save([None], into)
        into.seek(0)
        return into

    def shared(self) -> dict[str, Any]:
        """What is not stored by parts, as the distributed format has it."""
        first = self._grid.first
        found: dict[str, Any] = {"iteration": 0 if self._grid.folder.name == _RELEASE else first.iteration}
        if first.arguments is not None:
            found["args"] = argparse.Namespace(**self._arguments(first.arguments))
        if self.without_optimizer is None:
            found["optimizer"] = self._optimizer()
        return found

    def _arguments(self, said: dict[str, Any]) -> dict[str, Any]:
        """With the meaning that they have for megatron-core's models. Raises UserError where they have none."""
        arguments = {name: value for name, value in said.items() if name not in _NO_NETWORK}
        if not any(is_older(name) for name in self._grid.first.chunks[0]):
            return arguments
        arguments = {"add_bias_linear": not said.get("disable_bias_linear", False), **arguments}
        if arguments.get("openai_gelu"):
            if self.encoder:
                raise UserError(
                    f"{self._grid.folder}: with openai_gelu a BERT's head has another GeLU than here",
                    code="activation_differs",
                )
            arguments["bias_gelu_fusion"] = True
        return arguments

    def _optimizer(self) -> dict[str, Any]:
        """As the distributed format has it, which tells groups apart by these fields."""
        same = {"is_expert_parallel": False, "default_config": True, "lr_mult": 1.0, "is_decoupled_lr": False}
        if self._job is not None:
            same |= {"max_lr": self._job.optimizer.lr, "min_lr": self._job.optimizer.min_lr}
        groups = [{**same, "wd_mult": decays, **group} for decays, group in zip((1.0, 0.0), self._groups, strict=True)]
        inner: dict[str, Any] = {"param_groups": groups}
        scaler = {} if self._scaler is None else {"grad_scaler": self._scaler}
        return {"optimizer": inner, **scaler, "param_state_sharding_type": "fully_reshardable"}

    def sizes(self) -> Mapping[str, int]:
        """Of the network what its weights say: all but the number of heads."""
        shapes = {key: joined.shape for key, joined in self._joined.items()}
        fc1 = next((len(joined.layers), *joined.shape) for key, joined in self._joined.items() if key.endswith(_FC1))
        positions = shapes.get("embedding.position_embeddings.weight")
        said = {"num_layers": fc1[0], "hidden_size": fc1[2], "ffn_hidden_size": fc1[1], "vocab_size": shapes[TABLE][0]}
        return said if positions is None else {**said, "max_position_embeddings": positions[0]}

    def __contains__(self, key: str) -> bool:
        return key in self._joined

    def places(self, key: str) -> int:
        """How many of a tensor's first dimensions are of layers."""
        return 1 if stack_of(self._joined[key].key) else 0

    def shape(self, key: str) -> tuple[int, ...]:
        joined = self._joined[key]
        return (len(joined.layers), *joined.shape) if self.places(key) else joined.shape

    def dtype(self, key: str) -> torch.dtype:
        return self._joined[key].layers[0][0].dtype

    def read(self, key: str, place: tuple[int, ...]) -> torch.Tensor:
        """A tensor, or that of one layer, without the dimension of layers.

        Raises UserError when ranks that have all of it do not agree.
        """
        joined = self._joined[key]
        parts, axis = joined.layers[place[0] if place else 0], joined.axis
        if axis is None:
            if not all(torch.equal(part, parts[0]) for part in parts):
                raise UserError(
                    f"the tensor-parallel ranks of {self._grid.folder} do not agree on {key}, of which each has all: "
                    "their files are not of one checkpoint",
                    code="tensor_differs_across_ranks",
                )
            return parts[0]
        if "self_attention.linear_qkv." in joined.key and "layer_norm" not in joined.key:
            parts = [self._by_heads(part, len(parts)) for part in parts]
        if "mlp.linear_fc1." in joined.key and self._job is not None and self._job.model.is_gated:
            # Each rank has its rows of the gate before its rows of what is gated.
            halves = [part.chunk(2) for part in parts]
            return torch.cat([half[number] for number in (0, 1) for half in halves])
        return torch.cat(parts, dim=axis) if len(parts) > 1 else parts[0]

    def _by_heads(self, part: torch.Tensor, ranks: int) -> torch.Tensor:
        """Rows head by head, [q, k, v]. Before version 1.0 they were [q of all heads, k, v]; in 1.0 each head had its
        first numbers of q, k and v, then the second ones.
        """
        version = self._grid.first.version
        if version >= 2 or self._job is None:
            return part
        model = self._job.model
        heads, rest = model.num_attention_heads // ranks, part.shape[1:]
        if version == 0:
            return part.view(3, heads, model.head_dim, *rest).transpose(0, 1).reshape(part.shape)
        return part.view(heads, model.head_dim, 3, *rest).transpose(1, 2).reshape(part.shape)


def _refuse_strangers(grid: RankGrid, encoder: bool) -> None:
    """Raises UserError where there are weights of networks that are not here, or an unknown order of q, k and v."""
    names = {name: rank.path for row in grid.ranks for rank in row for chunk in rank.chunks for name in chunk}
    stacks = {stack for stack in ("encoder", "decoder") if any(f"{stack}.layers." in f".{name}" for name in names)}
    if len(stacks) > 1:
        raise UserError(
            f"{grid.folder} has an encoder and a decoder: of the older format, GPT and BERT are imported; have "
            "Megatron-LM write it as torch_dist (--ckpt-convert-format torch_dist)",
            code="unsupported_encoder_decoder",
        )
    strange = [name for name in names if key_of(name, encoder) is None]
    if strange:
        more = f" and {len(strange) - _SHOWN} more" if len(strange) > _SHOWN else ""
        raise UserError(
            f"{names[strange[0]]} has weights that no GPT or BERT here has: {', '.join(strange[:_SHOWN])}{more}",
            code="unexpected_tensors",
        )
    version = grid.first.version
    if version not in (0.0, 1.0) and version < 2:
        raise UserError(
            f"{grid.first.path} is of checkpoint_version {version}: known are 0, 1.0 and from 2.0 on",
            code="unknown_checkpoint_version",
        )
