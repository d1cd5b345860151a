"""Rotating the queries and keys of a projection's output on a GPU, in one kernel: where they are, or on the way to
tensors of their own.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_ROWS, _WARPS = 16, 4
"""Heads that a program rotates at a time, and by how many warps."""


def rotate(packed: torch.Tensor, frequencies: torch.Tensor, *, back: bool = False) -> None:
    """Rotate queries and keys where they are; `back`: by the same angles, the other way.

    packed: [s, b, groups, heads per group + 2, d], contiguous; frequencies: [s, 1, 1, r], in radians, r <= d.
    """
    _launch(packed, packed, packed, packed, frequencies, unpacks=False, packs=False, back=back)


def unpack(packed: torch.Tensor, frequencies: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries [s, b, heads, d] and keys [s, b, groups, d], rotated, and values, from what `rotate` takes."""
    s, b, groups, members, d = packed.shape
    query = packed.new_empty(s, b, groups * (members - 2), d)
    key, value = packed.new_empty(s, b, groups, d), packed.new_empty(s, b, groups, d)
    _launch(packed, query, key, value, frequencies, unpacks=True, packs=False, back=False)
    return query, key, value


def pack(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
    """Gradients of what `unpack` returns, all contiguous, rotated back into one of its input."""
    s, b, heads, d = query.shape
    packed = query.new_empty(s, b, key.size(2), heads // key.size(2) + 2, d)
    _launch(packed, query, key, value, frequencies, unpacks=False, packs=True, back=True)
    return packed


def _launch(
    packed: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    frequencies: torch.Tensor,
    *,
    unpacks: bool,
    packs: bool,
    back: bool,
) -> None:
    s, b, groups, members, d = packed.shape
    half = frequencies.size(-1) // 2
    _rotate[(s,)](
        packed,
        query,
        key,
        value,
        frequencies,
        b,
        frequencies.stride(0),
        groups=groups,
        members=members,
        d=d,
        half=half,
        half_block=_power_of_two(half),
        rest_block=_power_of_two(max(d - 2 * half, 1)),
        d_block=_power_of_two(d),
        rows=min(_ROWS, _power_of_two(groups * (members - 2))),
        unpacks=unpacks,
        packs=packs,
        back=back,
        num_warps=_WARPS,
    )


def _power_of_two(count: int) -> int:
    """The least that is not less."""
    return 1 << (count - 1).bit_length()


@triton.jit
def _rotate(
    packed,
    query,
    key,
    value,
    frequencies,
    batch,
    frequency_stride,
    groups: tl.constexpr,
    members: tl.constexpr,
    d: tl.constexpr,
    half: tl.constexpr,
    half_block: tl.constexpr,
    rest_block: tl.constexpr,
    d_block: tl.constexpr,
    rows: tl.constexpr,
    unpacks: tl.constexpr,
    packs: tl.constexpr,
    back: tl.constexpr,
):
    position = tl.program_id(0)
    per_group: tl.constexpr = members - 2
    heads: tl.constexpr = groups * per_group
    # The same angles for all sequences, and for all heads.
    channels = tl.arange(0, half_block)
    angles = tl.load(frequencies + position * frequency_stride + channels, mask=channels < half, other=0.0)
    cos, sin = tl.cos(angles)[None, :], tl.sin(angles)[None, :]
    if back:
        sin = -sin
    for sequence in range(0, batch):
        token = position.to(tl.int64) * batch + sequence
        qkv = packed + token * (groups * members * d)
        queries, keys = query + token * (heads * d), key + token * (groups * d)
        for first in tl.static_range(0, heads, rows):
            head = first + tl.arange(0, rows)
            where = ((head // per_group) * members + head % per_group) * d
            _rotate_rows(
                qkv, where, queries, head * d, head < heads, cos, sin, d, half, half_block, rest_block, unpacks, packs
            )
        for first in tl.static_range(0, groups, rows):
            group = first + tl.arange(0, rows)
            where = (group * members + per_group) * d
            _rotate_rows(
                qkv, where, keys, group * d, group < groups, cos, sin, d, half, half_block, rest_block, unpacks, packs
            )
            if unpacks or packs:
                every = tl.arange(0, d_block)
                here = (group < groups)[:, None] & (every < d)[None, :]
                there = qkv + (where + d)[:, None] + every[None, :]
                apart = value + token * (groups * d) + (group * d)[:, None] + every[None, :]
                if unpacks:
                    tl.store(apart, tl.load(there, mask=here), mask=here)
                else:
                    tl.store(there, tl.load(apart, mask=here), mask=here)


@triton.jit
def _rotate_rows(
    in_packed,
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
    unpacks: tl.constexpr,
    packs: tl.constexpr,
):
    """Channels [0, half) and [half, 2 · half) of some heads are the pairs; the rest goes along."""
    channels = tl.arange(0, half_block)
    pairs = is_row[:, None] & (channels < half)[None, :]
    there, here = in_packed + where[:, None] + channels[None, :], apart + row[:, None] + channels[None, :]
    source = here if packs else there
    target = here if unpacks else there
    x, y = tl.load(source, mask=pairs).to(tl.float32), tl.load(source + half, mask=pairs).to(tl.float32)
    tl.store(target, (x * cos - y * sin).to(target.dtype.element_ty), mask=pairs)
    tl.store(target + half, (y * cos + x * sin).to(target.dtype.element_ty), mask=pairs)
    if d > 2 * half and (unpacks or packs):
        rest = 2 * half + tl.arange(0, rest_block)
        pairs = is_row[:, None] & (rest < d)[None, :]
        there, here = in_packed + where[:, None] + rest[None, :], apart + row[:, None] + rest[None, :]
        source = here if packs else there
        target = here if unpacks else there
        tl.store(target, tl.load(source, mask=pairs), mask=pairs)
