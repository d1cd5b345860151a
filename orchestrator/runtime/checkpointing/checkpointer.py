"""Writing and reading checkpoints: model, optimizer, generators and position, in megatron-core's distributed format.

A save has three parts. `begin` (collective) plans it and copies the tensors to the host; a thread writes and sums up
the files; when every rank's thread is done, `finalize` (collective) writes the metadata and the commit marker. All of
it is written into a draft folder of this incarnation, which is renamed into place last: a stale incarnation that
writes on cannot touch what its successor has saved. A failure in any part on any rank abandons the checkpoint on all
of them, and the ones before stay as they are.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from megatron.core.dist_checkpointing.core import CheckpointingConfig, save_config
from megatron.core.dist_checkpointing.mapping import ShardedObject

from orchestrator.errors import CheckpointError, LeaseLost, is_full_disk
from orchestrator.run_directory.checkpoints.commit_markers import (
    CONTENT,
    Commit,
    FileRecord,
    committed,
    file_record,
    write_commit,
)
from orchestrator.run_directory.checkpoints.retention import oldest_kept, outdated, unfinished
from orchestrator.run_directory.events.types import CheckpointFailed, CheckpointSaved
from orchestrator.run_directory.rundir import write_atomically
from orchestrator.runtime import megatron_compat
from orchestrator.runtime.checkpointing.checkpoint_reader import load, shared
from orchestrator.runtime.checkpointing.exports import Exports
from orchestrator.runtime.checkpointing.parallel_layout import layout
from orchestrator.runtime.checkpointing.staging import Removals, draft_of, drafts_beside, put_in_place
from orchestrator.runtime.host_copies import HostCopies, is_copied_to_page_locked
from orchestrator.runtime.network.fully_sharded.checkpoints import as_kept, load_weights
from orchestrator.runtime.processes.process_groups import rng_state, set_rng_state
from orchestrator.runtime.rank import Launch, Processes
from orchestrator.runtime.state import TrainState
from orchestrator.spec.job import JobSpec

_PROBE_BYTES = 1 << 20
_WAIT_SECONDS = 1.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Failure:
    """Why a save was abandoned, in words; `disk_full` when there was no room for it."""

    message: str
    disk_full: bool = False


@dataclass
class _Save:
    """One save in progress on this rank."""

    path: Path
    state: TrainState
    request: Any
    started: float
    thread: threading.Thread | None = None
    error: Failure | None = None
    files: dict[str, FileRecord] = field(default_factory=dict)


class Checkpointer:
    """Saves and loads one run's checkpoints. Every public method but `busy`, `expect_saves` and `close` is
    collective."""

    def __init__(
        self,
        job: JobSpec,
        launch: Launch,
        processes: Processes,
        chunks: list[Any],
        optimizer: Any,
        code: dict[str, str],
        carried: Mapping[str, bytes],
    ) -> None:
        """`carried` is, on rank 0, what is written beside the weights, by name: `files_to_carry` finds it."""
        self._job, self._chunks, self._optimizer = job, chunks, optimizer
        self._run, self._lease, self._records = launch.run, launch.lease, launch.records
        self._ranks, self._control = processes.ranks, processes.control
        self._data_parallel = processes.groups.data_parallel
        self._beat = launch.watchdog.beat  # a save that is waited for may take longer than any step
        self._code, self._carried = code, carried
        self._device = next(parameter.device.type for chunk in chunks for parameter in chunk.parameters())
        self._copies = HostCopies()
        self._removals = Removals()
        self._saving: _Save | None = None
        self.failure: Failure | None = None
        """Why the last save was abandoned, on every rank alike; None when it was not."""
        self.exports: Exports | None = None
        """On rank 0, who hears of each committed checkpoint, and for whom some are not thinned out yet."""
        self.imported_as: str | None = None
        """The name of the family that the weights were imported as, at first."""
        self.damaged: set[int] = set()
        """On rank 0, the iterations of those that were passed over, which are not counted among those to keep."""

    @property
    def in_progress(self) -> bool:
        """Whether a save was begun and not yet finalized; the same on every rank."""
        return self._saving is not None

    @property
    def busy(self) -> bool:
        """Whether this rank is still writing."""
        return self._saving is not None and self._saving.thread is not None and self._saving.thread.is_alive()

    def expect_saves(self) -> None:
        """Take the memory that saves copy a GPU's tensors to while the first steps are done. Each process does it for
        itself: every replica writes its part of the optimizer's state, the first one the weights as well.
        """
        if self._device == "cuda":
            tensors = megatron_compat.written_of(self._tensors(CONTENT, loading=False))
            self._copies.take_ahead(tensor.nbytes for tensor in tensors if is_copied_to_page_locked(tensor))

    def close(self) -> None:
        """End what `expect_saves` has begun, and wait for what is being removed."""
        self._copies.close()
        self._removals.wait()

    def begin(self, state: TrainState) -> None:
        """Start a save of the state as it is now; a save still in progress is finished first.

        Raises LeaseLost when another incarnation has taken over.
        """
        if self._saving is not None:
            self.finish()
        self._lease.check()
        self.failure = None
        path = draft_of(self._run.checkpoint(state.iteration), self._lease.token)
        started = time.time()
        failure = self._control.from_first(self._prepare_folder(path) if self._ranks.is_first else None)
        if failure is not None:
            self._abandon(path, state, failure)
            return
        whole = self._state_dict(state, CONTENT, with_rng=True, loading=False)
        request = megatron_compat.begin_save(whole, str(path), CONTENT, self._copies)
        self._saving = _Save(path, replace(state), request, started)
        self._start_writing(self._saving)

    def finish(self) -> bool:
        """Wait for the save in progress and finalize it. Returns whether it was committed; True when there is none."""
        if self._saving is None:
            return True
        # All ranks wait for the slowest together, so that each can say that it is alive.
        while self._control.any(self._still_writing(self._saving)):
            self._beat()
        return self.finalize()

    @staticmethod
    def _still_writing(saving: _Save) -> bool:
        """Wait a little for this rank's files."""
        if saving.thread is None:
            return False
        saving.thread.join(_WAIT_SECONDS)
        return saving.thread.is_alive()

    def finalize(self) -> bool:
        """Commit the save whose writing has ended on every rank, or abandon it. Returns whether it was committed."""
        saving = self._saving
        assert saving is not None
        self._saving = None
        failure = self._agreed(saving.error) or self._agreed(self._attempt(saving.request.finalize_fns[0]))
        if failure is not None:
            self._abandon(saving.path, saving.state, failure)
            return False
        reports = self._control.gather_to_first(saving.files)
        outcome = self._commit(saving, reports) if reports is not None else None
        outcome = self._control.from_first(outcome)
        if isinstance(outcome, (LeaseLost, OSError)):
            raise outcome
        if outcome is not None:
            self._abandon(saving.path, saving.state, outcome)
            return False
        return True

    def _agreed(self, failure: Failure | None) -> Failure | None:
        """What went wrong on any rank, on all of them."""
        if not self._control.any(failure is not None):
            return None
        failures = [one for one in self._control.gather_to_first(failure) or [] if one is not None]
        message = "; ".join(sorted({one.message for one in failures}))
        agreed: Failure = self._control.from_first(Failure(message, any(one.disk_full for one in failures)))
        return agreed

    def load(self, commit: Commit, state: TrainState) -> None:
        """Restore everything from a committed checkpoint, whatever layout wrote it. Raises CheckpointError.

        Generators are restored only at the same layout and on the same kind of device, where the losses are then
        bitwise those of an uninterrupted run; else they stay as `runtime.seed` made them, which is logged.
        """
        others = self._another_place(commit)
        if others is not None and self._ranks.is_first:
            logger.warning("%s was written %s: dropout is drawn anew from runtime.seed", commit.path, others)
        # Those of earlier versions do not say that they number the optimizers of dense weights and of experts.
        said = shared(commit.path).get("content_metadata") or {}
        content = {**CONTENT, "chained_optim_avoid_prefix": False, **said}
        wanted = self._state_dict(state, content, with_rng=others is None, loading=True)
        try:
            loaded = load(wanted, commit.path)
            for index, chunk in enumerate(self._chunks):
                load_weights(chunk, loaded[model_key(index, len(self._chunks))])
            with torch.no_grad():
                self._optimizer.load_state_dict(loaded["optimizer"])
        except (KeyError, ValueError) as error:
            raise CheckpointError(
                f"{commit.path} does not fit this job: {error}", code="checkpoint_does_not_fit_job"
            ) from error
        if others is None:
            set_rng_state(loaded["rng"])
        state.load_state_dict(loaded["train_state"])

    def _another_place(self, commit: Commit) -> str | None:
        """Where a checkpoint was written whose generators are not this run's; None where they are. A generator of a
        CPU is none of a GPU. Versions that did not say the device ran on one kind for good.
        """
        if commit.details.get("layout") != layout(self._job):
            return "at another layout"
        device = commit.details.get("device", self._device)
        return None if device == self._device else f"on {device}, and this is {self._device}"

    def _state_dict(
        self, state: TrainState, content: Mapping[str, Any], *, with_rng: bool, loading: bool
    ) -> dict[str, Any]:
        ranks, whole = self._ranks, self._tensors(content, loading=loading)
        if with_rng:
            whole["rng"] = ShardedObject(
                "rng",
                rng_state(),
                (ranks.pp_size, ranks.tp_size, ranks.dp_size * ranks.cp_size),
                (ranks.pp, ranks.tp, ranks.dp * ranks.cp_size + ranks.cp),
                replica_id=0,
            )
        whole["train_state"] = state.state_dict()
        return whole

    def _tensors(self, content: Mapping[str, Any], *, loading: bool) -> dict[str, Any]:
        """The weights and the optimizer, named and cut as `content` says."""
        count, metadata = len(self._chunks), {**content, "dp_cp_group": self._data_parallel}
        models = {
            model_key(index, count): chunk.sharded_state_dict(metadata=metadata)
            for index, chunk in enumerate(self._chunks)
        }
        whole: dict[str, Any] = {key: as_kept(model) for key, model in models.items()}
        whole["optimizer"] = self._optimizer.sharded_state_dict(
            models["model"] if count == 1 else models, is_loading=loading, metadata=metadata
        )
        return whole

    def _prepare_folder(self, path: Path) -> Failure | None:
        """Make an empty folder for a checkpoint, and see that something can be written there.

        Drafts of killed incarnations, and of saves that were given up, go first.
        """
        self._removals.wait()
        try:
            for leftover in drafts_beside(path):
                shutil.rmtree(leftover)
            path.mkdir(parents=True)
            probe = path / ".probe"
            probe.write_bytes(bytes(_PROBE_BYTES))
            probe.unlink()
        except OSError as error:
            return _failure(error)
        return None

    def _start_writing(self, saving: _Save) -> None:
        request = saving.request
        if request.async_fn is None and not self._carried:
            return
        arguments = list(request.async_fn_args)
        if request.async_fn is not None:
            arguments[1] = request.preload_fn()

        def write() -> None:
            if request.async_fn is not None:
                saving.error = self._attempt(lambda: request.async_fn(*arguments, **request.async_fn_kwargs))
            for action in (self._sum_up, self._write_carried):
                if saving.error is None:
                    saving.error = self._attempt(action, saving)

        saving.thread = threading.Thread(target=write, name="checkpoint-writer")
        saving.thread.start()

    def _sum_up(self, saving: _Save) -> None:
        files = list(saving.path.glob(f"__{self._ranks.rank}_*.distcp"))
        with ThreadPoolExecutor(max(len(files), 1)) as pool:
            for file, record in zip(files, pool.map(file_record, files), strict=True):
                saving.files[file.name] = record

    def _write_carried(self, saving: _Save) -> None:
        for name, content in self._carried.items():
            path = saving.path / name
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, content)
            saving.files[name] = file_record(path)

    @staticmethod
    def _attempt(action: Callable[..., Any], *arguments: Any) -> Failure | None:
        """Run it; what went wrong, None when nothing did.

        Every kind of failure is taken here: it is agreed on with the other ranks, reported, and abandons the save.
        """
        try:
            action(*arguments)
        except Exception as error:
            return _failure(error)
        return None

    def _commit(self, saving: _Save, reports: list[dict[str, FileRecord]]) -> Failure | LeaseLost | OSError | None:
        """Rank 0: write what is left and the marker, put it in place, then thin out older checkpoints. Returns a
        Failure where there is no checkpoint then, and an error that every rank is to raise.
        """
        files = {name: record for report in reports for name, record in report.items()}
        try:
            self._lease.check()
            save_config(CheckpointingConfig("torch_dist", 1), str(saving.path))
            for file in saving.path.iterdir():
                if file.is_file() and file.name not in files:
                    files[file.name] = file_record(file)
            write_commit(
                saving.path,
                iteration=saving.state.iteration,
                consumed_samples=saving.state.consumed_samples,
                files=files,
                consumed_tokens=saving.state.consumed_tokens,
                data=None if saving.state.data is None else saving.state.data.to_dict(),
                layout=layout(self._job),
                device=self._device,
                config_hash=self._job.config_hash,
                time=time.time(),
                family=self.imported_as,
                **self._code,
            )
            self._lease.check()
            put_in_place(saving.path, self._run.checkpoint(saving.state.iteration))
            self.damaged.discard(saving.state.iteration)
        except LeaseLost as error:
            return error
        except OSError as error:
            return _failure(error)
        try:
            self._records.event(
                CheckpointSaved(
                    iteration=saving.state.iteration,
                    seconds=round(time.time() - saving.started, 3),
                    bytes=sum(record.bytes for record in files.values()),
                )
            )
            if self.exports is not None:
                self.exports.committed(saving.state.iteration)
            self.thin_out(saving.state.iteration)
        except (LeaseLost, OSError) as error:
            return error
        return None

    def thin_out(self, saved: int) -> None:
        """Rank 0: remove what `keep_last` and `keep_every` do not keep after a save, and what is older than that and
        was never finished. Raises LeaseLost.
        """
        self._lease.check()
        policy, commits = self._job.checkpoint, committed(self._run)
        superfluous = [
            commit.path
            for commit in outdated(commits, saved, policy.keep_last, policy.keep_every, self.damaged)
            if self.exports is None or not self.exports.needs(commit.iteration)
        ]
        superfluous += unfinished(self._run, oldest_kept(commits, saved, policy.keep_last, self.damaged))
        for path in superfluous:
            try:
                self._removals.start(path, self._lease.token)
            except OSError as error:
                logger.warning("%s could not be removed: %s", path, _failure(error).message)

    def _abandon(self, path: Path, state: TrainState, failure: Failure) -> None:
        """Remove the draft, on every rank before any goes on: on a full disk their last words need its room."""
        self.failure = failure
        hindrance = self._control.from_first(self._discard(path, state, failure) if self._ranks.is_first else None)
        if hindrance is not None:
            raise hindrance

    def _discard(self, path: Path, state: TrainState, failure: Failure) -> LeaseLost | OSError | None:
        """Rank 0: remove a draft and tell of it. Returns what forbids it, or hinders it: every rank is to raise that,
        since the others wait for this one's word.
        """
        try:
            self._lease.check()
            shutil.rmtree(path, ignore_errors=True)
            self._records.event(CheckpointFailed(iteration=state.iteration, message=failure.message))
        except (LeaseLost, OSError) as error:
            return error
        return None


def model_key(index: int, count: int) -> str:
    """The name of a model chunk's part of a state dict, as megatron-core wants it."""
    return "model" if count == 1 else f"model{index}"


def _failure(error: BaseException) -> Failure:
    """What went wrong. torch answers a disk's refusal with an error of its own, behind which the refusal stands."""
    behind: BaseException | None = error
    while behind is not None:
        if isinstance(behind, OSError) and behind.strerror:
            where = f": {behind.filename}" if behind.filename else ""
            return Failure(behind.strerror + where, is_full_disk(behind))
        behind = behind.__cause__ or behind.__context__
    return Failure(f"{type(error).__name__}: {error}")
