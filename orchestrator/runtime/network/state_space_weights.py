"""Initial values of what only state space layers have, as Mamba-2 draws them (Dao & Gu 2024), and gated delta nets, as
megatron-core does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import torch

from orchestrator.models.blocks.state_space.parameters import CONVOLUTION

Draw = Callable[[torch.Tensor, torch.Generator], Any]
"""Fills a whole parameter in place."""

_SHORTEST_STEP, _LONGEST_STEP = 1e-3, 1e-1
_LARGEST_DECAY = 16.0


def _decay(whole: torch.Tensor, generator: torch.Generator) -> None:
    """log A, A uniform from 1 to 16."""
    whole.uniform_(1.0, _LARGEST_DECAY, generator=generator).log_()


def _step(whole: torch.Tensor, generator: torch.Generator) -> None:
    """What softplus makes steps of, which are spread evenly by their logarithm."""
    step = whole.uniform_(math.log(_SHORTEST_STEP), math.log(_LONGEST_STEP), generator=generator).exp_()
    whole.copy_(step + torch.log(-torch.expm1(-step)))


def _convolution(whole: torch.Tensor, generator: torch.Generator) -> None:
    bound = 1 / math.sqrt(CONVOLUTION)
    whole.uniform_(-bound, bound, generator=generator)


def _channels(whole: torch.Tensor, generator: torch.Generator) -> None:
    """[channels, 1, tokens that the convolution looks at]."""
    bound = 1 / math.sqrt(whole.size(-1))
    whole.uniform_(-bound, bound, generator=generator)


def _ones(whole: torch.Tensor, generator: torch.Generator) -> None:
    whole.fill_(1.0)


_DRAWS: tuple[tuple[str, Draw], ...] = (
    (r"mixer\.A_log$", _decay),
    (r"mixer\.dt_bias$", _step),
    (r"mixer\.D$", _ones),
    (r"mixer\.norm\.weight$", _ones),  # never zero-centred, as others may be
    (r"mixer\.conv1d[._](weight|bias)", _convolution),
    (r"self_attention\.A_log$", _decay),
    (r"self_attention\.dt_bias$", _ones),
    (r"self_attention\.out_norm\.weight$", _ones),
    (r"self_attention\.conv1d\.weight$", _channels),
)


def state_space_draw(key: str) -> Draw | None:
    """How a parameter is filled, by its key in a checkpoint; None for what other layers have as well."""
    return next((draw for pattern, draw in _DRAWS if re.search(pattern, key)), None)
