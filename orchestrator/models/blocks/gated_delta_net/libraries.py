"""Whether a GPU computes a gated delta net with the kernels of flash-linear-attention (fla)."""

from __future__ import annotations

import importlib.util
import re

_HOPPER = 9
_WRONG_TRITON = (3, 4), (3, 7, 1)
"""From which version to which Triton compiles fla's gradients wrongly for Hopper: fla refuses them (its issue 640)."""


def fla_trouble(capability: tuple[int, int]) -> str | None:
    """Why a GPU of this compute capability does not compute linear attention with fla's kernels, as the rest of a
    sentence; None where it does. Nothing is imported.
    """
    if importlib.util.find_spec("fla") is None:
        return "flash-linear-attention is not installed"
    if capability[0] != _HOPPER or importlib.util.find_spec("tilelang") is not None:
        return None
    from importlib.metadata import version  # a twentieth of the time of `validate`, which asks for no version

    triton = version("triton")
    numbers = tuple(map(int, re.findall(r"\d+", triton)[:3]))
    if not _WRONG_TRITON[0] <= numbers < _WRONG_TRITON[1]:
        return None
    return f"Triton {triton} computes their gradients wrongly on Hopper GPUs: install triton 3.7.1, or tilelang"
