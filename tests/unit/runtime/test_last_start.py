"""What a run goes on with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.event_log import append_event

from orchestrator.run_directory.rundir import RunDir
from orchestrator.runtime.records.last_start import LastStart

HERE, ELSEWHERE = {"tp": 1, "pp": 2}, {"tp": 2, "pp": 1}
GPU = {"kind": "started", "device": "NVIDIA H100", "topology": HERE, "layers": "torch", "cuda_graphs": True}


@pytest.mark.parametrize(
    ("starts", "expected"),
    [
        ([], LastStart()),
        ([GPU], LastStart("torch", True)),
        ([GPU, {**GPU, "layers": "transformer_engine", "cuda_graphs": False}], LastStart("transformer_engine", False)),
        ([GPU, {**GPU, "device": "cpu"}], LastStart()),
        ([GPU, {**GPU, "topology": ELSEWHERE}], LastStart()),
        ([{"kind": "started", "device": "NVIDIA H100", "topology": HERE}], LastStart()),
    ],
    ids=["none", "one", "the last", "on a CPU", "at another layout", "of an earlier version"],
)
def test_the_last_start_on_a_gpu(starts: list[dict[str, Any]], expected: LastStart, tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    for start in starts:
        append_event(run, **start)
        append_event(run, "resumed", iteration=3)
    assert LastStart.of(run, HERE) == expected
