"""One rank of a running job: what it holds, and what its loop and callbacks do with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import Dataset

from orchestrator.planning.training_schedule.batch import BatchSchedule
from orchestrator.planning.training_schedule.hyperparameters import HyperparameterSchedule
from orchestrator.planning.vocabulary import Vocabulary
from orchestrator.run_directory.events.types import Event
from orchestrator.runtime.batch_sampler import BatchStream, MicroBatchSampler
from orchestrator.runtime.checkpointing.checkpointer import Checkpointer
from orchestrator.runtime.cuda_graphs import CapturedPasses
from orchestrator.runtime.network.auxiliary_losses import AuxiliaryLosses
from orchestrator.runtime.processes.context_parallel import slice_batch
from orchestrator.runtime.processes.rank_agreement import Losses
from orchestrator.runtime.rank import Launch, Processes
from orchestrator.runtime.state import StepRecord, TrainState
from orchestrator.runtime.steps.base import Batch, TrainStep, fields_on_host, metrics_of
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.runtime import Layers


@dataclass(frozen=True)
class Network:
    """This rank's part of the network, and what trains it."""

    layers: Layers
    modules: list[Any]
    """The network's chunks themselves."""
    chunks: list[Any]
    """The same, wrapped in data parallelism."""
    step: TrainStep
    auxiliary: AuxiliaryLosses
    optimizer: Any
    captured: CapturedPasses | None
    """The passes of a training step, where they are a CUDA graph."""


@dataclass(frozen=True)
class TrainingData:
    """What is read, and how much of it by each step."""

    vocabulary: Vocabulary
    schedule: BatchSchedule
    hyperparameters: HyperparameterSchedule
    train: Dataset[Any]
    validation: dict[str, Dataset[Any]]


@dataclass
class Agreed:
    """What follows for all ranks from what each has said, and what this one says next."""

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


@dataclass
class Session:
    """One rank of a running job."""

    job: JobSpec
    launch: Launch
    processes: Processes
    network: Network
    data: TrainingData
    checkpointer: Checkpointer
    state: TrainState
    agreed: Agreed = field(default_factory=Agreed)
    batches: BatchStream = field(init=False)
    """Of the training, from `begin_batches` on."""
    loss_listeners: Sequence[Callable[[Session, StepRecord, Losses], None]] = ()
    mark: Callable[[str], None] = lambda moment: None
    """Told of the moments of a step: `passes`, before the first forward pass, and `update`, before the optimizer."""
    _pending_record: StepRecord | None = None

    @property
    def finished(self) -> bool:
        """Whether the schedule is complete."""
        return self.state.consumed_samples >= self.data.schedule.train_samples

    def progress(self) -> None:
        """Tell the watchdog that this rank is alive."""
        self.launch.watchdog.beat(self.state.iteration)

    def event(self, event: Event) -> None:
        """Add to the event log, on rank 0 and only while the lease is held."""
        if self.processes.ranks.is_first:
            self.launch.records.event(event)

    def stream(self, dataset: Dataset[Any], sampler: Iterable[list[int]]) -> BatchStream:
        """Micro-batches of a data set on this rank's device."""
        workers = self.job.data.num_workers
        if workers is None:
            workers = 2 if self.processes.device.is_cuda and not self.job.data.random_tokens else 0
        return BatchStream(
            dataset,
            sampler,
            self._get_batch,
            self.processes.device,
            workers,
            self.processes.ranks.num_chunks,
            fields_on_host(self.network.step),
        )

    def _get_batch(self, samples: Batch) -> Batch:
        """This rank's part of a micro-batch."""
        ranks = self.processes.ranks
        return slice_batch(self.network.step.get_batch(samples), self.job.model.seq_length, ranks.cp, ranks.cp_size)

    def begin_batches(self) -> None:
        """Open the training data where the training stands."""
        consumed, total = self.state.consumed_samples, self.data.schedule.train_samples
        sampler = MicroBatchSampler(self.data.schedule, consumed, total, self.processes.ranks.dp)
        self.batches = self.stream(self.data.train, sampler)

    def begin_all_reduce(self, record: StepRecord, loss: torch.Tensor | None) -> None:
        """Say this rank's part of what all ranks agree on about a step; `wait_for_all_reduce` gives the answer."""
        self._pending_record = record
        ranks = self.processes.ranks
        self.processes.control.begin_all_reduce(
            record.iteration,
            stop=self.launch.stop.is_set(),
            loss=loss if ranks.reports_loss else None,
            writer_busy=self.checkpointer.busy,
            save=self.agreed.wants_save,
            auxiliary=self.network.auxiliary.report(
                record.samples // (self.job.batch.micro_batch_size * ranks.dp_size)
            ),
        )

    def begin_save(self) -> None:
        """Start a checkpoint of the state as it is now; `checkpointer.in_progress` says whether that was possible."""
        self.wait_for_all_reduce()
        self.progress()
        for chunk in self.network.chunks:
            if chunk.ddp_config.overlap_param_gather:
                # Until the next forward pass a rank's copy of the others' shards is that of the step before.
                chunk.start_param_sync(force_sync=True)
        self.checkpointer.begin(self.state)
        # What was agreed on was about the save before this one, or asked for this one.
        agreed = self.agreed
        agreed.writing_ended = agreed.wants_save = agreed.save_due = False

    def wait_for_all_reduce(self) -> None:
        """Take what all ranks agreed on in the last `begin_all_reduce`, and report its loss."""
        said = self.processes.control.wait()
        if said is None:
            return
        record, self._pending_record = self._pending_record, None
        assert record is not None
        agreed = self.agreed
        agreed.stopping = agreed.stopping or said.stop
        agreed.save_due = said.save
        agreed.writing_ended = self.checkpointer.in_progress and said.writers_busy == 0
        step, auxiliary = self.network.step, self.network.auxiliary
        losses = Losses.of(step.parts, said.sums, auxiliary.names, said.auxiliary, metrics_of(step))
        for listener in self.loss_listeners:
            listener(self, record, losses)
