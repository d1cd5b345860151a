"""Copies of tensors that a checkpoint is written from."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from support.cuda import show_gpus
from support.refusals import refuse

from orchestrator.runtime import host_copies
from orchestrator.runtime.host_copies import HostCopies


def as_if_on_a_gpu(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that says it is on a GPU."""

    class Elsewhere(torch.Tensor):
        is_cuda = True

    return tensor.as_subclass(Elsewhere)


def takes(monkeypatch: pytest.MonkeyPatch, take: Callable[[int], torch.Tensor]) -> None:
    """Memory is taken so."""
    monkeypatch.setattr(host_copies, "page_locked", take)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of memory that was asked for, of the common kind: there is no GPU."""
    sizes: list[int] = []

    def take(size: int) -> torch.Tensor:
        sizes.append(size)
        return torch.zeros(size, dtype=torch.uint8)

    takes(monkeypatch, take)
    show_gpus(monkeypatch, synchronize=None)
    return sizes


def test_copies_are_of_the_moment_and_their_memory_is_used_again(taken: list[int]) -> None:
    tensors = [as_if_on_a_gpu(torch.rand(3, 4, dtype=dtype)) for dtype in (torch.float32, torch.bfloat16)]
    tensors.append(as_if_on_a_gpu(torch.rand(12)))
    copies = HostCopies()
    copies.take_ahead([48, 24])
    expected = [tensor.clone() for tensor in tensors]
    first = copies.of(tensors)
    for tensor in tensors:
        tensor.zero_()
    for copy, tensor in zip(first, expected, strict=True):
        assert torch.equal(copy, tensor)
        assert copy.dtype == tensor.dtype
    assert sorted(taken) == [24, 48, 48], "two ahead, and one that nobody had expected"
    assert not any(copy.any() for copy in copies.of(tensors))
    assert len(taken) == 3


def test_what_is_on_the_host_is_copied_too() -> None:
    tensor = torch.ones(3)
    [copy] = HostCopies().of([tensor])
    tensor.zero_()
    assert copy.tolist() == [1, 1, 1]


def test_closing_ends_the_taking(monkeypatch: pytest.MonkeyPatch) -> None:
    copies, asked = HostCopies(), threading.Event()
    sizes: list[int] = []

    def take(size: int) -> torch.Tensor:
        sizes.append(size)
        asked.set()
        assert copies.closed.wait(60)
        return torch.zeros(size, dtype=torch.uint8)

    takes(monkeypatch, take)
    copies.take_ahead([1, 1, 1])
    assert asked.wait(60)
    copies.close()
    assert sizes == [1]


def test_common_memory_where_none_can_be_page_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    out_of_memory = RuntimeError("CUDA error: out of memory")
    refuse(monkeypatch, "torch.empty", out_of_memory, lambda *size, pin_memory=False, **named: pin_memory)
    assert host_copies.page_locked(8).nbytes == 8
