"""What the start of a run before this one computed with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.run_directory.events.types import Started
from orchestrator.run_directory.rundir import RunDir


@dataclass(frozen=True)
class LastStart:
    """What a run goes on with to the bit, of what it chose for itself. All None where it has not begun, or at another
    layout or on a CPU, whose losses are others anyway.
    """

    layers: str | None = None
    cuda_graphs: bool | None = None

    @classmethod
    def of(cls, run: RunDir, topology: Mapping[str, int]) -> LastStart:
        """`topology`: of the start that is to go on with it."""
        started = run.events().last(Started)
        if started is None or started.device in (None, "cpu") or started.topology != topology:
            return cls()
        return cls(started.layers, started.cuda_graphs)
