"""Micro-batches, the global batch, and its ramp-up."""

from typing import Annotated, Any

from pydantic import model_validator

from orchestrator.fields import resume
from orchestrator.fields.base import Section
from orchestrator.fields.metadata import REQUIRED, AlsoCalled, HashedIfChanged, MegatronFlag, ShortName
from orchestrator.fields.values import Count, Positive


class RampupSpec(Section):
    """Grow the global batch linearly. Megatron's `[start, increment, samples]` is accepted too."""

    start_global_batch_size: Positive
    """Global batch at the first step."""
    increment: Positive
    """How much the global batch grows at a time."""
    samples: Count
    """Samples over which it grows to its full size."""

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, value: Any) -> Any:
        if isinstance(value, list) and len(value) == 3:
            return dict(zip(("start_global_batch_size", "increment", "samples"), value, strict=True))
        return value


class BatchSpec(Section):
    """Write `global_batch_size` or `num_micro_batches`; the other follows: global = micro · num_micro_batches · DP."""

    micro_batch_size: Annotated[
        Positive,
        resume.micro_batch,
        ShortName("mbs"),
        AlsoCalled(
            "mbs micro_bs microbatch_size local_batch_size batch_size train_micro_batch_size_per_gpu "
            "device_train_microbatch_size device_train_batch_size per_device_train_batch_size "
            "per_device_batch_size"
        ),
        MegatronFlag(default=REQUIRED, old_names=("batch-size",)),
    ] = 1
    """Sequences in one forward/backward pass of one replica."""
    global_batch_size: Annotated[
        Positive | None,
        resume.global_batch,
        ShortName("gbs"),
        AlsoCalled("batch_size gbs train_batch_size global_train_batch_size total_batch_size"),
    ] = None
    """Sequences per optimizer step over all replicas."""
    num_micro_batches: Annotated[
        Positive | None,
        resume.global_batch,
        AlsoCalled(
            "gradient_accumulation_steps grad_accumulation_steps gradient_accumulation accumulate_grad_batches "
            "num_microbatches megatron_lm_num_micro_batches"
        ),
    ] = None
    """Forward/backward passes per step and replica (gradient accumulation, pipeline micro-batches)."""
    rampup_batch_size: Annotated[RampupSpec | None, resume.GLOBAL_BATCH, AlsoCalled("rampup batch_size_rampup")] = None
    """Start with a smaller global batch."""
    calculate_per_token_loss: Annotated[
        bool | None, resume.same_or(lambda job: job.has_per_token_loss, resume.LOSS), HashedIfChanged()
    ] = None
    """Give each token of the global batch the same weight; `false` averages within each micro-batch and then over
    micro-batches, as Megatron-LM does without the flag of this name. By default true if micro-batches count different
    numbers of tokens (T5, `data.eod_mask_loss`, `data.chat`), except for BERT."""
