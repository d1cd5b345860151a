"""Where the trials of a search are trained: on this machine, or by their executor."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from orchestrator.errors import SchedulerError
from orchestrator.process import Process
from orchestrator.run_directory.events.ledger import CellsSubmitted
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.sweeps.executor import LocalCells
from orchestrator.sweeps.ledger import SweepDir
from orchestrator.sweeps.request import Task
from orchestrator.sweeps.submission import CellStart, SweepStart, local_request, submit_cells, visible_gpus


class Trainer(Protocol):
    """Starts trials. `seconds`: between two looks at them; `process`: the program that starts them."""

    seconds: float
    process: Process
    is_here: bool
    """Whether trials are started by this program itself."""

    def running(self) -> Collection[str]:
        """The cells that this program has under way by itself."""

    def adopt(self, devices: Mapping[str, Collection[str]]) -> None:
        """Take note of the GPUs of cells that an earlier program has under way on this machine."""

    def room_for(self, start: CellStart) -> Collection[str] | None:
        """The GPUs of this machine that a cell would get; None where too few are free."""

    def start(self, start: CellStart) -> None:
        """Start a cell, or note that it is to be started with others."""

    def flush(self) -> None:
        """Start what is noted."""


class LocalTrainer:
    """Trials on this machine."""

    seconds = 0.2
    is_here = True

    def __init__(self, sweep: SweepDir, module: str, parallel: int | None) -> None:
        """`module`: the training program."""
        self.process = Process.current()
        self._sweep, self._module, self._parallel = sweep, module, parallel
        self._cells = LocalCells(sweep, visible_gpus(), 0)

    def running(self) -> Collection[str]:
        self._cells.settle()
        return self._cells.running

    def adopt(self, devices: Mapping[str, Collection[str]]) -> None:
        self._cells.others = {cell: list(each) for cell, each in devices.items()}

    def room_for(self, start: CellStart) -> Collection[str] | None:
        return self._cells.room_for(self._task(start))

    def start(self, start: CellStart) -> None:
        driver = self.process.to_record()
        jobs = {start.id: "local"}
        self._sweep.append(
            CellsSubmitted(how="local", cluster=None, max_parallel=self._parallel, jobs=jobs, driver=driver)
        )
        self._cells.start(self._task(start))

    def flush(self) -> None:
        pass

    def _task(self, start: CellStart) -> Task:
        request = local_request(self._sweep, [start], max_parallel=None, module=self._module)
        return request.arrays[0].tasks[0]


class ExecutorTrainer:
    """Trials by their executor; what may start at one moment is submitted together."""

    seconds = 5.0
    is_here = False

    def __init__(self, sweep: SweepDir, module: str, cluster: ClusterSpec | None) -> None:
        self.process = Process.current()
        self._sweep, self._module, self._cluster = sweep, module, cluster
        self._noted: list[CellStart] = []

    def running(self) -> Collection[str]:
        return ()

    def adopt(self, devices: Mapping[str, Collection[str]]) -> None:
        pass

    def room_for(self, start: CellStart) -> Collection[str] | None:
        return ()

    def start(self, start: CellStart) -> None:
        self._noted.append(start)

    def flush(self) -> None:
        noted, self._noted = self._noted, []
        if not noted:
            return
        try:
            submit_cells(SweepStart(self._sweep, noted, self._cluster, None, module=self._module))
        except SchedulerError as error:
            print(f"trials are submitted again: {error}", flush=True)
