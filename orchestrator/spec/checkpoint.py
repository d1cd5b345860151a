"""When checkpoints are written and which are kept."""

from __future__ import annotations

from orchestrator.spec.base import Section
from orchestrator.spec.values import Duration, Positive


class CheckpointSpec(Section):
    """When checkpoints are written and which are kept. One is always written at the end and at a clean stop."""

    save_interval: Positive | None = None
    """Steps between checkpoints."""
    save_seconds: Duration | None = None
    """Seconds between checkpoints; both may be given."""
    keep_last: Positive = 3
    """How many of the newest are kept."""
    keep_every: Positive | None = None
    """Keep each checkpoint at a multiple of this many steps for good."""
    async_save: bool = True
    """Write to disk while training goes on."""
