"""What the norms around the branches of a layer move, and their kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.models.blocks.base import NOTHING, ForwardBackward

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import Fields

_TWO_NORMS = ForwardBackward(2, 4)
"""Kernels, of what attention and MLP give; counted, not measured."""


def norms(model: Fields, norm: ForwardBackward) -> ForwardBackward:
    """Accesses of those of a branch, from the accesses of one."""
    return NOTHING.plus(norm, model.norms_of_a_layer / 2)


def more_launches(model: Fields) -> ForwardBackward:
    """Kernels of a layer's norms beside two of them."""
    return NOTHING.plus(_TWO_NORMS, model.norms_of_a_layer / 2 - 1)
