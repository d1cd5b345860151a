"""What a rank has before its network: a start of a run, and the processes that it is one of."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.run_directory.lease import Lease
from orchestrator.run_directory.rundir import RunDir
from orchestrator.runtime.processes.device import Device
from orchestrator.runtime.processes.process_groups import Groups, Ranks
from orchestrator.runtime.processes.rank_agreement import Control
from orchestrator.runtime.processes.stop_request import StopRequest
from orchestrator.runtime.processes.watchdog import Watchdog
from orchestrator.runtime.records.records import Records
from orchestrator.runtime.records.start_clock import StartClock


@dataclass(frozen=True)
class Launch:
    """One start of a run, as a rank writes it down."""

    id: str
    run: RunDir
    lease: Lease
    records: Records
    stop: StopRequest
    watchdog: Watchdog
    clock: StartClock
    """Of this start, until its first step is done."""


@dataclass(frozen=True)
class Processes:
    """Who takes part: this rank, the others, and the ways between them."""

    device: Device
    ranks: Ranks
    groups: Groups
    control: Control
