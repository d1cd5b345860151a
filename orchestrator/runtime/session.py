"""One rank of a running job: what it holds, and what its loop and callbacks do with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import Dataset

from orchestrator.planning.batch import BatchSchedule
from orchestrator.planning.hyperparameters import HyperparameterSchedule
from orchestrator.planning.vocabulary import Vocabulary
from orchestrator.run.events.types import Event
from orchestrator.run.lease import Lease
from orchestrator.run.rundir import RunDir
from orchestrator.runtime.batches import BatchStream, MicroBatchSampler
from orchestrator.runtime.graphs import CapturedPasses
from orchestrator.runtime.network.auxiliary_losses import AuxiliaryLosses
from orchestrator.runtime.processes.context_parallel import slice_batch
from orchestrator.runtime.processes.control import Control, Losses, StopRequest
from orchestrator.runtime.processes.device import Device
from orchestrator.runtime.processes.process_groups import Groups, Ranks
from orchestrator.runtime.processes.watchdog import Watchdog
from orchestrator.runtime.records.records import Records
from orchestrator.runtime.records.start_clock import StartClock
from orchestrator.runtime.saving.checkpointing import Checkpointer
from orchestrator.runtime.state import StepRecord, TrainState
from orchestrator.runtime.steps.base import Batch, TrainStep, metrics_of
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.runtime import Layers


@dataclass
class Session:
    """One rank of a running job."""

    run: RunDir
    launch_id: str
    job: JobSpec
    device: Device
    ranks: Ranks
    groups: Groups
    control: Control
    lease: Lease
    records: Records
    stop: StopRequest
    layers: Layers
    vocabulary: Vocabulary
    schedule: BatchSchedule
    hyperparameters: HyperparameterSchedule
    modules: list[Any]
    """The network's chunks themselves."""
    chunks: list[Any]
    """The same, wrapped in data parallelism."""
    step: TrainStep
    auxiliary: AuxiliaryLosses
    optimizer: Any
    checkpointer: Checkpointer
    train_data: Dataset[Any]
    validation_data: dict[str, Dataset[Any]]
    watchdog: Watchdog
    clock: StartClock
    """Of this start, until its first step is done."""
    captured: CapturedPasses | None
    """The passes of a training step, where they are a CUDA graph."""
    state: TrainState = field(default_factory=TrainState)
    stopping: bool = False
    """All ranks have agreed to stop."""
    postponed: bool = False
    """All ranks have agreed that a stop leaves something to the next start, though every step is done."""
    wants_save: bool = False
    """This rank finds that a checkpoint is due by the clock."""
    save_due: bool = False
    """All ranks have agreed that one is."""
    writing_ended: bool = False
    """All ranks have agreed that the checkpoint in progress is written."""
    batches: BatchStream = field(init=False)
    """Of the training, from `begin_batches` on."""
    loss_listeners: Sequence[Callable[[Session, StepRecord, Losses], None]] = ()
    mark: Callable[[str], None] = lambda moment: None
    """Told of the moments of a step: `passes`, before the first forward pass, and `update`, before the optimizer."""
    _pending_record: StepRecord | None = None

    @property
    def finished(self) -> bool:
        """Whether the schedule is complete."""
        return self.state.consumed_samples >= self.schedule.train_samples

    def progress(self) -> None:
        """Tell the watchdog that this rank is alive."""
        self.watchdog.beat(self.state.iteration)

    def event(self, event: Event) -> None:
        """Add to the event log, on rank 0 and only while the lease is held."""
        if self.ranks.is_first:
            self.records.event(event)

    def stream(self, dataset: Dataset[Any], sampler: Iterable[list[int]]) -> BatchStream:
        """Micro-batches of a data set on this rank's device."""
        workers = self.job.data.num_workers
        if workers is None:
            workers = 2 if self.device.is_cuda and not self.job.data.random_tokens else 0
        return BatchStream(dataset, sampler, self._get_batch, self.device, workers, self.ranks.num_chunks)

    def _get_batch(self, samples: Batch) -> Batch:
        """This rank's part of a micro-batch."""
        ranks = self.ranks
        return slice_batch(self.step.get_batch(samples), self.job.model.seq_length, ranks.cp, ranks.cp_size)

    def begin_batches(self) -> None:
        """Open the training data where the training stands."""
        consumed, total = self.state.consumed_samples, self.schedule.train_samples
        sampler = MicroBatchSampler(self.schedule, consumed, total, self.ranks.dp)
        self.batches = self.stream(self.train_data, sampler)

    def begin_all_reduce(self, record: StepRecord, loss: torch.Tensor | None) -> None:
        """Say this rank's part of what all ranks agree on about a step; `wait_for_all_reduce` gives the answer."""
        self._pending_record = record
        self.control.begin_all_reduce(
            record.iteration,
            stop=self.stop.is_set(),
            loss=loss if self.ranks.reports_loss else None,
            writer_busy=self.checkpointer.busy,
            save=self.wants_save,
            auxiliary=self.auxiliary.report(record.samples // (self.job.batch.micro_batch_size * self.ranks.dp_size)),
        )

    def begin_save(self) -> None:
        """Start a checkpoint of the state as it is now; `checkpointer.in_progress` says whether that was possible."""
        self.wait_for_all_reduce()
        self.progress()
        for chunk in self.chunks:
            if chunk.ddp_config.overlap_param_gather:
                # Until the next forward pass a rank's copy of the others' shards is that of the step before.
                chunk.start_param_sync(force_sync=True)
        self.checkpointer.begin(self.state)
        # What was agreed on was about the save before this one, or asked for this one.
        self.writing_ended = self.wants_save = self.save_due = False

    def wait_for_all_reduce(self) -> None:
        """Take what all ranks agreed on about the last step offered, and report its loss."""
        agreed = self.control.wait()
        if agreed is None:
            return
        record, self._pending_record = self._pending_record, None
        assert record is not None
        self.stopping = self.stopping or agreed.stop
        self.save_due = agreed.save
        self.writing_ended = self.checkpointer.in_progress and agreed.writers_busy == 0
        step, auxiliary = self.step, self.auxiliary
        losses = Losses.of(step.parts, agreed.sums, auxiliary.names, agreed.auxiliary, metrics_of(step))
        for listener in self.loss_listeners:
            listener(self, record, losses)
