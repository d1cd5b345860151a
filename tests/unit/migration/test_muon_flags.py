"""Muon from and to Megatron-LM's flags."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from orchestrator.migration.to_megatron import to_megatron


def test_muon(flags: Callable[..., Any]) -> None:
    """Megatron-LM's own defaults where flags are not given; dist_muon is Muon with a distributed optimizer."""
    optimizer = flags("--optimizer", "muon", "--muon-no-split-qkv", "--muon-nesterov").job.optimizer
    assert (optimizer.name, optimizer.muon_split_qkv, optimizer.muon_use_nesterov) == ("muon", False, True)
    assert (optimizer.muon_momentum, optimizer.muon_extra_scale_factor) == (0.9, 1.0)
    for name, is_shared in {"muon": False, "dist_muon": True}.items():
        job = flags("--optimizer", name).job
        assert job.parallelism.use_distributed_optimizer is is_shared
        words = to_megatron(job).words
        assert words[words.index("--optimizer") + 1] == name
        assert "--use-distributed-optimizer" not in words
    assert flags("--optimizer", "muon", "--muon-tp-mode", "blockwise").outcome("--muon-tp-mode") == "not_supported"
