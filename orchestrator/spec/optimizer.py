"""The optimizer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from orchestrator.spec.base import Section
from orchestrator.spec.values import NonNegative, PositiveNumber, refuse_bool

Beta = Annotated[float, Field(ge=0.0, lt=1.0), BeforeValidator(refuse_bool)]


class OptimizerSpec(Section):
    """Adam with decoupled weight decay (AdamW); biases and norms are not decayed."""

    name: Literal["adam"] = "adam"
    """The optimizer."""
    lr: PositiveNumber
    """Peak learning rate."""
    min_lr: NonNegative = 0.0
    """Learning rate at the end of the decay."""
    weight_decay: NonNegative = 0.01
    """Decoupled weight decay."""
    adam_beta1: Beta = 0.9
    """Decay of the first moment."""
    adam_beta2: Beta = 0.999
    """Decay of the second moment."""
    adam_eps: PositiveNumber = 1e-8
    """Added to the root of the second moment."""
    clip_grad: NonNegative = 1.0
    """Largest global L2 norm of the gradient; 0 turns clipping off."""
