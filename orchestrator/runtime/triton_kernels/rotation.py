"""Rotating the queries and keys of a projection's output on a GPU, in one kernel: where they are, or on the way to
tensors of their own.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_ROWS, _WARPS = 16, 8
"""Heads that a program rotates at a time, and by how many warps."""


def rotate(joined: torch.Tensor, frequencies: torch.Tensor, *, back: bool = False) -> None:
    """Rotate queries and keys where they are; `back`: by the same angles, the other way.

    joined: [s, b, groups, heads per group + 2, d], contiguous; frequencies: [s, 1, 1, r], or [s, b, 1, r] where
    sequences differ, in radians, r <= d.
    """
    _launch(joined, joined, joined, joined, frequencies, splits=False, joins=False, back=back)


def split(joined: torch.Tensor, frequencies: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries [s, b, heads, d] and keys [s, b, groups, d], rotated, and values, from what `rotate` takes."""
    s, b, groups, members, d = joined.shape
    query = joined.new_empty(s, b, groups * (members - 2), d)
    key, value = joined.new_empty(s, b, groups, d), joined.new_empty(s, b, groups, d)
    _launch(joined, query, key, value, frequencies, splits=True, joins=False, back=False)
    return query, key, value


def join(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
    """Gradients of what `split` returns, all contiguous, rotated back into one of its input."""
    s, b, heads, d = query.shape
    joined = query.new_empty(s, b, key.size(2), heads // key.size(2) + 2, d)
    _launch(joined, query, key, value, frequencies, splits=False, joins=True, back=True)
    return joined


def _launch(
    joined: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    frequencies: torch.Tensor,
    *,
    splits: bool,
    joins: bool,
    back: bool,
) -> None:
    s, b, groups, members, d = joined.shape
    half = frequencies.size(-1) // 2
    _rotate[(s,)](
        joined,
        query,
        key,
        value,
        frequencies,
        b,
        frequencies.stride(0),
        frequencies.stride(1),
        by_sequence=frequencies.size(1) > 1,
        groups=groups,
        members=members,
        d=d,
        half=half,
        half_block=_power_of_two(half),
        rest_block=_power_of_two(max(d - 2 * half, 1)),
        d_block=_power_of_two(d),
        rows=min(_ROWS, _power_of_two(groups * (members - 2))),
        splits=splits,
        joins=joins,
        back=back,
        num_warps=_WARPS,
    )


def _power_of_two(count: int) -> int:
    """The least that is not less."""
    return 1 << (count - 1).bit_length()


@triton.jit
def _rotate(
    joined,
    query,
    key,
    value,
    frequencies,
    batch,
    position_stride,
    sequence_stride,
    by_sequence: tl.constexpr,
    groups: tl.constexpr,
    members: tl.constexpr,
    d: tl.constexpr,
    half: tl.constexpr,
    half_block: tl.constexpr,
    rest_block: tl.constexpr,
    d_block: tl.constexpr,
    rows: tl.constexpr,
    splits: tl.constexpr,
    joins: tl.constexpr,
    back: tl.constexpr,
):
    position = tl.program_id(0)
    per_group: tl.constexpr = members - 2
    heads: tl.constexpr = groups * per_group
    # The same angles for all heads, and for all sequences but where these differ.
    angles = frequencies + position.to(tl.int64) * position_stride
    cos, sin = _cosines_and_sines(angles, half, half_block, back)
    for sequence in range(0, batch):
        if by_sequence:
            cos, sin = _cosines_and_sines(angles + sequence * sequence_stride, half, half_block, back)
        token = position.to(tl.int64) * batch + sequence
        qkv = joined + token * (groups * members * d)
        queries, keys = query + token * (heads * d), key + token * (groups * d)
        for first in tl.static_range(0, heads, rows):
            head = first + tl.arange(0, rows)
            where = ((head // per_group) * members + head % per_group) * d
            _rotate_rows(
                qkv, where, queries, head * d, head < heads, cos, sin, d, half, half_block, rest_block, splits, joins
            )
        for first in tl.static_range(0, groups, rows):
            group = first + tl.arange(0, rows)
            where = (group * members + per_group) * d
            _rotate_rows(
                qkv, where, keys, group * d, group < groups, cos, sin, d, half, half_block, rest_block, splits, joins
            )
            if splits or joins:
                every = tl.arange(0, d_block)
                here = (group < groups)[:, None] & (every < d)[None, :]
                there = qkv + (where + d)[:, None] + every[None, :]
                apart = value + token * (groups * d) + (group * d)[:, None] + every[None, :]
                if splits:
                    tl.store(apart, tl.load(there, mask=here), mask=here)
                else:
                    tl.store(there, tl.load(apart, mask=here), mask=here)


@triton.jit
def _cosines_and_sines(angles, half: tl.constexpr, half_block: tl.constexpr, back: tl.constexpr):
    """Both [1, half_block]; `back`: of the angles the other way."""
    channels = tl.arange(0, half_block)
    turned = tl.load(angles + channels, mask=channels < half, other=0.0)
    cos, sin = tl.cos(turned)[None, :], tl.sin(turned)[None, :]
    if back:
        sin = -sin
    return cos, sin


@triton.jit
def _rotate_rows(
    in_joined,
    where,
    apart,
    row,
    is_row,
    cos,
    sin,
    d: tl.constexpr,
    half: tl.constexpr,
    half_block: tl.constexpr,
    rest_block: tl.constexpr,
    splits: tl.constexpr,
    joins: tl.constexpr,
):
    """Channels [0, half) and [half, 2 · half) of some heads are the pairs; the rest goes along."""
    channels = tl.arange(0, half_block)
    pairs = is_row[:, None] & (channels < half)[None, :]
    there, here = in_joined + where[:, None] + channels[None, :], apart + row[:, None] + channels[None, :]
    source = here if joins else there
    target = here if splits else there
    x, y = tl.load(source, mask=pairs).to(tl.float32), tl.load(source + half, mask=pairs).to(tl.float32)
    tl.store(target, (x * cos - y * sin).to(target.dtype.element_ty), mask=pairs)
    tl.store(target + half, (y * cos + x * sin).to(target.dtype.element_ty), mask=pairs)
    if d > 2 * half and (splits or joins):
        rest = 2 * half + tl.arange(0, rest_block)
        pairs = is_row[:, None] & (rest < d)[None, :]
        there, here = in_joined + where[:, None] + rest[None, :], apart + row[:, None] + rest[None, :]
        source = here if joins else there
        target = here if splits else there
        tl.store(target, tl.load(source, mask=pairs), mask=pairs)
