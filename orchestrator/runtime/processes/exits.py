"""How a rank ends: its cause, its exit record and its exit code."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

import torch

from orchestrator.errors import (
    CheckpointError,
    LeaseLost,
    OrchestratorError,
    RunIsHeld,
    UserError,
    is_full_disk,
)
from orchestrator.run_directory.exits.causes import gpu_failed
from orchestrator.run_directory.rundir import RunDir, write_atomically
from orchestrator.runtime.processes.device import GpuMissingError

HANG_EXIT_CODE = 72


class DivergenceError(OrchestratorError):
    """Too many steps in a row were not finite."""

    code = "diverged"


class DiskFullError(CheckpointError):
    """There was no room for a checkpoint that must be written."""


@dataclass(frozen=True)
class Outcome:
    """Why a rank ended. `message` is one line for people; None when all went well."""

    cause: str
    message: str | None = None

    @property
    def exit_code(self) -> int:
        """0 when the work that was asked for is done: the training, or a clean stop."""
        return 0 if self.cause in ("completed", "stopped") else 1


def outcome_of(error: BaseException) -> Outcome:
    """The cause that an exception stands for."""
    causes: list[tuple[type[BaseException], str]] = [
        (DivergenceError, "nan"),
        (LeaseLost, "lease_lost"),
        (RunIsHeld, "held"),
        (DiskFullError, "disk_full"),
        (CheckpointError, "checkpoint"),
        (UserError, "user_error"),
        (GpuMissingError, "gpu_error"),
        (torch.OutOfMemoryError, "out_of_memory"),
        (MemoryError, "host_out_of_memory"),
    ]
    for kind, cause in causes:
        if isinstance(error, kind):
            return Outcome(cause, str(error))
    if isinstance(error, OrchestratorError):
        return Outcome("user_error" if error.exit_code == 2 else "bug", str(error))
    if isinstance(error, OSError) and is_full_disk(error):
        return Outcome("disk_full", f"no space left on device: {error.filename or ''}".rstrip(": "))
    message = f"{type(error).__name__}: {error}"
    return Outcome("gpu_error" if gpu_failed(message) else "bug", message)


def write_exit_record(run: RunDir, launch_id: str, rank: int, outcome: Outcome, iteration: int | None) -> None:
    """Leave the outcome where the launcher looks for it; a disk that refuses it is only reported."""
    path = run.exit_record(launch_id, rank)
    record = {"cause": outcome.cause, "message": outcome.message, "iteration": iteration}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(record))
    except OSError as error:
        # Whoever ends goes on to its exit code, which says the most important part.
        print(f"rank {rank}: the exit record could not be written: {error}", file=sys.stderr, flush=True)
