"""Checkpoints exported beside a training: one process at a time, which rank 0 starts, and which ends with it.

The process writes a folder beside the exports of the run, and rank 0 renames it into place while it holds the lease. So
what is there is complete, and an incarnation that was overtaken changes nothing.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.quantities import timestamp
from orchestrator.run_directory.checkpoints.commit_markers import Commit, committed, read_commit
from orchestrator.run_directory.events.types import Exported, ExportFailed, ExportStopped
from orchestrator.run_directory.lease import Lease
from orchestrator.run_directory.rundir import RunDir, sync_folder
from orchestrator.runtime.records.records import Records
from orchestrator.safe_path import module_command
from orchestrator.spec.sections.checkpoint import CheckpointExportSpec

EXCHANGE_MODULE = "orchestrator.conversion"
LOG_NAME = "export.log"
_MOST_BYTES = 5_000_000_000
_MOST_SPARED = 3
"""The newest checkpoints that wait for their export are kept."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Export:
    """One export under way."""

    iteration: int
    draft: Path
    started: float
    process: subprocess.Popen[bytes]


class Exports:
    """The exports of one incarnation, on rank 0. Nothing that goes wrong with one reaches the training."""

    def __init__(self, run: RunDir, policy: CheckpointExportSpec, lease: Lease, records: Records) -> None:
        self._run, self._policy, self._lease, self._records = run, policy, lease, records
        self._folder = run.exports(policy.format)
        self._waiting: deque[int] = deque()
        self._running: Export | None = None

    def begin(self, iteration: int) -> None:
        """Clear away what killed incarnations left, and take up exports that were missed up to this iteration."""
        for leftover in self._folder.glob(".*"):
            shutil.rmtree(leftover, ignore_errors=True)
        self._waiting.extend(missed(self._run, self._policy, iteration))

    def committed(self, iteration: int) -> None:
        """A checkpoint was committed: export it where that is asked for."""
        if iteration % self._policy.interval == 0:
            self._waiting.append(iteration)

    def needs(self, iteration: int) -> bool:
        """Whether a checkpoint must not be removed: it is being exported, or is one of the newest that wait. Where
        exports take longer than the steps between them, the disk is not to be filled with what waits, and what is
        exported is not to be ever older.
        """
        under_way = self._running is not None and self._running.iteration == iteration
        return under_way or iteration in list(self._waiting)[-_MOST_SPARED:]

    def poll(self, seconds: float = 0.0) -> bool:
        """Take in an export that has ended, after waiting for it so long, and start the next; whether one is running.

        Raises LeaseLost.
        """
        if self._running is not None:
            try:
                self._running.process.wait(seconds)
            except subprocess.TimeoutExpired:
                return True
            ended, self._running = self._running, None
            self._take_in(ended)
        while self._waiting and not self._start(self._waiting.popleft()):
            pass
        return self._running is not None

    def stop(self) -> bool:
        """End what is under way; the next start of the run takes it up again. Whether there was anything left to do."""
        running, self._running = self._running, None
        left = [*([running.iteration] if running else []), *self._waiting]
        self._waiting.clear()
        if running is not None:
            running.process.kill()
            running.process.wait()
            _remove(running.draft)
        for iteration in left:
            self._records.event(ExportStopped(iteration=iteration, format=self._policy.format))
        return bool(left)

    def _start(self, iteration: int) -> bool:
        """Whether it could be started."""
        commit = read_commit(self._run.checkpoint(iteration))
        if commit is None:
            self._failed(
                iteration, "its checkpoint was removed before its turn: exports take longer than the steps between them"
            )
            return False
        self._lease.check()
        draft = self._folder / f".iter_{iteration:07d}.{self._lease.token:06d}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with self._run.open_to_append(self._run.logs / LOG_NAME) as log:
                log.write(f"=== iteration {iteration} at {timestamp()}\n".encode())
                process = subprocess.Popen(
                    self._command(commit, draft),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=_environment(),
                    start_new_session=True,
                )
        except OSError as error:
            self._failed(iteration, f"it could not be started: {error.strerror}")
            return False
        self._running = Export(iteration, draft, time.time(), process)
        return True

    def _command(self, commit: Commit, draft: Path) -> list[str]:
        return [
            *module_command(EXCHANGE_MODULE, "export", str(commit.path), str(draft)),
            *(f"--most-bytes={_MOST_BYTES}", "--tokenizer=if-possible"),
            # The next checkpoint needs about as much room as this one, and it goes first.
            *(f"--leave-free={commit.bytes}", f"--beside={os.getpid()}"),
        ]

    def _take_in(self, ended: Export) -> None:
        answer = _answer(ended.process)
        if "error" in answer:
            _remove(ended.draft)
            self._failed(ended.iteration, answer["error"])
            return
        place = self._run.exports(self._policy.format) / f"iter_{ended.iteration:07d}"
        self._lease.check()
        try:
            if place.exists():  # of a course that this one replaces
                _remove(place)
            ended.draft.rename(place)
            sync_folder(place.parent)
            self._thin_out(ended.iteration)
        except OSError as error:
            _remove(ended.draft)
            self._failed(ended.iteration, f"{error.strerror}: {error.filename}")
            return
        self._records.event(
            Exported(
                iteration=ended.iteration,
                format=self._policy.format,
                path=str(place),
                bytes=answer["bytes"],
                seconds=round(time.time() - ended.started, 3),
            )
        )

    def _thin_out(self, exported: int) -> None:
        """As with checkpoints, later ones, of a course that this one replaces, are neither counted nor removed."""
        if self._policy.keep_last is not None:
            so_far = [path for number, path in self._run.export_dirs(self._policy.format) if number <= exported]
            for path in so_far[: -self._policy.keep_last]:
                _remove(path)

    def _failed(self, iteration: int, message: str) -> None:
        logger.warning("iteration %s was not exported: %s", iteration, message)
        self._records.event(ExportFailed(iteration=iteration, format=self._policy.format, message=message))


def missed(run: RunDir, policy: CheckpointExportSpec, iteration: int) -> list[int]:
    """Checkpoints up to an iteration that are to be exported and never were, oldest first. One that was exported and
    taken away since, by `keep_last` or by a person, is not missed; one that was written anew since then is.
    """
    exported = {each.iteration: each.time or 0.0 for each in run.events().all(Exported)}
    wanted = [commit for commit in committed(run) if 0 < commit.iteration <= iteration]
    wanted = [commit for commit in wanted if commit.iteration % policy.interval == 0]
    return [commit.iteration for commit in wanted if exported.get(commit.iteration, -1.0) < _time_of(commit)]


def _time_of(commit: Commit) -> float:
    """When it was written, in seconds since the epoch; 0 where it does not say."""
    time_then = commit.details.get("time")
    return float(time_then) if isinstance(time_then, (int, float)) else 0.0


def _environment() -> dict[str, str]:
    """That of the rank, without what would make it one, and without its GPU."""
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK")}
    return {**kept, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


def _answer(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.stdout is not None
    with process.stdout as said:
        try:
            answer = json.loads(said.read())
        except ValueError:
            answer = None
    if isinstance(answer, dict) and ("error" in answer or process.returncode == 0):
        return answer
    return {"error": f"the export ended with exit code {process.returncode}; see logs/{LOG_NAME}"}


def _remove(folder: Path) -> None:
    """Remove a folder, and the one in which it was being made, so that neither ever looks whole while it goes."""
    for path in (folder, folder.with_name(f".{folder.name}.export")):
        hidden = path if path.name.startswith(".") else path.with_name(f".{path.name}.removed")
        if path != hidden and path.exists():
            path.rename(hidden)
        shutil.rmtree(hidden, ignore_errors=True)
