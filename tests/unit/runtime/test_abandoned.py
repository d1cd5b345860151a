"""A checkpoint that is given up: what hinders rank 0 ends all ranks alike, for they wait for its word."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.training import tiny_job

from orchestrator.run_directory.lease import Lease
from orchestrator.run_directory.rundir import RunDir
from orchestrator.runtime.checkpointing.checkpointer import Checkpointer
from orchestrator.runtime.processes.process_groups import Ranks
from orchestrator.runtime.processes.rank_agreement import Control
from orchestrator.runtime.rank import Launch, Processes
from orchestrator.runtime.records.records import Records
from orchestrator.runtime.state import TrainState


class _Wire(Control):
    """What rank 0 says goes to the rank that is asked after it; a word that never came would be waited for."""

    def __init__(self) -> None:
        self.said: list[bytes] = []
        self.is_first = True

    def from_first(self, value: Any) -> Any:
        if self.is_first:
            self.said.append(pickle.dumps(value))
            return value
        return pickle.loads(self.said.pop(0))


def _begin(run: RunDir, wire: _Wire, rank: int, lease: Lease) -> None:
    wire.is_first = rank == 0
    where = Ranks(rank=rank, world_size=2, tp=0, tp_size=1, pp=0, pp_size=1, dp=rank, dp_size=2, num_chunks=1)
    nobody: Any = None
    watchdog: Any = SimpleNamespace(beat=lambda: None)
    groups: Any = SimpleNamespace(data_parallel=None)
    launch = Launch("test", run, lease, Records(run, lease), nobody, watchdog, nobody)
    processes = Processes(nobody, where, groups, wire)
    Checkpointer(tiny_job("abandoned"), launch, processes, [torch.nn.Linear(1, 1)], None, {}, {}).begin(TrainState())


def test_an_event_log_that_refuses_ends_every_rank(tmp_path: Path) -> None:
    run, wire = RunDir(tmp_path), _Wire()
    lease = Lease.acquire(run, launch_id="test")
    run.checkpoints.write_text("in the way")  # nothing can be saved
    run.events_file.mkdir()  # and nobody told
    for rank in range(2):
        with pytest.raises(IsADirectoryError, match=r"events\.jsonl"):
            _begin(run, wire, rank, lease)
    assert wire.said == []
