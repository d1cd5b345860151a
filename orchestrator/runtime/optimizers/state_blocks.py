"""Optimizer state in the host's memory, in blocks that come to the GPU for an update and go back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from orchestrator.planning.offloaded_state import BLOCKS_ON_DEVICE
from orchestrator.runtime.host_copies import page_locked

ALIGNED = 64
"""Intervals begin at a multiple of so many elements, of their parameter and of their block: kernels read them as they
read whole parameters.
"""
_CUDA: Any = torch.cuda  # much of it has no types

State = dict[str, torch.Tensor]
"""Tensors of as many elements, by their names in a checkpoint."""


@dataclass(frozen=True)
class Interval:
    """Elements of a parameter, counted as they lie in memory."""

    parameter: torch.Tensor
    start: int
    count: int
    place: int = 0
    """Where their state begins in its block."""

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """These elements of a tensor that has the parameter's, flat."""
        return tensor.detach().view(-1)[self.start : self.start + self.count]

    def within(self, state: State) -> State:
        """Of a block's state that of these elements."""
        return {key: tensor[self.place : self.place + self.count] for key, tensor in state.items()}


@dataclass(frozen=True)
class Block:
    """State that moves at once."""

    intervals: tuple[Interval, ...]
    state: State
    """In the host's memory."""


def packed(intervals: Sequence[Interval], elements: int) -> Iterator[tuple[tuple[Interval, ...], int]]:
    """Intervals, cut where they must be, in blocks of at most so many elements, each with how many it has."""
    held: list[Interval] = []
    filled = 0
    for each in intervals:
        start, stop = each.start, each.start + each.count
        while start < stop:
            count = min(stop - start, elements - filled)
            held.append(Interval(each.parameter, start, count, filled))
            start, filled = start + count, -(-(filled + count) // ALIGNED) * ALIGNED
            if filled >= elements:
                yield tuple(held), filled
                held, filled = [], 0
    if held:
        yield tuple(held), filled


def host_zeros(elements: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros in the host's memory: page-locked, where they go to a GPU and back."""
    if device.type == "cpu":
        return torch.zeros(elements, dtype=dtype)
    return page_locked(elements * dtype.itemsize).view(dtype).zero_()


class Event(Protocol):
    """Something that will be done."""

    def wait(self) -> None:
        """Have what is computed from now on wait for it."""
        ...


class Queue(Protocol):
    """Does copies one after the other, beside what is computed."""

    def add(self, work: Callable[[], None], after: Event | None) -> Event | None:
        """Do this next, but not before that is done. Returns when it is done."""
        ...

    def computed(self) -> Event | None:
        """When all that is being computed is done."""
        ...

    def finish(self) -> None:
        """Wait here until all is done."""
        ...


class CUDAQueue:
    """A stream of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._stream = _CUDA.Stream(device)

    def add(self, work: Callable[[], None], after: Any) -> Any:
        """See Queue."""
        if after is not None:
            self._stream.wait_event(after)
        with _CUDA.stream(self._stream):
            work()
        return self._stream.record_event()

    def computed(self) -> Any:
        """See Queue."""
        return _CUDA.current_stream().record_event()

    def finish(self) -> None:
        """See Queue."""
        self._stream.synchronize()


class NoQueue:
    """Of a CPU, which computes and copies in turn."""

    def add(self, work: Callable[[], None], after: Event | None) -> None:
        """See Queue."""
        work()

    def computed(self) -> None:
        """See Queue."""

    def finish(self) -> None:
        """See Queue."""


class BlockTransfers:
    """Brings blocks to a device in their order, and back. A few are there at a time, each in a place of its own."""

    def __init__(
        self, blocks: Sequence[Block], device: torch.device, queue: Callable[[torch.device], Queue] | None = None
    ) -> None:
        """`queue`: what does copies in one direction."""
        self.blocks = blocks
        self._places = [
            _memory_for(blocks[first::BLOCKS_ON_DEVICE], device) for first in range(min(BLOCKS_ON_DEVICE, len(blocks)))
        ]
        make = queue or (CUDAQueue if device.type == "cuda" else lambda _: NoQueue())
        self._coming, self._going = make(device), make(device)
        self._there: list[Event | None] = [None for _ in self._places]
        """When the block that comes to each place is there."""
        self._gone: list[Event | None] = [None for _ in self._places]
        """When the last one that was there is back."""

    def on_device(self, number: int) -> State:
        """Where the state of a block is while it is there."""
        memory = self._places[number % len(self._places)]
        return {key: memory[key][: tensor.numel()] for key, tensor in self.blocks[number].state.items()}

    def begin(self) -> None:
        """Let the first blocks come."""
        for number in range(len(self._places)):
            self._fetch(number)

    def wait(self, number: int) -> None:
        """Have what is computed from now on find a block on the device."""
        there = self._there[number % len(self._places)]
        if there is not None:
            there.wait()

    def give_back(self, number: int) -> None:
        """Let a block go once it is updated, and the next one come to its place."""
        held, place = self.on_device(number), number % len(self._places)
        self._gone[place] = self._going.add(lambda: _copy(self.blocks[number].state, held), self._going.computed())
        if number + len(self._places) < len(self.blocks):
            self._fetch(number + len(self._places))

    def _fetch(self, number: int) -> None:
        """A block that went in an earlier update went before the last one of its place."""
        held, place = self.on_device(number), number % len(self._places)
        self._there[place] = self._coming.add(lambda: _copy(held, self.blocks[number].state), self._gone[place])

    def settle(self) -> None:
        """Wait until every block is back."""
        self._going.finish()


def _memory_for(blocks: Sequence[Block], device: torch.device) -> State:
    """For any of these blocks."""
    sizes: dict[str, tuple[int, torch.dtype]] = {}
    for block in blocks:
        for key, tensor in block.state.items():
            sizes[key] = max(sizes.get(key, (0, tensor.dtype))[0], tensor.numel()), tensor.dtype
    return {key: torch.empty(size, dtype=dtype, device=device) for key, (size, dtype) in sizes.items()}


def _copy(to: State, state: State) -> None:
    for key, tensor in state.items():
        to[key].copy_(tensor, non_blocking=True)
