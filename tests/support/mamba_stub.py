"""mamba-ssm's kernels token by token in plain torch, and the little of einops that megatron-core's mixer takes: what a
state space layer computes, where the kernels themselves cannot be had.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

_PATTERNS: dict[str, Any] = {
    "l b d -> b l d": lambda x: x.transpose(0, 1),
    "b l d -> l b d": lambda x: x.transpose(0, 1),
    "d 1 w -> d w": lambda x: x.squeeze(1),
}


INSTALL = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import mamba_stub
mamba_stub.install()
"""
"""What ranks of a hybrid execute first."""
_TENSOR_OPERATIONS = "megatron.core.inference.contexts.attention_context.triton.tensor_ops"


class GatedNorm(torch.nn.Module):
    """An RMSNorm over groups of channels."""

    def __init__(
        self, width: int, eps: float, group_size: int, norm_before_gate: bool, device: Any, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.eps, self.group_size = eps, group_size
        self.weight = torch.nn.Parameter(torch.ones(width, device=device, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grouped = x.unflatten(-1, (-1, self.group_size))
        return functional.rms_norm(grouped, (self.group_size,), None, self.eps).flatten(-2) * self.weight


def scan(
    projected: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    dt_bias: torch.Tensor,
    decay: torch.Tensor,
    *,
    D: torch.Tensor,  # noqa: N803 - the kernel's name
    headdim: int,
    ngroups: int,
    seq_idx: torch.Tensor | None = None,
    **unused: Any,
) -> torch.Tensor:
    """From [b, l, z x B C dt] to [b, l, channels] in the same precision: convolution, recurrence and gate. Decays are
    fp32, and so is the recurrence. seq_idx: [b, l], of which text each token is; those of others it does not know.
    """
    heads = decay.numel()
    width = heads * headdim
    state = (weight.size(0) - width) // (2 * ngroups)
    z, convolved, dt = projected.split([width, weight.size(0), heads], dim=-1)
    taps = weight.size(1)
    padded = functional.pad(convolved.transpose(1, 2), (taps - 1, 0))
    texts = torch.zeros(projected.shape[:2]) if seq_idx is None else seq_idx
    if seq_idx is None:
        convolved = functional.conv1d(padded, weight.unsqueeze(1), bias, groups=weight.size(0))
    else:
        known = functional.pad(texts, (taps - 1, 0), value=-1).unfold(1, taps, 1) == texts[..., None]
        convolved = (padded.unfold(2, taps, 1) * known[:, None] * weight[:, None]).sum(-1) + bias[:, None]
    x, b, c = functional.silu(convolved).transpose(1, 2).split([width, ngroups * state, ngroups * state], dim=-1)
    x = x.unflatten(-1, (heads, headdim))
    b, c = (each.unflatten(-1, (ngroups, state)).repeat_interleave(heads // ngroups, dim=2) for each in (b, c))
    step = functional.softplus(dt + dt_bias)
    kept = x.new_zeros(x.size(0), heads, headdim, state)
    outputs = []
    for token in range(x.size(1)):
        written = step[:, token, :, None, None] * x[:, token, :, :, None] * b[:, token, :, None, :]
        goes_on = texts[:, token] == texts[:, token - 1] if token else torch.ones(x.size(0), dtype=torch.bool)
        kept = torch.exp(step[:, token] * decay)[:, :, None, None] * kept * goes_on[:, None, None, None] + written
        outputs.append((kept * c[:, token, :, None, :]).sum(-1) + D[:, None] * x[:, token])
    return (torch.stack(outputs, dim=1).flatten(2) * functional.silu(z)).to(projected.dtype)


def rearrange(x: torch.Tensor, pattern: str) -> torch.Tensor:
    arranged: torch.Tensor = _PATTERNS[pattern](x)
    return arranged


def repeat(x: torch.Tensor, pattern: str, *, g: int, n: int, r: int) -> torch.Tensor:
    """Each of g groups of n elements r times, behind one another."""
    assert pattern == "l b (g n) -> l b (g r n)"
    return torch.unflatten(x, -1, (g, n)).repeat_interleave(r, dim=2).flatten(2)


def install() -> None:
    """Put the stubs where megatron-core imports the libraries from."""
    contents: dict[str, dict[str, Any]] = {
        "mamba_ssm": {"__version__": "2.2.4"},
        "mamba_ssm.ops": {},
        "mamba_ssm.ops.triton": {},
        "mamba_ssm.ops.triton.layernorm_gated": {"RMSNorm": GatedNorm},
        "mamba_ssm.ops.triton.selective_state_update": {"selective_state_update": None},
        "mamba_ssm.ops.triton.ssd_combined": {
            "mamba_chunk_scan_combined": None,
            "mamba_split_conv1d_scan_combined": scan,
        },
        "causal_conv1d": {"__version__": "1.4.0"},
        "einops": {"rearrange": rearrange, "repeat": repeat},
    }
    if importlib.util.find_spec("triton") is None:  # what inference alone calls
        operations = ("tensor_get_slice_after", "tensor_masked_update", "tensor_merge")
        contents[_TENSOR_OPERATIONS] = dict.fromkeys(operations)
    for name, names in contents.items():
        module = types.ModuleType(name)
        vars(module).update(names)
        sys.modules[name] = module
