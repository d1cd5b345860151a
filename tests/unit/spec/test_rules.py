"""Cross-field rules: what is legal passes, and a mistake neither hides another nor causes bogus ones."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.fields.refusals import ratio

TP = "parallelism.tensor_model_parallel_size"
CP = "parallelism.context_parallel_size"
PP = "parallelism.pipeline_model_parallel_size"
VP = "parallelism.virtual_pipeline_model_parallel_size"
DP = "parallelism.data_parallel_size"
SP = "parallelism.sequence_parallel"


@pytest.mark.parametrize(
    "overrides",
    [
        [f"{TP}=4", f"{SP}=true"],
        [f"{TP}=2", f"{SP}=2"],
        [f"{SP}=1"],
        [f"{PP}=4"],
        [f"{PP}=2", f"{VP}=2"],
        [f"{VP}=1"],
        [f"{DP}=4"],
        [f"{TP}=2", f"{PP}=2", "launch.nodes=2", "launch.gpus_per_node=4"],
        ["batch.global_batch_size=null", "batch.num_micro_batches=3"],
        ["batch.num_micro_batches=4"],
        ["batch.global_batch_size=null"],
        ["batch.rampup_batch_size=[2, 2, 1000]"],
        ["schedule={train_iters: null, train_tokens: 1B, lr_warmup_iters: 10}"],
        ["schedule={train_iters: null, train_samples: 1M, lr_warmup_samples: 10k, lr_decay_samples: 2M}"],
        ["schedule={lr_warmup_samples: 799}"],
        ["schedule={lr_decay_iters: 400, lr_warmup_iters: 300}"],
        ["schedule={lr_warmup_fraction: 0}"],
        ["schedule={lr_warmup_iters: 0}"],
        ["model.num_query_groups=1"],
        ["model.num_query_groups=2", f"{TP}=2"],
        ["model={num_attention_heads: 6, kv_channels: 32}"],
        ["model={position_embedding_type: learned_absolute}"],
        ["model={position_embedding_type: learned_absolute, max_position_embeddings: 4096}"],
        ["model.rotary_percent=0.25"],
        ["model.make_vocab_size_divisible_by=1"],
        ["model={vocab_size: 261}", f"{TP}=4"],
        ["data={blend: null, random_tokens: true}", "model.vocab_size=1000", "evaluation.eval_interval=5"],
        ["data={blend: null, random_tokens: true, tokenizer: {path: tokenizer.json}}", "evaluation.eval_interval=5"],
        ["data={split: '100,0,0', validation: [held-out]}", "evaluation.eval_interval=5"],
        ["data.tokenizer={type: huggingface, path: tokenizer.json}"],
        ["data.tokenizer={type: gpt2_bpe, path: vocab.json, merges: merges.txt}"],
        ["precision={dtype: fp16, loss_scale: 1024}"],
        ["precision={dtype: fp32}", "runtime.device=cpu", "runtime.layers=torch"],
        ["checkpoint={save_interval: 100, keep_every: 200}"],
        ["checkpoint={save_interval: 1000, save_seconds: 5m}"],
        ["checkpoint.save_interval=12", "schedule.train_iters=10"],
        ["runtime={recompute_granularity: selective}"],
        ["runtime={recompute_granularity: full, recompute_method: uniform, recompute_num_layers: 2}", f"{PP}=2"],
        ["parallelism={use_distributed_optimizer: false}"],
        ["parallelism={overlap_grad_reduce: false}"],
        ["parallelism={use_distributed_optimizer: false, overlap_param_gather: false}"],
        ["launch.env={NCCL_DEBUG: INFO, MY_RANK: '1'}"],
    ],
    ids=lambda overrides: " ".join(overrides).replace("parallelism.", ""),
)
def test_legal(small: Any, overrides: list[str]) -> None:
    assert small.refused(*overrides) == []


BESIDE_ANOTHER: dict[tuple[str, ...], list[str]] = {
    ("data.validation=3", "data.random_tokens=true"): [
        "wrong_type data.validation",
        "training_data data.random_tokens",
        "random_vocabulary data.random_tokens",
    ],
    ("precision={loss_scale: much, hysteresis: 3}",): [
        "wrong_type precision.loss_scale",
        "fp16_only precision.hysteresis",
    ],
    ("runtime={device: cpu, layers: tf}", "precision.dtype=fp16"): [
        "unknown_choice runtime.layers",
        "fp16_on_cpu precision.dtype",
    ],
    ("schedule={lr_warmup_fraction: x, lr_warmup_iters: 200}",): [
        "wrong_type schedule.lr_warmup_fraction",
        "warmup_below_decay schedule.lr_warmup_iters",
    ],
    ("launch.env={A-B: x, RANK: '0'}",): ["invalid_name launch.env.A-B", "launcher_environment launch.env.RANK"],
    ("model={hidden_size: x, num_query_groups: 3}",): [
        "wrong_type model.hidden_size",
        "heads_by_query_groups model.num_query_groups",
    ],
    ("model={n_layer: 3, num_layers: 5}", f"{PP}=2"): [
        "unknown_key model.n_layer",
        "layers_by_stages parallelism.pipeline_model_parallel_size",
    ],
}


@pytest.mark.parametrize("overrides", BESIDE_ANOTHER, ids=" ".join)
def test_a_mistake_beside_it_hides_no_rule(small: Any, overrides: tuple[str, ...]) -> None:
    assert small.refused(*overrides) == BESIDE_ANOTHER[overrides]


@pytest.mark.parametrize(
    "overrides",
    [
        ["model.hidden_size=big", f"{TP}=4"],
        ["model={n_layer: 3, num_layers: null}", f"{PP}=4"],
        ["paralelism={tensor_model_parallel_size: 2}", f"{SP}=true"],
        ["batch={micro_batch_sise: 4, micro_batch_size: null, global_batch_size: 3}"],
        ["launch.gpus_per_node=3", f"{TP}=2", "batch.global_batch_size=7", "parallelism.expert_model_parallel_size=1"],
        ["model.preset=gpt3", "model.num_layers=null"],
        ["schedule={train_iters: soon, lr_warmup_iters: 10000}"],
        ["data.split=1,2", "evaluation.eval_interval=10"],
        ["data={blend: 7, random_tokens: false}"],
        ["max_steps=10", "schedule.train_iters=null"],
        ["data_path=x", "data.blend=null"],
    ],
)
def test_a_mistake_causes_no_bogus_ones(small: Any, overrides: list[str]) -> None:
    assert len(small.refused(*overrides)) == 1


NOT_WHOLE: dict[tuple[str, ...], list[str]] = {
    (
        "model.seq_length=8196",
        f"{CP}=2",
        f"{TP}=4",
        f"{SP}=true",
        "launch.gpus_per_node=8",
        "batch.micro_batch_size=1",
    ): ["sequence_by_tensor_parallel model.seq_length"],
    (
        "model.seq_length=8190",
        f"{CP}=2",
        "launch.gpus_per_node=8",
        "batch.micro_batch_size=1",
    ): ["context_parallel parallelism.context_parallel_size"],
    (
        "batch.rampup_batch_size=[2, 4, 1000]",
        "batch.global_batch_size=8192",
        "launch.gpus_per_node=8",
        "batch.micro_batch_size=1",
    ): [
        "rampup_sizes batch.rampup_batch_size.increment",
        "rampup_passes batch.rampup_batch_size.start_global_batch_size",
        "rampup_passes batch.rampup_batch_size.increment",
    ],
}


@pytest.mark.parametrize("overrides", NOT_WHOLE, ids=" ".join)
def test_what_is_not_whole_is_refused(small: Any, overrides: tuple[str, ...]) -> None:
    assert small.refused(*overrides) == NOT_WHOLE[overrides]


@pytest.mark.parametrize(
    ("number", "divisor", "text"),
    [
        (72, 2, "36"),
        (200_000, 2, "100000"),
        (4, 3, "1.333"),
        (128, 6, "21.33"),
        (8196, 8, "1024.5"),
        (200_001, 2, "100000.5"),
        (3_000_001, 1000, "3000.001"),
        (10**20 + 1, 2, "50000000000000000000 + 1 / 2"),
    ],
)
def test_digits_of_a_ratio(number: int, divisor: int, text: str) -> None:
    assert ratio(number, divisor) == text
