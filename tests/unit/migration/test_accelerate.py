"""Accelerate's configuration of a Megatron-LM training."""

from __future__ import annotations

import pytest
from support.refused import refused

from orchestrator.errors import SpecError
from orchestrator.migration.from_accelerate import is_accelerate, migrate_accelerate
from orchestrator.migration.overrides import override
from orchestrator.migration.report import Migration
from orchestrator.migration.yaml_writer import job_text
from orchestrator.spec.loading import load_text

CONFIG = """\
compute_environment: LOCAL_MACHINE
deepspeed_config: {}
distributed_type: MEGATRON_LM
downcast_bf16: 'no'
machine_rank: 0
main_process_ip: null
megatron_lm_config:
  megatron_lm_gradient_clipping: 0.5
  megatron_lm_num_micro_batches: 2
  megatron_lm_pp_degree: 2
  megatron_lm_recompute_activations: true
  megatron_lm_sequence_parallelism: true
  megatron_lm_tp_degree: 2
  megatron_lm_use_distributed_optimizer: false
mixed_precision: fp16
num_machines: 2
num_processes: 16
rdzv_backend: static
use_cpu: false
"""
REST = ("data.blend=data/mine", "data.tokenizer.path=tokenizer.json", "optimizer.lr=5e-5", "schedule.train_iters=245")


def whole(text: str = CONFIG, *more: str) -> Migration:
    migration = migrate_accelerate(text, "config.yaml", "gpt2-large")
    for each in (*REST, *more):
        override(migration, each)
    return migration


def test_what_it_says_is_in_the_job() -> None:
    job = load_text(job_text(whole())).job
    parallelism = job.parallelism
    assert (parallelism.tensor_model_parallel_size, parallelism.pipeline_model_parallel_size) == (2, 2)
    assert parallelism.uses_sequence_parallel
    assert not parallelism.use_distributed_optimizer
    assert (job.launch.nodes, job.launch.gpus_per_node, job.data_parallel_size) == (2, 8, 4)
    assert (job.batch.num_micro_batches, job.optimizer.clip_grad) == (2, 0.5)
    assert (job.precision.dtype, job.runtime.recompute_granularity) == ("fp16", "selective")
    assert (job.model.preset, job.name) == ("gpt2-large", "config")


def test_what_it_leaves_out_is_accelerates_default_or_said_to_be_taken() -> None:
    shorter = CONFIG.replace("  megatron_lm_use_distributed_optimizer: false\n", "")
    assert shorter != CONFIG
    migration = whole(shorter)
    assert not load_text(job_text(migration)).job.parallelism.use_distributed_optimizer
    assert any("the micro-batch is the batch of the program's data loader" in note for note in migration.notes)


def test_what_it_cannot_say_is_asked_for() -> None:
    migration = migrate_accelerate(CONFIG, "config.yaml")
    assert set(migration.missing) == {
        *("model.num_layers", "model.hidden_size", "model.num_attention_heads", "model.seq_length"),
        *("data.blend", "optimizer.lr", "schedule.train_iters"),
    }
    with pytest.raises(SpecError) as raised:
        load_text(job_text(migration))
    named = {problem.paths[0] for problem in raised.value.problems}
    assert {"model.num_layers", "optimizer.lr", "schedule.train_iters"} <= named
    assert any(path.startswith("data") for path in named)


def test_every_key_is_accounted_for() -> None:
    migration = migrate_accelerate(CONFIG + "dynamo_config: {backend: inductor}\nnew_thing: 3\n", "config.yaml")
    told = {account.flag.partition(":")[0] for account in migration.accounts}
    lines = [line.strip().partition(":")[0] for line in CONFIG.splitlines()]
    assert {line for line in lines if line != "megatron_lm_config"} <= told
    assert [account.flag for account in migration.of("no_counterpart")] == [
        *("dynamo_config: {'backend': 'inductor'}", "new_thing: 3"),
    ]


@pytest.mark.parametrize(
    ("key", "value", "path", "meant"),
    [
        ("mixed_precision: fp16", "mixed_precision: 'no'", "precision.dtype", "fp32"),
        ("mixed_precision: fp16", "mixed_precision: no", "precision.dtype", "fp32"),
        ("mixed_precision: fp16", "mixed_precision: bf16", "precision.dtype", "bf16"),
        ("mixed_precision: fp16\n", "", "precision.dtype", "fp32"),
        ("use_cpu: false", "use_cpu: true\nmixed_precision: no", "runtime.device", "cpu"),
        ("tp_degree: 2", "tp_degree: '2'", "parallelism.tensor_model_parallel_size", 2),
        ("tp_degree: 2", "tp_degree: 1", "parallelism.sequence_parallel", False),
        ("recompute_activations: true", "recompute_activations: false", "runtime.recompute_granularity", None),
    ],
)
def test_values(key: str, value: str, path: str, meant: object) -> None:
    text = CONFIG.replace("mixed_precision: fp16\n", "") if "use_cpu" in key else CONFIG
    job = load_text(job_text(whole(text.replace(key, value)))).job
    section, name = path.split(".")
    assert getattr(getattr(job, section), name) == meant


@pytest.mark.parametrize(
    ("key", "value", "path"),
    [
        ("tp_degree: 2", "tp_degree: two", "parallelism.tensor_model_parallel_size"),
        ("mixed_precision: fp16", "mixed_precision: fp8", "precision.dtype"),
        ("num_processes: 16", "num_processes: 15", "launch.gpus_per_node"),
        ("sequence_parallelism: true", "sequence_parallelism: maybe", "parallelism.sequence_parallel"),
    ],
)
def test_values_that_are_none(key: str, value: str, path: str) -> None:
    migration = whole(CONFIG.replace(key, value))
    assert path in migration.missing
    with pytest.raises(SpecError):
        load_text(job_text(migration))


def test_other_files_are_refused() -> None:
    with refused("accelerate_without_megatron"):
        migrate_accelerate("num_processes: 4\n", "x.yaml")
    with pytest.raises(SpecError):
        migrate_accelerate("a: [", "x.yaml")
    assert is_accelerate(CONFIG)
    assert not is_accelerate("#!/bin/bash\ntorchrun x.py")


def test_a_value_can_be_taken_back() -> None:
    migration = whole(CONFIG, "optimizer.clip_grad=null", "batch={micro_batch_size: 4, num_micro_batches: 8}")
    job = load_text(job_text(migration)).job
    assert job.optimizer.clip_grad == 1.0
    assert (job.batch.micro_batch_size, job.batch.num_micro_batches) == (4, 8)
    with pytest.raises(SpecError):
        override(migration, "nonsense")
