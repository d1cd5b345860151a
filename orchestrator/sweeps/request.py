"""What the program that starts cells is asked, and what it answers: JSON in, JSON lines out."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

REQUEUE_CODE = 75
"""Exit code of a supervisor that leaves it to whoever started it to put the job back into the queue."""


@dataclass(frozen=True)
class Task:
    """One cell to be trained to its end. `cancels`: how often it had been cancelled when it was asked for;
    `submissions`: how many its sweep's ledger had then. `stop_at`: the step after which this start saves and stops;
    `of_search`: whether a search starts it, which tells of the sweep's end itself.
    """

    cell: str
    name: str
    run_dir: str
    command: list[str]
    gpus: int = 0
    cancels: int = 0
    submissions: int = 0
    stop_at: int | None = None
    of_search: bool = False


@dataclass(frozen=True)
class Array:
    """Cells that ask the scheduler for the same. `parameters`: of submitit's SlurmExecutor."""

    parameters: dict[str, Any]
    tasks: list[Task]


@dataclass(frozen=True)
class Request:
    """Cells to start. `gpus`: the GPUs of this machine that local cells share."""

    sweep_dir: str
    arrays: list[Array]
    max_parallel: int | None = None
    cluster: str | None = None
    python: str | None = None
    max_requeues: int = 0
    gpus: list[str] = field(default_factory=list)
    dry_run: bool = False

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Request:
        data = json.loads(text)
        arrays = [Array(array["parameters"], [Task(**task) for task in array["tasks"]]) for array in data.pop("arrays")]
        return cls(arrays=arrays, **data)
