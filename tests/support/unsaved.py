"""For `inject`: a training whose losses and events alone are looked at leaves no checkpoint at its end, which takes as
long as its start.
"""

from __future__ import annotations

from orchestrator.runtime.callbacks.saving import CheckpointSaving

CheckpointSaving.on_end = lambda saving, session: None
