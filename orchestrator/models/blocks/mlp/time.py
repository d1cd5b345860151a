"""What an MLP moves in memory and between ranks beside its matrices and its activation: nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.models.blocks.base import NOTHING, CoreWork, ForwardBackward

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import Fields


def moved(model: Fields, work: CoreWork) -> ForwardBackward:
    """Elements that kernels read and write between its matrices: none."""
    return NOTHING


def exchanged(model: Fields) -> int:
    """Elements of each token that ranks which share a sequence bring each other: none."""
    return 0


def gathered(model: Fields, tp: int) -> int:
    """Elements of each token that tensor-parallel ranks gather between its matrices: none."""
    return 0


def more_launches(model: Fields) -> ForwardBackward:
    """Kernels that the host starts more than `planning.time.kernels` says of a layer: none."""
    return NOTHING
