"""The host's speed, which is measured where there is a GPU alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.clock import own_clock
from support.cuda import show_gpus

from orchestrator.runtime.processes import host
from orchestrator.runtime.processes.device import Device
from orchestrator.runtime.processes.host import slowest_start, start_seconds

GPU, OLDER = (Device("cuda", torch.device("cpu"), "nccl", name) for name in ("NVIDIA H100 80GB HBM3", "Tesla V100"))
CPU = Device("cpu", torch.device("cpu"), "gloo", "cpu")


class WithAnother:
    """What the first of two ranks agrees on; the other host takes so long."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def gather_to_first(self, own: float) -> list[float]:
        return [own, self._seconds]

    def from_first(self, said: float) -> float:
        return said


class Clock:
    """Time goes on by what each round of passes takes."""

    def __init__(self, rounds: list[float]) -> None:
        self._now, self._rounds = 0.0, iter(rounds)
        self._asked = 0

    def perf_counter(self) -> float:
        self._asked += 1
        if self._asked % 2 == 0:
            self._now += next(self._rounds)
        return self._now


def test_the_slowest_host_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "start_seconds", lambda device: 7e-6)
    for other, slowest in ((9e-6, 9e-6), (5e-6, 7e-6)):
        control: Any = WithAnother(other)
        assert slowest_start(GPU, control) == slowest


@pytest.mark.parametrize("device", [CPU, OLDER], ids=["CPU", "a GPU before Hopper"])
def test_where_nothing_is_chosen_by_it_nothing_is_measured(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "start_seconds", None)
    control: Any = WithAnother(0.0)
    assert slowest_start(device, control) == 0.0


def test_an_undisturbed_round_counts_and_no_random_number_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    show_gpus(monkeypatch, synchronize=None)
    own_clock(monkeypatch, host.__name__, Clock([9.0, 9.0, *(1.0 for _ in range(6)), 0.00605, 0.00605, 0.00605]))
    before = torch.get_rng_state()
    assert start_seconds(torch.device("cpu")) == pytest.approx(1e-5)
    assert torch.equal(torch.get_rng_state(), before)
