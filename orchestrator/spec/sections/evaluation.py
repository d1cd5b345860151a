"""Periodic evaluation."""

from typing import Annotated

from orchestrator.fields.base import Section
from orchestrator.fields.metadata import AlsoCalled, HashedIfChanged
from orchestrator.fields.values import Positive


class EvaluationSpec(Section):
    """Loss and perplexity on the validation split."""

    eval_interval: Annotated[Positive | None, AlsoCalled("eval_steps eval_every val_check_interval")] = None
    """Steps between evaluations; none by default."""
    eval_iters: Annotated[Positive, AlsoCalled("eval_batches limit_val_batches")] = 10
    """Global batches per evaluation."""
    same_samples: Annotated[bool, HashedIfChanged()] = True
    """Read the same samples each time, the first of the validation set; `false` continues through the set from one
    evaluation to the next, as Megatron-LM does."""
    eval_at_start: Annotated[bool, AlsoCalled("eval_on_start")] = False
    """Evaluate once before the first step."""
    eval_at_end: bool = True
    """Evaluate after the last step (when `eval_interval` is set)."""
