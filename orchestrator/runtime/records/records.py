"""What rank 0 writes line by line: events and metrics. A full disk delays them; it does not end the training."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping

from orchestrator.errors import LeaseLost, is_full_disk
from orchestrator.run_directory.events.types import Event
from orchestrator.run_directory.lease import Lease
from orchestrator.run_directory.rundir import RunDir
from orchestrator.tracking.measurements.metrics import MetricLog

_MOST_WAITING = 10_000


class Records:
    """Events and metrics of one incarnation, in order. Nothing is written once the lease is lost.

    What a full disk refuses waits in memory and goes before the next record.
    """

    def __init__(self, run: RunDir, lease: Lease) -> None:
        self._run, self._lease = run, lease
        self._metrics = MetricLog(run, lease.check)
        self._waiting: deque[Callable[[], None]] = deque()

    def event(self, event: Event) -> None:
        """Add to the event log. Raises LeaseLost, and OSError for anything but a full disk."""
        self._write(lambda: self._run.append(event))

    def metrics(self, iteration: int, samples: int, tokens: int, values: Mapping[str, float], measured: float) -> None:
        """Add to the metrics. `measured`: when, in seconds since the epoch. Raises like `event`."""
        self._write(lambda: self._metrics.append(iteration, samples, tokens, values, measured))

    def close(self) -> None:
        """Try what waits one last time, and say how much of it is lost."""
        if not self._waiting:
            return
        try:
            self._lease.check()
            self._write_waiting()
        except (LeaseLost, OSError) as error:
            print(f"records could not be written: {error}", file=sys.stderr)
        if self._waiting:
            print(f"{len(self._waiting)} events and measurements are lost: the disk is full", file=sys.stderr)

    def _write(self, write: Callable[[], None]) -> None:
        self._lease.check()
        self._waiting.append(write)
        self._write_waiting()

    def _write_waiting(self) -> None:
        while self._waiting:
            try:
                self._waiting[0]()
            except OSError as error:
                if not is_full_disk(error) or len(self._waiting) > _MOST_WAITING:
                    raise
                return
            self._waiting.popleft()
