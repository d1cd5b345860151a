"""Periodic evaluation."""

from __future__ import annotations

from orchestrator.spec.base import Section
from orchestrator.spec.values import Positive


class EvaluationSpec(Section):
    """Loss and perplexity on the validation split."""

    eval_interval: Positive | None = None
    """Steps between evaluations; none by default."""
    eval_iters: Positive = 10
    """Global batches per evaluation."""
    same_samples: bool = True
    """Read the same samples each time, the first of the validation set; `false` goes on through the set from one
    evaluation to the next, as Megatron-LM does."""
    eval_at_start: bool = False
    """Evaluate once before the first step."""
    eval_at_end: bool = True
    """Evaluate after the last step (when `eval_interval` is set)."""
