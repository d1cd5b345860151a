"""What a job in FP8 takes, against steps that were measured, and which GPUs it may be planned for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.benchmark_data import record
from support.depth import examples
from support.problems import codes

from orchestrator.planning.forecast import forecast
from orchestrator.planning.hardware import shipped
from orchestrator.planning.memory import estimate_memory
from orchestrator.planning.plan import make_plan
from orchestrator.planning.time import estimate_time
from orchestrator.planning.vocabulary import vocabulary
from orchestrator.planning.warnings import judge
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_text

GIB = 2**30
TE = "transformer_engine"
# On H200s with megatron-core 0.16.1 and Transformer Engine 2.11, hybrid and delayed: preset, GPUs, TP, micro-batches of
# 4, and what was measured in bf16 and in FP8. The small model is of this project's runtime, the other one of
# megatron-core's own.
MEASURED = [
    ("gpt-1.7b", 1, 1, 1, "2026-11-24-h200-2", "1.7B 4x1 TE", "1.7B TE FP8 4x1"),
    ("gpt-1.7b", 1, 1, 4, "2026-11-24-h200-2", "1.7B 4x4 TE", "1.7B TE FP8 4x4"),
    ("gpt-7.1b", 4, 2, 1, "2026-11-20-earlier", "7.1B TP2 DP2 4x1 TE", "7.1B TP2 DP2 4x1 TE, FP8"),
]


def job(preset: str, gpus: int, tp: int, micro_batches: int, *overrides: str) -> JobSpec:
    return load_text(
        f"""
name: row
model: {{preset: {preset}}}
parallelism: {{tensor_model_parallel_size: {tp}, sequence_parallel: {str(tp > 1).lower()}}}
batch: {{micro_batch_size: 4, num_micro_batches: {micro_batches}}}
data: {{random_tokens: true}}
optimizer: {{lr: 1.0e-4}}
schedule: {{train_iters: 10}}
launch: {{gpus_per_node: {gpus}, gpu: H200}}
""",
        overrides=overrides,
    ).job


def taken(each: JobSpec) -> tuple[float, float]:
    """Seconds of a step, and GiB."""
    device = shipped("H200")
    assert device is not None
    words = vocabulary(each).padded_size
    memory = estimate_memory(each, words, TE).peak_bytes / GIB  # type: ignore[arg-type]
    return estimate_time(each, words, TE, device).step_seconds, memory  # type: ignore[arg-type]


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: f"{row[0]}-{row[3]}")
def test_what_fp8_saves_is_what_was_measured(row: Any) -> None:
    preset, gpus, tp, micro_batches, setup, *names = row
    measured = [record("steps", setup=setup, row=name) for name in names]
    milliseconds, gib = ([float(each[key]) for each in measured] for key in ("ms", "peak_gib"))
    plain = taken(job(preset, gpus, tp, micro_batches))
    in_fp8 = taken(job(preset, gpus, tp, micro_batches, "precision.fp8.recipe=delayed"))
    assert in_fp8[0] / plain[0] == pytest.approx(milliseconds[1] / milliseconds[0], abs=0.03)
    assert in_fp8[1] - plain[1] == pytest.approx(gib[1] - gib[0], abs=0.3)


def test_a_small_model_does_not_gain() -> None:
    """The host starts the kernels that cast, too."""
    small = ("batch.micro_batch_size=1", "model.seq_length=1024")
    plain, in_fp8 = (taken(job("gpt-345m", 1, 1, 4, *small, *more))[0] for more in ((), ("precision.fp8={}",)))
    assert in_fp8 > 1.03 * plain


def test_recipes_differ_in_what_they_cast_and_share() -> None:
    seconds, gib = {}, {}
    for recipe in ("delayed", "tensorwise", "blockwise"):
        seconds[recipe], gib[recipe] = taken(job("gpt-1.7b", 1, 1, 1, f"precision.fp8.recipe={recipe}"))
    assert seconds["tensorwise"] > seconds["delayed"], "the largest value of each tensor is looked for first"
    several = {
        recipe: taken(job("gpt-1.7b", 1, 1, 4, f"precision.fp8.recipe={recipe}"))[0]
        for recipe in ("delayed", "tensorwise", "blockwise")
    }
    # 4x4 on an H200 with an earlier runtime.
    measured = {
        recipe: float(record("steps", setup="2026-11-21-parallelism-h200", row=f"1.7B 4x4 TE, {recipe}")["ms"])
        for recipe in several
    }
    for recipe in ("tensorwise", "blockwise"):
        assert several[recipe] / several["delayed"] == pytest.approx(measured[recipe] / measured["delayed"], abs=0.015)
    assert gib["tensorwise"] == gib["blockwise"] < gib["delayed"], "the attention's output is kept once"


def test_layers_that_stay_in_bf16_lie_between() -> None:
    whole = job("gpt-1.7b", 1, 1, 1, "precision.fp8.recipe=tensorwise")
    ends = (f"precision.fp8.num_layers_at_{end}_in_bf16=6" for end in ("start", "end"))
    half = job("gpt-1.7b", 1, 1, 1, "precision.fp8.recipe=tensorwise", *ends)
    plain = job("gpt-1.7b", 1, 1, 1)
    for fast, between, slow in zip(taken(whole), taken(half), taken(plain), strict=True):
        assert fast < between < slow


@settings(max_examples=examples(30), deadline=None)
@given(
    recipe=st.sampled_from(["delayed", "tensorwise", "blockwise"]),
    tp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2]),
    micro_batches=st.sampled_from([1, 4]),
    experts=st.booleans(),
    recompute=st.sampled_from([None, "selective", "full"]),
)
def test_large_jobs_gain_in_every_layout(
    recipe: str, tp: int, pp: int, micro_batches: int, experts: bool, recompute: str | None
) -> None:
    overrides = [f"parallelism.pipeline_model_parallel_size={pp}"]
    if experts:
        overrides += ["model.num_experts=8"]
    if recompute:
        overrides += [f"runtime.recompute_granularity={recompute}"]
    if recompute == "full":
        overrides += ["runtime.recompute_method=uniform", "runtime.recompute_num_layers=1"]
    plain = job("gpt-7.1b", tp * pp, tp, micro_batches, *overrides)
    in_fp8 = job("gpt-7.1b", tp * pp, tp, micro_batches, *overrides, f"precision.fp8.recipe={recipe}")
    assert 0.5 < taken(in_fp8)[0] / taken(plain)[0] < 1
    words = vocabulary(plain).padded_size
    for stage, before in zip(
        estimate_memory(in_fp8, words, TE).stages, estimate_memory(plain, words, TE).stages, strict=True
    ):
        copies, weights = stage.parts["fp8_weights"], stage.parts["weights"]
        assert 0.8 * weights < copies <= weights, "two bytes for each weight of a matrix, and two of each weight"
        # What is saved by the layers is at the most halved.
        assert stage.parts["activations"] <= before.parts["activations"] <= 2 * stage.parts["activations"]


def test_experts_that_are_recomputed_save_nothing_in_fp8() -> None:
    """Their inputs are not kept, so it makes no difference how wide they are."""
    experts = ("model.num_experts=8", "model.moe_router_topk=4", "runtime.recompute_granularity=selective")
    modules = "runtime.recompute_modules=[moe]"
    kept = []
    for width in (4096, 16384):
        each = job(
            "gpt-1.7b", 1, 1, 1, *experts, modules, f"model.moe_ffn_hidden_size={width}", "precision.fp8.recipe=delayed"
        )
        [stage] = estimate_memory(each, vocabulary(each).padded_size, TE).stages
        plain = each.model_copy(update={"precision": each.precision.model_copy(update={"fp8": None})})
        [before] = estimate_memory(plain, vocabulary(plain).padded_size, TE).stages
        kept.append(before.parts["activations"] - stage.parts["activations"])
    assert kept[0] == kept[1]


def test_both_halves_of_a_t5_have_copies() -> None:
    t5 = load_text(
        """
name: t5
model: {architecture: t5, num_layers: 4, hidden_size: 256, num_attention_heads: 4, seq_length: 128,
  decoder_seq_length: 32, vocab_size: 512, position_embedding_type: learned_absolute, max_position_embeddings: 128}
batch: {micro_batch_size: 4, global_batch_size: 4}
data: {random_tokens: true}
optimizer: {lr: 1.0e-4}
schedule: {train_iters: 10}
precision: {fp8: {recipe: delayed}}
"""
    ).job
    [stage] = estimate_memory(t5, 512, TE).stages
    tables = (512 + 128) * 256
    assert stage.parts["fp8_weights"] == pytest.approx(stage.parts["weights"] - 2 * tables, rel=0.02)


def test_it_is_planned_with_the_layers_that_can_and_stated_against_bf16() -> None:
    plan = make_plan(job("gpt-1.7b", 1, 1, 1, "precision.fp8.recipe=delayed"))
    found = forecast(plan)
    assert found.layers == TE
    assert found.quantizes
    assert found.device.peak_flops["bf16"] * (found.time.mfu or 0) == pytest.approx(found.time.tflops_per_gpu * 1e12)


@pytest.mark.parametrize(("gpu", "able"), [("H200", True), ("L40S", True), ("A100", False), ("V100", False)])
def test_a_gpu_that_cannot_is_a_stop(gpu: str, able: bool) -> None:
    plan = make_plan(job("gpt-1.7b", 1, 1, 1, "precision.fp8.recipe=delayed", f"launch.gpu={gpu}"))
    assert ("gpu_without_fp8 precision.fp8" in codes(judge(plan, forecast(plan), None).stops)) != able


@pytest.mark.parametrize(("gpu", "able"), [("H200", True), ("L40S", False)])
def test_blocks_are_scaled_from_hopper_on(gpu: str, able: bool) -> None:
    plan = make_plan(job("gpt-1.7b", 1, 1, 1, "precision.fp8.recipe=blockwise", f"launch.gpu={gpu}"))
    stops = codes(judge(plan, forecast(plan), None).stops)
    assert ("gpu_without_fp8_recipe precision.fp8.recipe" in stops) != able
