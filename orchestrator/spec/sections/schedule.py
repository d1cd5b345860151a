"""How long to train, and how the learning rate moves."""

from typing import Annotated, Literal

from orchestrator.fields import resume
from orchestrator.fields.base import Section
from orchestrator.fields.metadata import AlsoCalled, HashedIfChanged, MegatronFlag, ShortName
from orchestrator.fields.values import Count, Fraction, NonNegative, NonNegativeCount

_WSD = ("schedule.lr_decay_style", "WSD")


class ScheduleSpec(Section):
    """How long to train and how the learning rate changes. Set exactly one of the three lengths."""

    train_iters: Annotated[
        Count | None,
        resume.LENGTH,
        ShortName("iters"),
        AlsoCalled("max_steps max_iters train_steps training_steps total_steps num_steps steps"),
        MegatronFlag(),
    ] = None
    """Length in optimizer steps."""
    train_samples: Annotated[Count | None, resume.LENGTH, AlsoCalled("max_samples")] = None
    """Length in sequences, rounded up to whole steps."""
    train_tokens: Annotated[Count | None, resume.LENGTH, AlsoCalled("max_duration max_tokens total_tokens")] = None
    """Length in tokens, rounded up to whole steps."""
    drop_last: Annotated[bool, resume.LENGTH, HashedIfChanged()] = False
    """Round `train_samples` or `train_tokens` down, as Megatron-LM does: an incomplete last batch is dropped unless it
    begins during the ramp-up. The learning rate, the weight decay and the order of the data follow the length as
    written."""
    lr_decay_style: Annotated[
        Literal["constant", "linear", "cosine", "inverse-square-root", "WSD"],
        AlsoCalled("lr_scheduler lr_scheduler_type decay_type"),
        MegatronFlag(default="linear"),
    ] = "cosine"
    """Shape of the decay from `lr` to `min_lr`; `WSD` is warm-up, stable at `lr`, and decay at the end."""
    lr_decay_iters: Annotated[Count | None, AlsoCalled("decay_steps decay_iters"), MegatronFlag()] = None
    """Steps over which the rate decays; the complete training by default."""
    lr_decay_samples: Annotated[Count | None, MegatronFlag()] = None
    """Sequences over which the rate decays."""
    lr_wsd_decay_style: Annotated[Literal["exponential", "linear", "cosine", "minus_sqrt"], MegatronFlag(only=_WSD)] = (
        "exponential"
    )
    """WSD: shape of the decay at the end."""
    lr_wsd_decay_iters: Annotated[NonNegativeCount | None, MegatronFlag(only=_WSD)] = None
    """WSD: steps of the decay at the end, as part of the total decay. With 0, the rate is `lr` until the total decay
    ends."""
    lr_wsd_decay_samples: Annotated[NonNegativeCount | None, MegatronFlag(only=_WSD)] = None
    """WSD: the same in sequences."""
    lr_warmup_iters: Annotated[
        NonNegativeCount | None,
        AlsoCalled("warmup warmup_iters warmup_steps warmup_num_steps num_warmup_steps lr_warmup_steps"),
    ] = None
    """Steps of linear warm-up; set at most one of the three warm-ups."""
    lr_warmup_samples: Annotated[NonNegativeCount | None, AlsoCalled("warmup_samples")] = None
    """Sequences of linear warm-up."""
    lr_warmup_fraction: Annotated[Fraction | None, AlsoCalled("warmup_ratio warmup_fraction")] = None
    """Linear warm-up as a fraction of the decay."""
    lr_warmup_init: Annotated[NonNegative, MegatronFlag()] = 0.0
    """Learning rate at the first step of the warm-up."""
