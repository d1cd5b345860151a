"""Weights & Biases: one run of it for one run directory, across resumes. Only what is in the run directory is sent."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # its makers need not hear of our errors

# isort: split
import wandb

from orchestrator.run_directory.rundir import RunDir, membership_of
from orchestrator.tracking.description import Description, State, read_spec
from orchestrator.tracking.follower import DRAIN_SECONDS
from orchestrator.tracking.measurements.metrics import Metric
from orchestrator.tracking.stream import Position, Stream

_SECONDS_TO_BEGIN = 30.0
_SECONDS_TO_FINISH = 0.7 * DRAIN_SECONDS
"""Less than a follower has at the end, so that it can say what was not uploaded."""
_TAG_LENGTH = 64


class WandbRun:
    """A sink. Its steps are its own and only ever grow; the curves are drawn over `iteration`."""

    def __init__(self, run: RunDir) -> None:
        self.title = "Weights & Biases"
        self._run = run
        self.keeps_at_once = True
        self.longest_wait_seconds = 120.0  # each attempt takes half a minute
        self._session: wandb.Run | None = None

    def open(self, position: Position) -> None:
        """Begin the run, or go on with it. A copy of a run directory becomes a run of its own."""
        home = Path(position.run_dir) if position.run_dir else self._run.path
        is_copy = home != self._run.path and home.is_dir() and not home.samefile(self._run.path)
        if position.run_id is None or is_copy:
            position.run_id = f"{self._run.run_id}-{uuid.uuid4().hex[:8]}"
            position.offset, position.step = 0, -1
            position.sent.clear()
        position.run_dir = str(self._run.path)
        tracking = read_spec(self._run).get("tracking") or {}
        asked: dict[str, Any] = tracking.get("wandb") or {}
        mode: Literal["online", "offline"] = "offline" if asked.get("mode") == "offline" else "online"
        self.keeps_at_once = mode == "offline"  # online, a row is only put into the queue of an upload
        tags = [f"{key}:{value}"[:_TAG_LENGTH] for key, value in (tracking.get("tags") or {}).items()]
        self._session = self._begin(
            project=asked.get("project") or tracking.get("experiment") or self._run.name,
            entity=asked.get("entity"),
            id=position.run_id,
            name=f"{self._run.name}/{self._run.run_id}",
            group=_sweep_of(self._run),
            tags=tags,
            dir=self._run.path,
            resume="allow",
            settings=_settings(mode),
        )
        self._session.define_metric("iteration", hidden=True)
        self._session.define_metric("*", step_metric="iteration")

    def _begin(self, **options: Any) -> wandb.Run:
        """A folder that an attempt made in vain goes again: there may be many until somebody logs in."""
        before = self._folders()
        try:
            return wandb.init(**options)
        except Exception:
            for folder in self._folders() - before:
                shutil.rmtree(folder, ignore_errors=True)
            raise

    def _folders(self) -> set[Path]:
        return set((self._run.path / "wandb").glob("*run-*"))

    def describe(self, description: Description) -> None:
        """The spec is its configuration, as the newest start has it; what we say of a run is in its summary."""
        session = self._opened()
        packages = {key: value for key, value in description.current_params.items() if key.startswith("environment.")}
        configuration: Any = session.config  # its methods have no types
        configuration.update({**read_spec(self._run), **packages}, allow_val_change=True)
        ours = {key: value for key, value in description.tags.items() if key.startswith("orchestrator.")}
        session.summary.update(ours)

    def write(self, records: Sequence[Metric]) -> None:
        """One row for each record, at its own time."""
        session = self._opened()
        for record in records:
            session.log({**record.with_progress, "iteration": record.iteration, "_timestamp": record.time})

    def rewind(self, step: int) -> None:
        """Rows cannot be taken back: the iterations are there twice, and the later row is the latest value."""

    def close(self, state: State) -> None:
        """The run is finished, failed, or goes on with the next start. Raises TimeoutError where the upload is not done
        in time.
        """
        session, self._session = self._opened(), None
        session.finish(exit_code=0 if state in ("finished", "running") else 1)

    def drop(self) -> None:
        """No more is uploaded."""
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(Exception):  # what went wrong is known already
                session.finish(exit_code=1)

    def _opened(self) -> wandb.Run:
        assert self._session is not None, "open"
        return self._session


def _settings(mode: Literal["online", "offline"]) -> wandb.Settings:
    """Nothing of this process is of interest: not its output, its machine, its repository or its packages."""
    return wandb.Settings(
        mode=mode,
        console="off",
        silent=True,
        disable_git=True,
        disable_code=True,
        save_code=False,
        init_timeout=_SECONDS_TO_BEGIN,
        finish_timeout=_SECONDS_TO_FINISH,
        finish_timeout_raises=True,
        x_disable_stats=True,
        x_disable_meta=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
    )


def _sweep_of(run: RunDir) -> str | None:
    membership = membership_of(run)
    return str(membership["sweep"]) if "sweep" in membership else None


def tracker(run: RunDir) -> Stream:
    """The tracker of a run."""
    return Stream(run, "wandb", WandbRun(run))
