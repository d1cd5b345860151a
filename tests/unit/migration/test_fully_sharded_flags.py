"""Megatron-LM's FSDP, and torch's, as `parallelism.fsdp`; and that as Megatron-LM's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.migration.to_megatron import to_megatron

Flags = Callable[..., Any]
MEGATRON = "--use-megatron-fsdp --data-parallel-sharding-strategy"


@pytest.mark.parametrize(
    ("words", "fsdp", "shards_optimizer", "overlaps"),
    [
        (f"{MEGATRON} optim_grads_params --overlap-grad-reduce --overlap-param-gather", "full", True, True),
        (f"{MEGATRON} optim_grads_params --use-distributed-optimizer", "full", True, False),
        ("--use-torch-fsdp2 --torch-fsdp2-no-reshard-after-forward", "full", True, True),
        (f"{MEGATRON} optim", None, True, False),
        (f"{MEGATRON} no_shard", None, False, False),
        ("--use-megatron-fsdp", None, False, False),
        ("--data-parallel-sharding-strategy optim_grads_params", None, False, False),
    ],
)
def test_what_is_sharded(words: str, fsdp: str | None, shards_optimizer: bool, overlaps: bool, flags: Flags) -> None:
    found = flags(*words.split())
    degrees = found.job.parallelism
    assert (degrees.fsdp, degrees.use_distributed_optimizer) == (fsdp, shards_optimizer)
    assert (degrees.overlap_grad_reduce, degrees.overlaps_param_gather) == (overlaps, overlaps)
    assert found.migration.is_complete


def test_an_unknown_strategy_has_to_be_written(flags: Flags) -> None:
    found = flags(*f"{MEGATRON} all".split())
    assert not found.migration.is_complete
    assert found.outcome("--data-parallel-sharding-strategy") == "not_supported"


def test_it_is_written_as_megatrons_own(flags: Flags) -> None:
    job = flags(*f"{MEGATRON} optim_grads_params --save-interval 10 --save x --async-save".split()).job
    command = to_megatron(job)
    words = " ".join(command.words)
    assert f"{MEGATRON} optim_grads_params" in words
    assert "--ckpt-format fsdp_dtensor" in words
    assert "fully-reshardable" not in words
    assert "--async-save" not in command.words, "Megatron-LM 0.16 has it for torch_dist alone"
    assert [each.path for each in command.otherwise if each.path == "checkpoint.async_save"]
    assert all(each.path != "parallelism.fsdp" for each in command.unsaid)


@pytest.mark.parametrize(
    "changed",
    [{"optimizer": {"name": "muon"}}, {"launch": {"gpus_per_node": 1}, "parallelism": {"data_parallel_size": 1}}],
)
def test_what_megatron_does_not_have(changed: dict[str, dict[str, Any]], flags: Flags) -> None:
    job = flags(*f"{MEGATRON} optim_grads_params".split()).job.changed(**changed)
    command = to_megatron(job)
    assert "--use-megatron-fsdp" not in command.words
    assert [each.path for each in command.unsaid if each.path == "parallelism.fsdp"] == ["parallelism.fsdp"]


def test_groups_of_replicas_are_instances_of_the_optimizer(flags: Flags) -> None:
    job = flags(*f"{MEGATRON} optim_grads_params".split()).job
    sections = {"launch": {"gpus_per_node": 8}, "parallelism": {"fsdp": 4}, "batch": {"global_batch_size": 16}}
    words = to_megatron(job.changed(**sections)).words
    assert words[words.index("--num-distributed-optimizer-instances") + 1] == "2"
