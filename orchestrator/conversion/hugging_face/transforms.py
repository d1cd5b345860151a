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


def _split_gated(tensor: torch.Tensor, model: ModelSpec, rows: int) -> list[torch.Tensor]:
    """Rows group by group, [q · heads of the group, their gates, k, v], as all queries, each head's followed by its
    gates, all keys and all values.
    """
    groups, width = model.query_groups, model.head_dim
    queries = model.num_attention_heads // groups * width
    grouped = tensor.view(groups, 2 * (queries + width), *tensor.shape[1:])
    query, gate, key, value = torch.split(grouped, [queries, queries, width, width], dim=1)
    return [_by_head(query, gate, model), key.flatten(0, 1), value.flatten(0, 1)]


def _by_head(query: torch.Tensor, gate: torch.Tensor, model: ModelSpec) -> torch.Tensor:
    heads = [part.reshape(model.num_attention_heads, model.head_dim, *part.shape[2:]) for part in (query, gate)]
    return torch.cat(heads, dim=1).flatten(0, 1)


def _join_gated(parts: Sequence[torch.Tensor], model: ModelSpec, rows: int) -> torch.Tensor:
    """The other way round."""
    both, key, value = parts
    query, gate = both.view(model.num_attention_heads, 2, model.head_dim, *both.shape[1:]).unbind(1)
    return _join_qkv([query.flatten(0, 1), gate.flatten(0, 1), key, value], model, rows)


def _split_delta(tensor: torch.Tensor, model: ModelSpec, rows: int) -> list[torch.Tensor]:
    """Rows key head by key head, [q, k, v, z, beta, alpha], as [q, k, v, z] of all and [beta, alpha] of all."""
    grouped = tensor.view(model.linear_num_key_heads, -1, *tensor.shape[1:])
    steps = 2 * model.linear_num_value_heads // model.linear_num_key_heads
    return [part.flatten(0, 1) for part in torch.tensor_split(grouped, (grouped.size(1) - steps,), dim=1)]


def _join_delta(parts: Sequence[torch.Tensor], model: ModelSpec, rows: int) -> torch.Tensor:
    grouped = [part.view(model.linear_num_key_heads, -1, *part.shape[1:]) for part in parts]
    return torch.cat(grouped, dim=1).flatten(0, 1)


def _split_channels(tensor: torch.Tensor, model: ModelSpec, rows: int) -> list[torch.Tensor]:
    """Channels key head by key head, [q, k, v], as all of each part."""
    grouped = tensor.view(model.linear_num_key_heads, -1, *tensor.shape[1:])
    width = model.linear_key_head_dim
    parts = torch.tensor_split(grouped, (width, 2 * width), dim=1)
    return [torch.cat([part.flatten(0, 1) for part in parts])]


def _join_channels(parts: Sequence[torch.Tensor], model: ModelSpec, rows: int) -> torch.Tensor:
    keys = model.linear_num_key_heads * model.linear_key_head_dim
    return _join_delta(torch.tensor_split(parts[0], (keys, 2 * keys)), model, rows)


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


def _split_heads(tensor: torch.Tensor, model: ModelSpec, rows: int) -> list[torch.Tensor]:
    """Weights of a norm of each head, one after the other, as rows of heads whose channels lie as in `_split_pairs`."""
    return [_turned(tensor, model, (2, _rotated_channels(model) // 2)).view(-1, model.head_dim)]


def _join_heads(parts: Sequence[torch.Tensor], model: ModelSpec, rows: int) -> torch.Tensor:
    return _turned(parts[0].flatten(), model, (_rotated_channels(model) // 2, 2))


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


def _interleave_halves(tensor: torch.Tensor) -> torch.Tensor:
    """Rows of two halves, of a gate and of what it multiplies, one of each in turn; a matrix transposed."""
    rows = tensor.reshape(2, -1, *tensor.shape[1:]).transpose(0, 1).flatten(0, 1)
    return rows.t() if rows.dim() == 2 else rows


def _part_halves(tensor: torch.Tensor) -> torch.Tensor:
    """The other way round."""
    rows = tensor.t() if tensor.dim() == 2 else tensor
    return rows.reshape(-1, 2, *rows.shape[1:]).transpose(0, 1).flatten(0, 1)


def _pad_rows(parts: Sequence[torch.Tensor], model: ModelSpec, rows: int) -> torch.Tensor:
    [tensor] = parts
    return torch.cat([tensor, tensor.new_zeros(rows - tensor.size(0), *tensor.shape[1:])])


TRANSFORMS = {
    "same": Transform(lambda ours, model, rows: [ours], lambda theirs, model, rows: theirs[0]),
    "transposed": Transform(lambda ours, model, rows: [ours.t()], lambda theirs, model, rows: theirs[0].t()),
    "joined_halves": Transform(
        lambda ours, model, rows: ours.chunk(2), lambda theirs, model, rows: torch.cat([*theirs])
    ),
    "interleaved_halves": Transform(
        lambda ours, model, rows: [_interleave_halves(ours)], lambda theirs, model, rows: _part_halves(theirs[0])
    ),
    "padded_rows": Transform(lambda ours, model, rows: [ours[:rows]], _pad_rows),
    # Of two the last is the one that is computed with.
    "padded_rows_twice": Transform(
        lambda ours, model, rows: [ours[:rows]] * 2, lambda theirs, model, rows: _pad_rows(theirs[-1:], model, rows)
    ),
    "interleaved_qkv": Transform(_split_qkv, _join_qkv),
    "gated_qkv": Transform(_split_gated, _join_gated),
    "delta_heads": Transform(_split_delta, _join_delta),
    "delta_channels": Transform(_split_channels, _join_channels),
    "interleaved_qkv_of_pairs": Transform(_split_pairs, _join_pairs),
    "heads_of_pairs": Transform(_split_heads, _join_heads),
    "vectors_of_heads": Transform(
        lambda ours, model, rows: ours.view(-1, model.head_dim).unbind(),
        lambda theirs, model, rows: torch.cat([*theirs]),
    ),
    "interleaved_vision_qkv": Transform(_split_vision_qkv, _join_vision_qkv),
    "joined_vision_qkv": Transform(
        lambda ours, model, rows: [torch.cat(_split_vision_qkv(ours, model, rows))],
        lambda theirs, model, rows: _join_vision_qkv(theirs[0].chunk(3), model, rows),
    ),
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
