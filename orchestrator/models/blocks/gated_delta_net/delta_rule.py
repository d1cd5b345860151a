"""The gated delta rule in torch's operations: products inside of chunks of tokens, and states from chunk to chunk (Yang
et al. 2024, arXiv:2412.06464, section 3.3; torch_chunk_gated_delta_rule of transformers).

Everything is a product of all chunks at once, except one product for each chunk, as its state hangs on the one before.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional


class Inputs(NamedTuple):
    """What the delta rule takes, of tokens [b, s] in fp32."""

    query: torch.Tensor
    """[b, s, value heads, k], of length 1, as the keys."""
    key: torch.Tensor
    value: torch.Tensor
    """[b, s, value heads, v]"""
    decay: torch.Tensor
    """[b, s, value heads]: the logarithm of what a state keeps."""
    beta: torch.Tensor
    """[b, s, value heads]: how much is written to it."""


def chunked_delta_rule(
    inputs: Inputs, state: torch.Tensor | None, chunk: int, segments: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the states give for each token [b, s, heads, v], and the last ones, [b, heads, k, v], both in fp32.
    segments: [b, s], of sequences of several texts, each of which begins with an empty state.
    """
    batch, length, heads, width = inputs.key.shape
    chunk = min(chunk, length)
    query, key, value, decay, beta = (_in_chunks(each, chunk) for each in inputs)
    query, beta, total = query / math.sqrt(width), beta[..., None], decay.cumsum(dim=-1)
    # From each token to each later one of its chunk; from before the chunk to each; and from each to behind it.
    kept = (total[..., :, None] - total[..., None, :]).tril().exp().tril()
    since, until, last = total.exp(), (total[..., -1:] - total).exp(), total[..., -1:].exp()
    if segments is not None:
        kept, since, until, last = _kept_apart((kept, since, until, last), segments, chunk)
    written = beta * key
    # What each token of a chunk writes hangs on what those before it wrote: (1 + L) x = y with L strictly lower. The
    # inverse, as solving for a wide right side takes a GPU three times as long.
    lower = (written @ key.transpose(-1, -2) * kept).tril(-1)
    inverse = torch.linalg.solve_triangular(
        lower, torch.eye(chunk, device=key.device, dtype=key.dtype), upper=False, unitriangular=True
    )
    values, keys = inverse @ (beta * value), inverse @ (written * since[..., None])
    scores = query @ key.transpose(-1, -2) * kept
    # A state S becomes last · S + keyᵀ (values - keys S).
    key = (key * until[..., None]).transpose(-1, -2)
    change = -(key @ keys)
    change.diagonal(dim1=-2, dim2=-1).add_(last)
    if state is None:
        state = values.new_zeros(batch, heads, width, values.size(-1))
    states, state = _states(change, key @ values, state)
    out = (query * since[..., None]) @ states + scores @ (values - keys @ states)
    return out.permute(1, 0, 3, 2, 4).flatten(1, 2)[:, :length], state


def _in_chunks(tensor: torch.Tensor, chunk: int) -> torch.Tensor:
    """[b, s, heads, ...] as [chunks, b, heads, tokens, ...], filled up with zeros."""
    padding = -tensor.size(1) % chunk
    if padding:
        tensor = functional.pad(tensor, (*(0, 0) * (tensor.dim() - 2), 0, padding))
    cut = tensor.view(tensor.size(0), -1, chunk, *tensor.shape[2:])
    return cut.transpose(0, 1).transpose(2, 3).contiguous()


def _kept_apart(kept: tuple[torch.Tensor, ...], segments: torch.Tensor, chunk: int) -> tuple[torch.Tensor, ...]:
    """What a state keeps inside of chunks, since and until their borders, and over whole ones, where it keeps nothing
    from one text to the next.
    """
    inside, since, until, over = kept
    padding = -segments.size(1) % chunk
    own = torch.cat((segments, segments[:, -1:].expand(-1, padding)), dim=1)
    own = own.view(segments.size(0), -1, chunk).transpose(0, 1)[:, :, None]  # [chunks, b, 1, tokens]
    before = torch.cat((own[:1, ..., :1], own[:-1, ..., -1:]))
    return (
        inside * (own[..., :, None] == own[..., None, :]),
        since * (own == before),
        until * (own == own[..., -1:]),
        over * (own[..., -1:] == before),
    )


def _states(change: torch.Tensor, added: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    apply: Any = _Chained.apply
    found: tuple[torch.Tensor, torch.Tensor] = apply(change, added, state)
    return found


class _Chained(torch.autograd.Function):
    """The states before each chunk [chunks, b, heads, k, v], and the last one [b, heads, k, v]: each is `change`
    [chunks, b, heads, k, k] times the one before it, plus `added` [chunks, b, heads, k, v].
    """

    @staticmethod
    def forward(
        ctx: Any, change: torch.Tensor, added: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        states = torch.cat((state[None], added))
        each = states.flatten(1, 2).unbind()
        for of_chunk, before, after in zip(change.flatten(1, 2).unbind(), each, each[1:], strict=False):
            after.baddbmm_(of_chunk, before)
        ctx.save_for_backward(change, states)
        return states[:-1], states[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_states: torch.Tensor, of_last: torch.Tensor) -> tuple[torch.Tensor, ...]:
        change, states = ctx.saved_tensors
        gradients = torch.cat((of_states, of_last[None]))
        transposed, each = change.flatten(1, 2).transpose(-1, -2).unbind(), gradients.flatten(1, 2).unbind()
        for number in reversed(range(len(transposed))):
            each[number].baddbmm_(transposed[number], each[number + 1])
        return gradients[1:] @ states[:-1].transpose(-1, -2), gradients[1:], gradients[0]
