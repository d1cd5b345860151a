"""The quickstart's model on the CPU keeps up with a plain PyTorch loop of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.faults import Ranks

BENCHMARKS = Path(__file__).parent / "benchmarks"


@pytest.mark.slow("two trainings in turns, to hold a promised speed")
@pytest.mark.timeout(300)
def test_nine_tenths_of_a_plain_loop_at_least(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the medians of fifteen steps in turns, and but for the time in which they had no core, as other tests run
    meanwhile: the benchmark itself goes by the clock. What a step waits for counts. It sees to it that the losses are
    the same.
    """
    monkeypatch.setenv("FORKED_TOO", "bench_cpu")
    said = ranks.program(BENCHMARKS, "bench_cpu", "--steps", "15", "--attempts", "3", "--json", seconds=280)
    assert json.loads(said.splitlines()[-1])["own_ratio"] >= 0.9, said
