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


def test_the_formats_of_moments(flags: Callable[..., Any]) -> None:
    """Written with the flag that Megatron-LM wants beside them; formats that need scales are refused aloud."""
    words = ("--exp-avg-dtype", "bf16", "--exp-avg-sq-dtype", "bf16")
    migrated = flags("--use-precision-aware-optimizer", "--use-distributed-optimizer", *words)
    optimizer = migrated.job.optimizer
    assert (optimizer.exp_avg_dtype, optimizer.exp_avg_sq_dtype) == ("bf16", "bf16")
    assert migrated.outcome("--use-precision-aware-optimizer") == "no_effect"
    written = to_megatron(migrated.job).words
    assert written.count("--use-precision-aware-optimizer") == 1
    assert written[written.index("--exp-avg-dtype") + 1] == written[written.index("--exp-avg-sq-dtype") + 1] == "bf16"
    alone = to_megatron(flags(*words).job)
    assert "--exp-avg-dtype" not in alone.words
    assert {"optimizer.exp_avg_dtype", "optimizer.exp_avg_sq_dtype"} <= {each.path for each in alone.unsaid}
    for refused in (("--exp-avg-dtype", "fp8"), ("--main-grads-dtype", "bf16"), ("--main-params-dtype", "fp16")):
        assert flags(*refused).outcome(refused[0]) == "not_supported"
