"""When checkpoints are written and which are kept."""

from typing import Annotated, Literal

from pydantic import Field

from orchestrator.fields import resume
from orchestrator.fields.base import Section
from orchestrator.fields.metadata import AlsoCalled, HashedIfChanged, MegatronFlag
from orchestrator.fields.values import Duration, Positive, Text


class CheckpointExportSpec(Section):
    """Checkpoints written for other tools by a separate process, without delaying the training."""

    format: Literal["hf"] = "hf"
    """The format: `hf` is the folder of a Hugging Face model, as `orchestrator checkpoint export` writes it."""
    interval: Positive
    """Export each checkpoint whose iteration is a multiple of this many steps; a multiple of `save_interval`."""
    keep_last: Positive | None = None
    """How many of the newest exports are kept; all by default. Checkpoints have their own rules."""


class CheckpointSpec(Section):
    """When checkpoints are written and which are kept. One is always written at the end and at a clean stop."""

    save_interval: Annotated[
        Positive | None, AlsoCalled("save_steps save_every checkpoint_interval every_n_train_steps")
    ] = None
    """Steps between checkpoints."""
    save_seconds: Duration | None = None
    """Seconds between checkpoints; both intervals may be set."""
    keep_last: Annotated[Positive, AlsoCalled("save_total_limit keep_latest_k save_top_k")] = 3
    """How many of the newest checkpoints are kept."""
    keep_every: Positive | None = None
    """Keep each checkpoint at a multiple of this many steps for good."""
    export: CheckpointExportSpec | None = None
    """Write checkpoints as Hugging Face models too, into `exports` of the run directory."""
    async_save: Annotated[bool, AlsoCalled("async_mode"), MegatronFlag(default=False)] = True
    """Write to disk while training continues."""
    pretrained: Annotated[
        Annotated[Text, Field(min_length=1)] | None, resume.ORIGIN, AlsoCalled("init_from pretrained_checkpoint")
    ] = None
    """Start from the weights of this checkpoint, with a fresh optimizer, at iteration 0: the folder of a checkpoint or
    of a run, or NAME or NAME/RUN_ID of a run in the same runs folder, whose newest checkpoint is used; NAME means a
    sweep's cell only if the job has no other run. Any layout will do. A run with checkpoints of its own continues from
    those."""
    upcycle: Annotated[
        bool,
        resume.ORIGIN,
        HashedIfChanged(),
        AlsoCalled("moe_use_upcycling use_upcycling sparse_upcycling"),
    ] = False
    """Start a model with experts from a dense `pretrained`: every expert is a copy of the dense MLP of its layer, and
    the router is new. Where `moe_ffn_hidden_size` is a fraction of `ffn_hidden_size`, the width of the dense MLP, so
    many experts share a copy out."""
