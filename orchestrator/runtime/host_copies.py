"""Copies of a GPU's tensors in the host's memory, which a checkpoint is written from while training goes on.

A GPU fills page-locked memory at its full speed, but such memory is slow to get (seconds per 10 GB). So it is kept from
one save to the next, and may be taken before the first one, beside the training.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch


class HostCopies:
    """What tensors are copied to. Copies last until the next ones are made."""

    def __init__(self) -> None:
        self._buffers: dict[int, list[torch.Tensor]] = {}
        """By their bytes."""
        self._taking: threading.Thread | None = None
        self.closed = threading.Event()

    def take_ahead(self, sizes: Iterable[int]) -> None:
        """Begin to take memory for tensors of these bytes, in a thread of its own."""
        wanted = Counter(sizes)

        def take() -> None:
            for size, count in wanted.items():
                for _ in range(count):
                    if self.closed.is_set():
                        return
                    self._buffers.setdefault(size, []).append(page_locked(size))

        self._taking = threading.Thread(target=take, name="checkpoint-memory")
        self._taking.start()

    def of(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copies that later steps cannot change."""
        if self._taking is not None:
            self._taking.join()
        used: Counter[int] = Counter()
        copies = []
        for tensor in tensors:
            if not is_copied_to_page_locked(tensor):
                copies.append(tensor.detach().to("cpu", copy=True))
                continue
            buffers = self._buffers.setdefault(tensor.nbytes, [])
            if used[tensor.nbytes] == len(buffers):
                buffers.append(page_locked(tensor.nbytes))
            buffer = buffers[used[tensor.nbytes]].view(tensor.dtype).view(tensor.shape)
            used[tensor.nbytes] += 1
            copies.append(buffer.copy_(tensor.detach(), non_blocking=True))
        if used:
            torch.cuda.synchronize()
        return copies

    def close(self) -> None:
        """Take no more."""
        self.closed.set()
        if self._taking is not None:
            self._taking.join()


def is_copied_to_page_locked(tensor: torch.Tensor) -> bool:
    """Whether a copy takes memory that is slow to get: of a GPU's tensors, and of those that go to one and back."""
    cuda: Any = torch.cuda  # which asking after memory would begin to use
    return tensor.is_cuda or (cuda.is_initialized() and tensor.is_pinned())


def page_locked(size: int) -> torch.Tensor:
    """Memory of this many bytes; where the system gives no more that is page-locked, of the common kind."""
    try:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)
    except RuntimeError:
        return torch.empty(size, dtype=torch.uint8)
