"""Optimizer state in the host's memory, in blocks that come to the GPU for an update and go back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from orchestrator.planning.offloaded_state import BLOCKS_ON_DEVICE

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


class BlockTransfers:
    """Brings blocks to a device in their order, and back: a few are there at a time, each copy goes by itself."""

    def __init__(self, blocks: Sequence[Block], device: torch.device) -> None:
        self.blocks = blocks
        self._slots = [_Slot(blocks, device) for _ in range(min(BLOCKS_ON_DEVICE, len(blocks)))]
        self._coming, self._going = (
            (_CUDA.Stream(device), _CUDA.Stream(device)) if device.type == "cuda" else (None,) * 2
        )

    def on_device(self, number: int) -> State:
        """Where the state of a block is while it is there."""
        return self._slots[number % len(self._slots)].of(self.blocks[number])

    def begin(self) -> None:
        """Let the first blocks come. What went last has arrived by then."""
        if self._coming is not None:
            self._coming.wait_stream(self._going)
            self._coming.wait_stream(_CUDA.current_stream())
        for number in range(len(self._slots)):
            self._fetch(number)

    def wait(self, number: int) -> None:
        """Have the current stream wait until a block is there."""
        filled = self._slots[number % len(self._slots)].filled
        if filled is not None:
            filled.wait()

    def give_back(self, number: int) -> None:
        """Let an updated block go, and the next one come to its place."""
        slot, held = self._slots[number % len(self._slots)], self.on_device(number)
        if self._going is not None:
            self._going.wait_stream(_CUDA.current_stream())
        with _on(self._going):
            _copy(self.blocks[number].state, held)
        if self._coming is not None:
            slot.freed = self._going.record_event()
        if number + len(self._slots) < len(self.blocks):
            self._fetch(number + len(self._slots))

    def _fetch(self, number: int) -> None:
        slot = self._slots[number % len(self._slots)]
        if self._coming is not None and slot.freed is not None:
            self._coming.wait_event(slot.freed)
        with _on(self._coming):
            _copy(self.on_device(number), self.blocks[number].state)
        if self._coming is not None:
            slot.filled = self._coming.record_event()

    def settle(self) -> None:
        """Wait until every block is back."""
        if self._going is not None:
            self._going.synchronize()


class _Slot:
    """Memory of a device for any of the blocks."""

    def __init__(self, blocks: Sequence[Block], device: torch.device) -> None:
        sizes: dict[str, tuple[int, torch.dtype]] = {}
        for block in blocks:
            for key, tensor in block.state.items():
                sizes[key] = max(sizes.get(key, (0, tensor.dtype))[0], tensor.numel()), tensor.dtype
        self._state = {key: torch.empty(size, dtype=dtype, device=device) for key, (size, dtype) in sizes.items()}
        self.filled: Any = None
        """When the block that it is for has come; None where copies are waited for."""
        self.freed: Any = None
        """When the block before has gone."""

    def of(self, block: Block) -> State:
        return {key: self._state[key][: tensor.numel()] for key, tensor in block.state.items()}


def _copy(to: State, state: State) -> None:
    for key, tensor in state.items():
        to[key].copy_(tensor, non_blocking=True)


def _on(stream: Any) -> AbstractContextManager[Any]:
    return nullcontext() if stream is None else _CUDA.stream(stream)
