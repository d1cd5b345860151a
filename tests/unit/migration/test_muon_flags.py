"""Muon, and Adam's state, from and to Megatron-LM's flags."""

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


SHARED = ("--use-distributed-optimizer", "--use-precision-aware-optimizer")


def test_state_in_host_memory(flags: Callable[..., Any]) -> None:
    """All of it where no fraction is given, as in Megatron-LM's parser; a fraction alone moves nothing."""
    for words, fraction in {
        ("--optimizer-cpu-offload",): 1.0,
        ("--optimizer-cpu-offload", "--optimizer-offload-fraction", "0.25", "--overlap-cpu-optimizer-d2h-h2d"): 0.25,
        ("--optimizer-cpu-offload", "--use-torch-optimizer-for-cpu-offload", "--no-pin-cpu-grads"): 1.0,
        ("--optimizer-cpu-offload", "--optimizer-offload-fraction", "0"): 0.0,
        ("--optimizer-offload-fraction", "0.5"): 0.0,
    }.items():
        migrated = flags(*SHARED, *words)
        assert migrated.job.optimizer.offload_fraction == fraction
        assert {migrated.outcome(word) for word in words if word.startswith("--")} <= {
            "carried",
            "default",
            "no_effect",
        }
        written = to_megatron(migrated.job).words
        assert ("--optimizer-cpu-offload" in written) == (fraction > 0)
        if fraction:
            assert written[written.index("--optimizer-offload-fraction") + 1] == str(fraction)
            assert (
                written.count("--use-precision-aware-optimizer")
                == written.count("--overlap-cpu-optimizer-d2h-h2d")
                == 1
            )


def test_what_megatron_lm_does_not_offload(flags: Callable[..., Any]) -> None:
    """Its moments on the host are in fp32, whatever is asked for, and it refuses the original Adam."""
    words = ("--optimizer-cpu-offload", "--exp-avg-dtype", "bf16")
    written = to_megatron(flags(*SHARED, *words).job)
    assert "--exp-avg-dtype" not in written.words
    assert "--optimizer-cpu-offload" in written.words
    assert "optimizer.exp_avg_dtype" in {each.path for each in written.unsaid}
    job = flags(*SHARED, "--optimizer-cpu-offload").job.changed(optimizer={"decoupled_weight_decay": False})
    coupled = to_megatron(job)
    assert "--optimizer-cpu-offload" not in coupled.words
    assert "optimizer.offload_fraction" in {each.path for each in coupled.unsaid}
