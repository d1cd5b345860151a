"""How a tensor of ours becomes theirs and the other way round, by the names that tables use.

Only views, cuts and copies: no number changes, so a way there and back is bitwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from orchestrator.spec.model import ModelSpec


@dataclass(frozen=True)
class Transform:
    """Both directions. `rows` is the size of the vocabulary there, or padded here."""

    to_theirs: Callable[[torch.Tensor, ModelSpec, int], Sequence[torch.Tensor]]
    to_ours: Callable[[Sequence[torch.Tensor], ModelSpec, int], torch.Tensor]


def _split_qkv(tensor: torch.Tensor, model: ModelSpec, rows: int) -> list[torch.Tensor]:
    """Rows group by group, [q · heads of the group, k, v], as all queries, all keys and all values."""
    groups, width = model.query_groups, model.head_dim
    per_group = model.num_attention_heads // groups
    grouped = tensor.view(groups, (per_group + 2) * width, *tensor.shape[1:])
    parts = torch.tensor_split(grouped, (per_group * width, (per_group + 1) * width), dim=1)
    return [part.flatten(0, 1) for part in parts]


def _join_qkv(parts: Sequence[torch.Tensor], model: ModelSpec, rows: int) -> torch.Tensor:
    """All of each part as rows group by group."""
    grouped = [part.view(model.query_groups, -1, *part.shape[1:]) for part in parts]
    return torch.cat(grouped, dim=1).flatten(0, 1)


def _rotated_channels(model: ModelSpec) -> int:
    return int(model.head_dim * model.rotary_percent)


def _split_pairs(tensor: torch.Tensor, model: ModelSpec, rows: int) -> list[torch.Tensor]:
    """As `_split_qkv`, where channels that are rotated together are neighbours there, and half of all apart here."""
    query, key, value = _split_qkv(tensor, model, rows)
    half = _rotated_channels(model) // 2
    return [_turned(query, model, (2, half)), _turned(key, model, (2, half)), value]


def _join_pairs(parts: Sequence[torch.Tensor], model: ModelSpec, rows: int) -> torch.Tensor:
    query, key, value = parts
    half = _rotated_channels(model) // 2
    return _join_qkv([_turned(query, model, (half, 2)), _turned(key, model, (half, 2)), value], model, rows)


def _turned(part: torch.Tensor, model: ModelSpec, sizes: tuple[int, int]) -> torch.Tensor:
    """Rows of heads, with the rotated channels of each in columns instead of rows of these sizes."""
    heads, rotated = part.reshape(-1, model.head_dim, *part.shape[1:]), _rotated_channels(model)
    turned = heads[:, :rotated].reshape(len(heads), *sizes, *part.shape[1:]).transpose(1, 2).flatten(1, 2)
    return torch.cat([turned, heads[:, rotated:]], dim=1).flatten(0, 1)


def _parts_of_qkv(tensor: torch.Tensor, model: ModelSpec) -> tuple[torch.Tensor, ...]:
    """All queries, all keys and all values of a matrix that has them one after the other."""
    rows = model.query_groups * model.head_dim
    return tensor.tensor_split((len(tensor) - 2 * rows, len(tensor) - rows))


def _split_kv(tensor: torch.Tensor, model: ModelSpec, rows: int) -> list[torch.Tensor]:
    """Rows head by head, [k, v], as all keys and all values."""
    grouped = tensor.view(model.query_groups, 2 * model.head_dim, *tensor.shape[1:])
    return [part.flatten(0, 1) for part in grouped.chunk(2, dim=1)]


def _split_vision_qkv(tensor: torch.Tensor, model: ModelSpec, rows: int) -> list[torch.Tensor]:
    """Of the encoder of images: rows head by head, [q, k, v], as all queries, all keys and all values."""
    grouped = tensor.view(_vision_heads(model), 3, -1, *tensor.shape[1:])
    return [part.flatten(0, 1) for part in grouped.unbind(1)]


def _join_vision_qkv(parts: Sequence[torch.Tensor], model: ModelSpec, rows: int) -> torch.Tensor:
    """All of each part as rows head by head."""
    grouped = [part.view(_vision_heads(model), -1, *part.shape[1:]) for part in parts]
    return torch.cat(grouped, dim=1).flatten(0, 1)


def _vision_heads(model: ModelSpec) -> int:
    return model.image_encoder.num_attention_heads


def _pad_rows(parts: Sequence[torch.Tensor], model: ModelSpec, rows: int) -> torch.Tensor:
    [tensor] = parts
    return torch.cat([tensor, tensor.new_zeros(rows - tensor.size(0), *tensor.shape[1:])])


TRANSFORMS = {
    "same": Transform(lambda ours, model, rows: [ours], lambda theirs, model, rows: theirs[0]),
    "transposed": Transform(lambda ours, model, rows: [ours.t()], lambda theirs, model, rows: theirs[0].t()),
    "transposed_experts": Transform(
        lambda ours, model, rows: [ours.transpose(1, 2)], lambda theirs, model, rows: theirs[0].transpose(1, 2)
    ),
    "joined_halves": Transform(
        lambda ours, model, rows: ours.chunk(2), lambda theirs, model, rows: torch.cat([*theirs])
    ),
    "padded_rows": Transform(lambda ours, model, rows: [ours[:rows]], _pad_rows),
    # Of two the last is the one that is computed with.
    "padded_rows_twice": Transform(
        lambda ours, model, rows: [ours[:rows]] * 2, lambda theirs, model, rows: _pad_rows(theirs[-1:], model, rows)
    ),
    "interleaved_qkv": Transform(_split_qkv, _join_qkv),
    "interleaved_qkv_of_pairs": Transform(_split_pairs, _join_pairs),
    "interleaved_vision_qkv": Transform(_split_vision_qkv, _join_vision_qkv),
    "interleaved_kv": Transform(_split_kv, _join_qkv),
    "joined_qkv": Transform(
        lambda ours, model, rows: [torch.cat(_split_qkv(ours, model, rows))],
        lambda theirs, model, rows: _join_qkv(_parts_of_qkv(theirs[0], model), model, rows),
    ),
    "transposed_qkv": Transform(
        lambda ours, model, rows: [torch.cat(_split_qkv(ours, model, rows)).t()],
        lambda theirs, model, rows: _join_qkv(_parts_of_qkv(theirs[0].t(), model), model, rows),
    ),
}
