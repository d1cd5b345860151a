"""Cross-field rules: what is legal passes, and the nearest legal values that a message offers are legal."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from orchestrator.errors import SpecError
from orchestrator.spec.loading import load_text
from orchestrator.spec.rules.base import nearest_divisors, nearest_multiples

TP = "parallelism.tensor_model_parallel_size"
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
    assert small.messages(*overrides) == []


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.validation=3", "data.random_tokens=true"], "random_tokens: true and a blend exclude each other"),
        (["precision={loss_scale: much, hysteresis: 3}"], "is for dtype: fp16, and dtype is bf16"),
        (["runtime={device: cpu, layers: tf}", "precision.dtype=fp16"], "fp16 needs a GPU, and runtime.device is cpu"),
        (["schedule={lr_warmup_fraction: x, lr_warmup_iters: 200}"], "lr_warmup_iters 200 ≥ train_iters 100"),
        (["launch.env={A-B: x, RANK: '0'}"], "is set by the launcher for each process"),
        (["model={hidden_size: x, num_query_groups: 3}"], "num_attention_heads / num_query_groups must be whole"),
        (["model={n_layer: 3, num_layers: 5}", f"{PP}=2"], "num_layers / PP must be whole: 5 / 2"),
    ],
)
def test_a_mistake_beside_it_hides_no_rule(small: Any, overrides: list[str], message: str) -> None:
    messages = small.messages(*overrides)
    assert len(messages) >= 2
    assert any(message in found for found in messages)


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
    assert len(small.messages(*overrides)) == 1


_NEAREST = re.compile(
    r"nearest (TP|PP|VP|num_layers|num_attention_heads|num_query_groups|global_batch_size): ([\d or]+)"
)
_PATHS = {
    "TP": TP,
    "PP": PP,
    "VP": VP,
    "num_layers": "model.num_layers",
    "num_attention_heads": "model.num_attention_heads",
    "num_query_groups": "model.num_query_groups",
    "global_batch_size": "batch.global_batch_size",
}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from([TP, PP, VP, "model.num_query_groups", "batch.global_batch_size"]),
    st.integers(min_value=1, max_value=40),
)
def test_offered_values_mend_what_they_are_offered_for(path: str, value: int) -> None:
    """Writing an offered value makes the problem that offered it go away."""
    text = """
        {name: a, batch: {micro_batch_size: 2, global_batch_size: 24}, data: {blend: [a]}, optimizer: {lr: 1},
         model: {num_layers: 12, hidden_size: 768, num_attention_heads: 12, seq_length: 64, kv_channels: 64},
         schedule: {train_iters: 9}, parallelism: {pipeline_model_parallel_size: 2, data_parallel_size: 2}}"""
    for problem in _problems(text, [f"{path}={value}"]):
        for name, offered in _NEAREST.findall(problem.hint or ""):
            for number in offered.split(" or "):
                again = _problems(text, [f"{path}={value}", f"{_PATHS[name]}={number}"])
                assert problem.message.partition(":")[0] not in {found.message.partition(":")[0] for found in again}


def _problems(text: str, overrides: list[str]) -> list[Any]:
    try:
        load_text(text, overrides=overrides)
    except SpecError as error:
        return error.problems
    return []


@given(st.integers(min_value=1, max_value=2**31 - 1), st.integers(min_value=1, max_value=2**31 - 1))
@settings(max_examples=50, deadline=None)
def test_nearest_divisors(number: int, wanted: int) -> None:
    assume(number % wanted)
    offered = [int(part) for part in nearest_divisors(number, wanted).split(" or ")]
    assert 1 <= len(offered) <= 2
    assert all(number % divisor == 0 for divisor in offered)


def test_nearest_values_are_the_nearest() -> None:
    assert nearest_divisors(20, 3) == "2 or 4"
    assert nearest_divisors(20, 30) == "20"
    assert nearest_divisors(7, 4) == "1 or 7"
    assert nearest_multiples(64, 200) == "192 or 256"
    assert nearest_multiples(64, 3) == "64"
