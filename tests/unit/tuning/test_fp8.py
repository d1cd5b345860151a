"""FP8 is not the tuner's to choose: every layout that it proposes has the job's, and sizes that FP8 can multiply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from orchestrator.planning.hardware import device_named
from orchestrator.spec.rules import check
from orchestrator.tuning.estimates import PlanEstimates
from orchestrator.tuning.layout import with_layout
from orchestrator.tuning.search import search
from orchestrator.tuning.space import Space


def test_every_layout_keeps_it(space: Callable[..., Space]) -> None:
    sections: dict[str, Any] = {
        "model": {"ffn_hidden_size": 4096 + 32, "seq_length": 1024},
        "precision": {"fp8": {"recipe": "blockwise"}},
    }
    own = space(8, **sections)
    estimates = PlanEstimates(device_named("H200"), "transformer_engine", 32000)
    found, plain = search(own, estimates), search(space(8, model=sections["model"]), estimates)
    for candidate in (*found.fitting, *found.leaner):
        job = with_layout(own.job, candidate.layout)
        assert job.precision == own.job.precision
        assert check(job) == []
    # 4128 / 4 = 1032 is no multiple of 16.
    assert max(candidate.layout.tp for candidate in found.fitting) == 2
    assert max(candidate.layout.tp for candidate in plain.fitting) >= 4
