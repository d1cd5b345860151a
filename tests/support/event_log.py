"""Event logs as tests write and read them: of any version, with any fields, and line by line."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from orchestrator.run_directory.events.log import EventLog
from orchestrator.run_directory.rundir import RunDir, append_line, read_lines
from orchestrator.sweeps.ledger import SweepDir


def append_event(run: RunDir, kind: str, **fields: Any) -> None:
    """Add one line to the event log of a run, of this moment if it does not say otherwise."""
    append_line(run.events_file, {"time": time.time(), "event": kind, **fields})


def lines_of(run: RunDir) -> list[dict[str, Any]]:
    """The objects of its lines."""
    return list(read_lines(run.events_file))


def log_of(*records: Mapping[str, Any]) -> EventLog:
    """The events that lines with these objects are."""
    return EventLog.of(records)


def append_to_ledger(sweep: SweepDir, kind: str, **fields: Any) -> None:
    """Add one line to the ledger of a sweep."""
    append_line(sweep.ledger, {"time": time.time(), "event": kind, **fields})
