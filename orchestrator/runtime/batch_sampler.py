"""Which samples a rank reads at which step: a function of the samples consumed, never of workers or ranks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from orchestrator.planning.training_schedule.batch import BatchSchedule
from orchestrator.runtime.processes.device import Device
from orchestrator.runtime.steps.base import Batch


class RandomTokens(Dataset[dict[str, torch.Tensor]]):
    """Random sequences for benchmarks, the same for the same index."""

    def __init__(self, vocab_size: int, seq_length: int, seed: int, length: int) -> None:
        self.vocab_size, self.seq_length, self.seed, self.length = vocab_size, seq_length, seed, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        tokens = torch.randint(0, self.vocab_size, (self.seq_length + 1,), generator=generator)
        return {
            "tokens": tokens[:-1],
            "labels": tokens[1:],
            "loss_mask": torch.ones(self.seq_length),
            "position_ids": torch.arange(self.seq_length),
        }


class MicroBatchSampler:
    """Yields the sample indices of each micro-batch of one replica, from `consumed_samples` on.

    Micro-batch m of replica r of a step that starts at sample c holds c + (m · DP + r) · micro + [0, micro).
    """

    def __init__(self, schedule: BatchSchedule, consumed_samples: int, total_samples: int, replica: int) -> None:
        self.schedule, self.consumed, self.total, self.replica = schedule, consumed_samples, total_samples, replica

    def __iter__(self) -> Iterator[list[int]]:
        micro, replicas = self.schedule.micro_batch_size, self.schedule.data_parallel_size
        start = self.consumed
        while start < self.total:
            for number in range(self.schedule.num_micro_batches(start)):
                first = start + (number * replicas + self.replica) * micro
                yield list(range(first, first + micro))
            start += self.schedule.global_batch_size(start)


class BatchStream:
    """An endless-enough iterator of micro-batches on the device, for the model chunks of one rank.

    Virtual stages each ask for the same micro-batches, so each gets an iterator of its own over shared fetches.
    `get_batch` makes a micro-batch of the data set's fields, once they are collated and on the device.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        sampler: Any,
        get_batch: Callable[[Batch], Batch],
        device: Device,
        workers: int,
        num_chunks: int,
        on_host: Collection[str] = (),
    ) -> None:
        """`on_host`: names of fields that stay in the host's memory."""
        loader = DataLoader(
            dataset,
            batch_sampler=sampler,
            num_workers=workers,
            pin_memory=device.is_cuda,
            persistent_workers=workers > 0,
            # A loader draws a seed for its workers; from the default generator that would shift dropout on a resume.
            generator=torch.Generator(),
        )
        self._source = iter(loader)
        self._get_batch = get_batch
        self._device, self._on_host = device, on_host
        self._queues: list[list[Batch]] = [[] for _ in range(num_chunks)]

    def iterators(self) -> Sequence[Iterator[Batch]]:
        """One iterator per model chunk."""
        return [self._iterate(index) for index in range(len(self._queues))]

    def fetch_ahead(self) -> None:
        """Have the next micro-batch ready, while the GPU is busy: it would wait for the host behind the update. Behind
        the last one there is none.
        """
        if not any(self._queues):
            self._fetch()

    def _iterate(self, index: int) -> Iterator[Batch]:
        queue = self._queues[index]
        while queue or self._fetch():
            yield queue.pop(0)

    def _fetch(self) -> bool:
        """The next micro-batch, for every chunk; False behind the last one."""
        collated = next(self._source, None)
        if collated is None:
            return False
        device = self._device.torch_device
        samples = {
            name: values if name in self._on_host else values.to(device, non_blocking=True)
            for name, values in collated.items()
        }
        batch = self._get_batch(samples)
        for queue in self._queues:
            queue.append(batch)
        return True
