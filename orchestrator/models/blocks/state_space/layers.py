"""A state space layer in the layers that train; and where it generates, what it keeps from token to token, and its scan
in plain torch, which needs no kernels and takes any number of tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from orchestrator.models.blocks.base import LayerSetup
from orchestrator.models.blocks.state_space.parameters import CONVOLUTION

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import StateSpaceFields

PIECE = 64
"""Tokens whose pairs are computed at once."""
_KEPT = CONVOLUTION - 1


def settings(model: StateSpaceFields, setup: LayerSetup) -> dict[str, Any]:
    """Attributes of the layers' configuration."""
    if not model.family.is_hybrid:
        return {}
    return {
        "mamba_state_dim": model.mamba_state_dim,
        "mamba_head_dim": model.mamba_head_dim,
        "mamba_num_groups": model.mamba_num_groups,
        "mamba_num_heads": model.mamba_num_heads,
    }


def keep(layer: Any, with_cache: Callable[[Any], Any]) -> Any:
    """Let a built layer keep its states."""
    layer.mixer.number = layer.layer_number
    return layer.mixer


def go_on(mixer: Any, projected: torch.Tensor, cache: Any, number: int) -> torch.Tensor:
    """From the first matrix's output [s, b, z x B C dt] to what the second one takes, [s, b, channels], by way of what
    the layer `number` keeps in the cache: the last inputs of the convolution and the state.
    """
    width, states, heads = mixer.d_inner_local_tp, mixer.ngroups_local_tp * mixer.d_state, mixer.nheads_local_tp
    gate, inputs, dt = torch.split(projected.transpose(0, 1), [width, width + 2 * states, heads], dim=-1)
    batch, length = inputs.shape[:2]
    if cache.positions is None:
        lengths = cache.lengths
        before = inputs.new_zeros(batch, _KEPT, inputs.size(-1))
        state = torch.zeros(batch, heads, mixer.headdim, mixer.d_state, device=inputs.device)
    else:
        lengths = torch.ones_like(cache.positions[:, 0])
        before, state = cache.state(number, "convolved"), cache.state(number, "recurrent")
    inputs = torch.cat([before, inputs], dim=1)
    convolved = functional.conv1d(
        inputs.transpose(1, 2), mixer.conv1d.weight, mixer.conv1d.bias, groups=inputs.size(-1)
    )
    x, b, c = torch.split(functional.silu(convolved).transpose(1, 2).float(), [width, states, states], dim=-1)
    x = torch.unflatten(x, -1, (heads, mixer.headdim))
    b, c = (torch.unflatten(each, -1, (mixer.ngroups_local_tp, mixer.d_state)) for each in (b, c))
    # Behind the end of a row no time passes: its state stays what it was there.
    is_text = torch.arange(length, device=lengths.device) < lengths[:, None]
    dt = functional.softplus(dt.float() + mixer.dt_bias.float()) * is_text[..., None]
    found, state = scan(x, dt, -torch.exp(mixer.A_log.float()), b, c, state)
    last = lengths[:, None] + torch.arange(_KEPT, device=lengths.device)
    cache.keep(number, "convolved", inputs[torch.arange(batch, device=last.device)[:, None], last])
    cache.keep(number, "recurrent", state)
    found = (found + mixer.D.float()[:, None] * x).flatten(2) * functional.silu(gate.float())
    normed: torch.Tensor = mixer.norm(found.to(projected.dtype))
    return normed.transpose(0, 1)


def scan(
    x: torch.Tensor, dt: torch.Tensor, decay: torch.Tensor, b: torch.Tensor, c: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The recurrence of Mamba-2 (Dao & Gu 2024, section 6), a piece of the tokens at once.

    x: [b, s, heads, p]; dt: [b, s, heads]; decay: [heads], negative; b and c: [b, s, groups, n]; state: [b, heads, p,
    n], before the first token. Returns [b, s, heads, p] and the state behind the last token.
    """
    per_group, found = x.size(2) // b.size(2), []
    b, c = (each.repeat_interleave(per_group, dim=2) for each in (b, c))
    for first in range(0, x.size(1), PIECE):
        x_, dt_, b_, c_ = (each[:, first : first + PIECE] for each in (x, dt, b, c))
        passed = (dt_ * decay).cumsum(dim=1)
        between = passed[:, :, None] - passed[:, None]  # [b, to, from, heads]
        ahead = torch.ones(between.shape[1:3], dtype=torch.bool, device=x.device).triu(1)
        weights = between.masked_fill(ahead[..., None], -torch.inf).exp()
        written = x_ * dt_[..., None]
        scores = torch.einsum("bihn,bjhn->bijh", c_, b_) * weights
        remembered = torch.einsum("bihn,bhpn->bihp", c_, state) * passed.exp()[..., None]
        found.append(torch.einsum("bijh,bjhp->bihp", scores, written) + remembered)
        left = (passed[:, -1:] - passed).exp()
        added = torch.einsum("bjhn,bjhp->bhpn", b_ * left[..., None], written)
        state = state * passed[:, -1].exp()[..., None, None] + added
    return torch.cat(found, dim=1), state
