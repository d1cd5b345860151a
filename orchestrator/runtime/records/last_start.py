"""What the start of a run before this one computed with."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.rundir import RunDir


@dataclass(frozen=True)
class LastStart:
    """What a run goes on with to the bit, of what it chose for itself. All None where it has not begun, or on a CPU,
    which computes in another way.
    """

    layers: str | None = None
    cuda_graphs: bool | None = None

    @classmethod
    def of(cls, run: RunDir) -> LastStart:
        started = [event for event in run.events() if event.get("event") == "started"]
        if not started or started[-1].get("device") in (None, "cpu"):
            return cls()
        return cls(started[-1].get("layers"), started[-1].get("cuda_graphs"))
