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


def chunked_delta_rule(inputs: Inputs, state: torch.Tensor | None, chunk: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What the states give for each token [b, s, heads, v], and the last ones, [b, heads, k, v], both in fp32."""
    batch, length, heads, width = inputs.key.shape
    chunk = min(chunk, length)
    padding = -length % chunk

    def in_chunks(tensor: torch.Tensor) -> torch.Tensor:
        """[b, heads, chunks, tokens, ...]"""
        padded = functional.pad(tensor, (*(0, 0) * (tensor.dim() - 2), 0, padding))
        return padded.view(batch, -1, chunk, *padded.shape[2:]).movedim(3, 1)

    query, key, value, decay, beta = map(in_chunks, inputs)
    query, beta, total = query / math.sqrt(width), beta[..., None], decay.cumsum(dim=-1)
    # From each token to each later one of its chunk.
    kept = (total[..., :, None] - total[..., None, :]).tril().exp().tril()
    written = (beta * key) @ key.transpose(-1, -2) * kept
    scores = query @ key.transpose(-1, -2) * kept
    # What each token of a chunk writes hangs on what those before it wrote: (1 + L) x = y with L strictly lower.
    # The inverse, as solving for a wide right side takes a GPU three times as long.
    inverse = torch.linalg.solve_triangular(
        written.tril(-1), torch.eye(chunk, device=key.device), upper=False, unitriangular=True
    )
    values, keys = inverse @ (beta * value), inverse @ (beta * key * total.exp()[..., None])
    # A state S becomes last · S + keyᵀ (values - keys S).
    key = (key * (total[..., -1:] - total).exp()[..., None]).transpose(-1, -2)
    change = -(key @ keys)
    change.diagonal(dim1=-2, dim2=-1).add_(total[..., -1, None].exp())
    if state is None:
        state = values.new_zeros(batch, heads, width, values.size(-1))
    states, state = _states(change, key @ values, state)
    out = (query * total.exp()[..., None]) @ states + scores @ (values - keys @ states)
    return out.flatten(2, 3)[:, :, :length].transpose(1, 2), state


def _states(change: torch.Tensor, added: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    apply: Any = _Chained.apply
    found: tuple[torch.Tensor, torch.Tensor] = apply(change, added, state)
    return found


class _Chained(torch.autograd.Function):
    """The states before each chunk [b, heads, chunks, k, v], and the last one: each is `change` [.., k, k] times the
    one before it, plus `added` [.., k, v].
    """

    @staticmethod
    def forward(
        ctx: Any, change: torch.Tensor, added: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        states = _chain(change.unbind(2), added.unbind(2), state)
        last = states.pop()
        before = torch.stack([each.view_as(state) for each in states], dim=2)
        ctx.save_for_backward(change, before)
        return before, last.view_as(state)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_states: torch.Tensor, of_last: torch.Tensor) -> tuple[torch.Tensor, ...]:
        change, before = ctx.saved_tensors
        transposed = [each.transpose(-1, -2) for each in reversed(change.unbind(2))]
        gradients = _chain(transposed, list(reversed(of_states.unbind(2))), of_last)
        of_state = gradients.pop().view_as(of_last)
        of_added = torch.stack([each.view_as(of_last) for each in reversed(gradients)], dim=2)
        return of_added @ before.transpose(-1, -2), of_added, of_state


def _chain(changes: Any, added: Any, state: torch.Tensor) -> list[torch.Tensor]:
    """The states [b · heads, k, v] before each chunk, and behind the last one."""
    found = [state.flatten(0, 1)]
    for change, more in zip(changes, added, strict=True):
        found.append(torch.baddbmm(more.flatten(0, 1), change.flatten(0, 1), found[-1]))
    return found
