"""How long to train, and how the learning rate moves."""

from __future__ import annotations

from typing import Literal

from orchestrator.spec.base import Section
from orchestrator.spec.values import Count, Fraction, NonNegative, NonNegativeCount


class ScheduleSpec(Section):
    """How long to train and how the learning rate moves. Exactly one of the three lengths is written."""

    train_iters: Count | None = None
    """Length in optimizer steps."""
    train_samples: Count | None = None
    """Length in sequences, rounded up to whole steps."""
    train_tokens: Count | None = None
    """Length in tokens, rounded up to whole steps."""
    drop_last: bool = False
    """Round `train_samples` or `train_tokens` down, as Megatron-LM does: a last batch that is not whole is left out
    unless it begins during the ramp-up. The learning rate, the weight decay and the order of the data keep to the
    length as it is written."""
    lr_decay_style: Literal["constant", "linear", "cosine", "inverse-square-root", "WSD"] = "cosine"
    """Shape of the decay from `lr` to `min_lr`; `WSD` is warm-up, stable at `lr`, and decay at the end."""
    lr_decay_iters: Count | None = None
    """Steps over which the rate decays; the whole training by default."""
    lr_decay_samples: Count | None = None
    """Sequences over which the rate decays."""
    lr_wsd_decay_style: Literal["exponential", "linear", "cosine", "minus_sqrt"] = "exponential"
    """WSD: shape of the decay at the end."""
    lr_wsd_decay_iters: NonNegativeCount | None = None
    """WSD: steps of the decay at the end; they are part of the decay as a whole. With 0 the rate is `lr`
    until that ends."""
    lr_wsd_decay_samples: NonNegativeCount | None = None
    """WSD: the same in sequences."""
    lr_warmup_iters: NonNegativeCount | None = None
    """Steps of linear warm-up; at most one of the three warm-ups is written."""
    lr_warmup_samples: NonNegativeCount | None = None
    """Sequences of linear warm-up."""
    lr_warmup_fraction: Fraction | None = None
    """Linear warm-up as a part of the decay."""
    lr_warmup_init: NonNegative = 0.0
    """Learning rate at the first step of the warm-up."""
