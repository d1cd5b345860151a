"""Which routed experts of a job in FP8 multiply in 16 bits, in kernels of ours, and what the plan makes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.kernel_selection.changes import diff_jobs
from orchestrator.kernel_selection.experts import (
    LARGE_PRODUCT,
    is_large_product,
    joins_expert_mlp,
    multiplies_in_one_kernel,
)
from orchestrator.migration.to_megatron import to_megatron
from orchestrator.models.layers import layers as layers_of
from orchestrator.planning.hardware import device_named
from orchestrator.planning.memory import estimate_memory
from orchestrator.planning.memory.layer_activations import rank_shape
from orchestrator.planning.time.kernels.accesses import TRANSFORMER_ENGINE, Kernels, kernels_of
from orchestrator.planning.time.setting import setting_of
from orchestrator.planning.time.step import estimate_with
from orchestrator.planning.vocabulary import vocabulary
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_text
from orchestrator.spec.sections.launch import GROUPED_PRODUCTS

TE = "transformer_engine"
LAYERS, TOKENS = 12, 8192
PUBLISHED = [
    # preset, GPUs, TP, EP, ETP, sequences of 4,096 of a micro-batch; whether 16-bit kernels of ours compute its experts
    ("qwen3-30b-a3b", 2, 1, 2, 1, 2, True),
    ("qwen3-30b-a3b", 8, 1, 8, 1, 1, True),
    ("qwen3-30b-a3b", 16, 1, 16, 1, 4, False),
    ("qwen3-30b-a3b", 8, 4, 8, 1, 4, True),
    ("qwen3-235b-a22b", 64, 1, 4, 1, 1, True),
    ("qwen3-235b-a22b", 64, 1, 32, 1, 1, False),
    ("granite3.0-3b-a800m", 8, 1, 1, 1, 2, True),
    ("granite3.0-1b-a400m", 8, 1, 8, 1, 1, True),
    ("olmoe-1b-7b", 8, 1, 8, 1, 1, False),
    ("olmoe-1b-7b", 8, 1, 1, 1, 1, True),
    ("qwen1.5-moe-a2.7b", 4, 1, 4, 1, 1, True),
    ("mixtral-8x7b", 8, 1, 8, 1, 1, False),
    ("mixtral-8x7b", 8, 8, 1, 8, 1, True),
    ("llama4-scout", 64, 4, 16, 1, 1, False),
]


def job_of(preset: str, gpus: int, tp: int, ep: int, etp: int, sequences: int, *overrides: str) -> JobSpec:
    return load_text(
        f"""
name: row
model: {{preset: {preset}, seq_length: 4096}}
parallelism:
  tensor_model_parallel_size: {tp}
  sequence_parallel: {str(tp > 1).lower()}
  expert_model_parallel_size: {ep}
  expert_tensor_parallel_size: {etp}
batch: {{micro_batch_size: {sequences}, num_micro_batches: 4}}
precision: {{fp8: {{}}}}
data: {{random_tokens: true}}
optimizer: {{lr: 1.0e-4}}
schedule: {{train_iters: 10}}
launch: {{nodes: {-(-gpus // 8)}, gpus_per_node: {min(gpus, 8)}, gpu: H200}}
""",
        overrides=overrides,
    ).job


def small(*overrides: str) -> JobSpec:
    """Qwen3-30B-A3B with fewer layers: 64 experts on each of two ranks."""
    return job_of("qwen3-30b-a3b", 2, 1, 2, 1, 2, f"model.num_layers={LAYERS}", *overrides)


def in_bf16() -> JobSpec:
    return small("precision.fp8=null")


def parts(job: JobSpec, kernels: Kernels) -> dict[str, float]:
    return estimate_with(job, vocabulary(job).padded_size, kernels, device_named("H200")).parts


def memory(job: JobSpec) -> dict[str, int]:
    [stage] = estimate_memory(job, vocabulary(job).padded_size, TE).stages
    return stage.parts


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: "-".join(map(str, row[:-1])))
def test_small_experts_of_published_models_stay_in_16_bits(row: tuple[Any, ...]) -> None:
    *what, joined = row
    for recipe in ("delayed", "tensorwise", "blockwise"):
        job = job_of(*what, f"precision.fp8.recipe={recipe}")
        assert joins_expert_mlp(job, TE) is joined
        assert not joins_expert_mlp(job, "torch")
    microscaled = job_of(*what, "precision.fp8.recipe=mxfp8", "launch.gpu=B200")
    assert not joins_expert_mlp(microscaled, TE)


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: "-".join(map(str, row[:-1])))
def test_the_selection_counts_the_rows_that_the_plan_times(row: tuple[Any, ...]) -> None:
    job = job_of(*row[:-1])
    setting = setting_of(job, vocabulary(job).padded_size, kernels_of(job, TE), device_named("H200"))
    matrices = [each for block in layers_of(job.model)[-1] for each in block.parameters.matrices(job.model)]
    for matrix in matrices:
        if matrix.routing is not None:
            inputs, outputs = setting.part(matrix)
            local = matrix.routing.experts // job.parallelism.expert_model_parallel_size
            counted = setting.rows(matrix) * inputs * outputs
            assert is_large_product(job, inputs, outputs) is (counted >= local * LARGE_PRODUCT)


def test_experts_are_planned_as_in_bf16_and_all_else_in_fp8() -> None:
    """Products at the rate of 16 bits, and no casts: attention alone gains."""
    narrow, wide = small(), in_bf16()
    own, others = TRANSFORMER_ENGINE, replace(TRANSFORMER_ENGINE, own_experts=False)
    [of_own, of_wide], [of_others] = (parts(each, own) for each in (narrow, wide)), [parts(narrow, others)]
    assert of_others["gemm"] < of_own["gemm"] < of_wide["gemm"]
    assert of_wide["memory_bound"] < of_own["memory_bound"] < of_others["memory_bound"]
    assert of_own["expert_parallel"] == of_wide["expert_parallel"]


def test_experts_have_no_copies_in_fp8() -> None:
    """Nor do their inputs: those of the first linears of an attention are half as large, and what it gives is there
    once more, as delayed scaling has it.
    """
    narrow, wide = memory(small()), memory(in_bf16())
    model, sizes = small().model, rank_shape(small())
    heads = model.num_attention_heads * model.head_dim
    of_attention = model.hidden_size * (2 * heads + 2 * model.query_groups * model.head_dim)
    assert LAYERS * 2 * of_attention <= narrow["fp8_weights"] < LAYERS * 2.1 * of_attention
    assert narrow["activations"] - wide["activations"] == LAYERS * (TOKENS * heads - sizes.stream // 2)
    tensorwise = memory(small("precision.fp8.recipe=tensorwise"))
    assert tensorwise["activations"] - wide["activations"] == -LAYERS * sizes.stream // 2


def test_a_shared_expert_is_in_fp8() -> None:
    """It casts its input, which the router keeps as it is."""
    jobs = [job_of("qwen1.5-moe-a2.7b", 4, 1, 4, 1, 1, *more) for more in ((), ("precision.fp8=null",))]
    narrow, wide = map(memory, jobs)
    model, sizes = jobs[0].model, rank_shape(jobs[0])
    heads, inside = model.num_attention_heads * model.head_dim, model.shared_expert_size
    less = sizes.stream // 2 + sizes.tokens * inside - sizes.tokens * heads - sizes.stream // 2
    assert wide["activations"] - narrow["activations"] == model.num_layers * less


def test_nothing_is_kept_twice_of_recomputed_experts() -> None:
    """The shared expert's cast goes with them, so that casts of the attention are left: of its input, and of what it
    gives, which delayed scaling has beside the bf16 that the attention keeps.
    """
    recomputed = ("runtime.recompute_granularity=selective", "runtime.recompute_modules=[moe]")
    jobs = [job_of("qwen1.5-moe-a2.7b", 4, 1, 4, 1, 1, *recomputed, *more) for more in ((), ("precision.fp8=null",))]
    narrow, wide = map(memory, jobs)
    model, sizes = jobs[0].model, rank_shape(jobs[0])
    heads = model.num_attention_heads * model.head_dim
    less = sizes.stream // 2 - sizes.tokens * heads
    assert wide["activations"] - narrow["activations"] == model.num_layers * less


def test_layers_at_the_ends_stay_in_bf16_with_their_experts() -> None:
    """The experts of all layers are the same, and those of the ends have an attention in bf16."""
    tensorwise, ends = "precision.fp8.recipe=tensorwise", 3
    at_ends = ("precision.fp8.num_layers_at_start_in_bf16=1", "precision.fp8.num_layers_at_end_in_bf16=2")
    all_narrow, some = small(tensorwise), small(tensorwise, *at_ends)
    assert joins_expert_mlp(some, TE)
    narrow, mixed, wide = map(memory, (all_narrow, some, in_bf16()))
    share = (LAYERS - ends) / LAYERS
    assert mixed["fp8_weights"] == pytest.approx(share * narrow["fp8_weights"], abs=1)
    assert wide["activations"] - mixed["activations"] == (LAYERS - ends) * rank_shape(some).stream // 2
    [of_narrow, of_some, of_wide] = (parts(each, TRANSFORMER_ENGINE) for each in (all_narrow, some, in_bf16()))
    gained, less = of_wide["gemm"] - of_narrow["gemm"], of_wide["gemm"] - of_some["gemm"]
    assert less == pytest.approx(share * gained), "the gain of attention, in fewer layers"


@pytest.mark.parametrize(
    ("recipe", "field", "before", "after", "kind"),
    [
        ("delayed", "expert_model_parallel_size", (8, 4), (1, 4), "trajectory"),
        ("delayed", "expert_model_parallel_size", (1, 4), (8, 4), "trajectory"),
        ("delayed", "expert_model_parallel_size", (2, 4), (1, 4), "safe"),
        ("delayed", "micro_batch_size", (8, 4), (8, 1), "trajectory"),
        ("delayed", "micro_batch_size", (8, 2), (8, 1), "safe"),
        ("delayed", "context_parallel_size", (8, 4), (8, 4), "trajectory"),
        ("mxfp8", "expert_model_parallel_size", (8, 4), (1, 4), "safe"),
    ],
)
def test_a_change_of_the_format_of_experts_is_one_of_the_trajectory(
    recipe: str, field: str, before: tuple[int, int], after: tuple[int, int], kind: str
) -> None:
    """Pairs: EP, and sequences of a micro-batch. The loss that balances experts within a micro-batch is left out."""
    more = ("model.moe_aux_loss_coeff=0", "batch.num_micro_batches=null", "batch.global_batch_size=64")
    more = (*more, f"precision.fp8.recipe={recipe}", *(("launch.gpu=B200",) if recipe == "mxfp8" else ()))
    of_context = ("parallelism.context_parallel_size=4",) if "context" in field else ()
    old = job_of("qwen3-30b-a3b", 8, 1, before[0], 1, before[1], *more)
    new = job_of("qwen3-30b-a3b", 8, 1, after[0], 1, after[1], *more, *of_context)
    [change] = [each for each in diff_jobs(old, new) if each.path.endswith(field)]
    assert change.kind == kind
    changed = joins_expert_mlp(old, TE) is not joins_expert_mlp(new, TE)
    assert changed is (kind == "trajectory")


def test_switching_the_kernels_of_experts_is_one_of_the_trajectory_in_fp8() -> None:
    for given, kind in (((), "trajectory"), (("precision.fp8=null",), "safe")):
        for switch in (
            "model.moe_grouped_gemm=false",
            "runtime.gradient_accumulation_fusion=false",
            f"launch.env.{GROUPED_PRODUCTS}='0'",
        ):
            [change] = diff_jobs(small(*given), small(*given, switch))
            assert change.kind == kind, switch
            assert not joins_expert_mlp(small(*given, switch), TE)


def test_the_plan_follows_the_switch_of_the_environment() -> None:
    """Experts in FP8 then have copies of their weights in both orders."""
    own, switched = small(), small(f"launch.env.{GROUPED_PRODUCTS}='0'")
    model = own.model
    of_experts = 3 * model.hidden_size * model.moe_ffn_size * model.expert_count // 2
    more = memory(switched)["fp8_weights"] - memory(own)["fp8_weights"]
    assert more == LAYERS * 2 * of_experts
    assert multiplies_in_one_kernel(own, TE)
    assert not multiplies_in_one_kernel(switched, TE)
    assert multiplies_in_one_kernel(small(f"launch.env.{GROUPED_PRODUCTS}='1'"), TE)


def test_megatron_lm_multiplies_these_experts_in_fp8() -> None:
    """Its command says so, where they are in 16 bits here."""
    for job, is_said in ((small(), True), (job_of("mixtral-8x7b", 8, 1, 8, 1, 1), False), (in_bf16(), False)):
        otherwise = [each.path for each in to_megatron(job).otherwise]
        assert ("precision.fp8.recipe" in otherwise) is is_said
