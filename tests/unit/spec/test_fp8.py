"""FP8 in a job: what it needs, what it goes with, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.depth import examples

from orchestrator.spec.sections.quantization import Fp8Spec

DELAYED = "precision.fp8.recipe=delayed"


def test_a_line_is_enough(small: Any) -> None:
    assert small.job().precision.fp8 is None
    fp8 = small.job("precision.fp8={}").precision.fp8
    assert (fp8.recipe, fp8.chosen_format, fp8.amax_history_len, fp8.amax_compute_algo) == (
        *("delayed", "hybrid", 1024),
        "max",
    )
    assert small.job("precision.fp8.recipe=tensorwise").precision.fp8.chosen_format == "hybrid"
    assert small.job("precision.fp8.recipe=blockwise").precision.fp8.chosen_format == "e4m3"
    assert Fp8Spec(recipe="blockwise", format="hybrid").chosen_format == "hybrid"
    assert small.refused("precision.fp8.recipe=custom")


REFUSED: dict[tuple[str, ...], list[str]] = {
    (DELAYED, "precision.dtype=fp16"): ["fp8_dtype precision.fp8"],
    (DELAYED, "precision.dtype=fp32"): ["fp8_dtype precision.fp8"],
    (DELAYED, "runtime.layers=torch"): ["fp8_layers precision.fp8"],
    (DELAYED, "runtime.device=cpu"): ["fp8_layers precision.fp8"],
    (
        DELAYED,
        "model.lora.rank=4",
        "data.blend=null",
        "data.random_tokens=true",
        "model.vocab_size=9",
    ): ["fp8_layers precision.fp8"],
    (DELAYED, "runtime.cpu_offloading_num_layers=1"): ["fp8_layers runtime.cpu_offloading_num_layers"],
    (DELAYED, "precision.fp8.recipe=blockwise", "precision.fp8.margin=1"): ["fp8_scaling precision.fp8.margin"],
    (DELAYED, "precision.fp8.recipe=tensorwise", "precision.fp8.amax_history_len=16"): [
        "fp8_scaling precision.fp8.amax_history_len"
    ],
    (DELAYED, "precision.fp8.num_layers_at_end_in_bf16=1"): [
        "fp8_layers_in_bf16 precision.fp8.num_layers_at_end_in_bf16"
    ],
    (DELAYED, "precision.fp8.recipe=tensorwise", "precision.fp8.num_layers_at_end_in_bf16=5"): [
        "fp8_layers_in_bf16 precision.fp8.num_layers_at_end_in_bf16",
        "fp8_layers_in_bf16 precision.fp8.num_layers_at_end_in_bf16",
    ],
    (
        DELAYED,
        "precision.fp8.recipe=tensorwise",
        "precision.fp8.num_layers_at_start_in_bf16=2",
        "precision.fp8.num_layers_at_end_in_bf16=2",
    ): ["fp8_layers_in_bf16 precision.fp8.num_layers_at_start_in_bf16"],
    (
        DELAYED,
        "runtime.recompute_granularity=selective",
        "runtime.recompute_modules=[layernorm]",
    ): ["fp8_recomputed_norms runtime.recompute_modules"],
    (DELAYED, "model.hidden_size=120"): [
        "fp8_matrix_sizes model.num_attention_heads",
        "fp8_matrix_sizes model.num_query_groups",
        "fp8_matrix_sizes model.hidden_size",
    ],
    (DELAYED, "model.ffn_hidden_size=24"): ["fp8_matrix_sizes model.ffn_hidden_size"],
    (DELAYED, "model.kv_channels=6"): [
        "fp8_matrix_sizes model.num_attention_heads",
        "fp8_matrix_sizes model.num_query_groups",
    ],
    (DELAYED, "model.seq_length=1", "batch.micro_batch_size=8"): ["fp8_tokens model.seq_length"],
    (
        DELAYED,
        "model.num_experts=2",
        "model.add_bias_linear=false",
        "model.moe_ffn_hidden_size=24",
        "parallelism.tensor_model_parallel_size=2",
        "parallelism.sequence_parallel=true",
        "parallelism.expert_model_parallel_size=1",
        "launch.gpus_per_node=2",
    ): ["fp8_matrix_sizes model.moe_ffn_hidden_size"],
}


@pytest.mark.parametrize("overrides", REFUSED, ids=" ".join)
def test_what_does_not_go_with_it_is_named(small: Any, overrides: tuple[str, ...]) -> None:
    assert small.refused(*overrides) == REFUSED[overrides]


def test_what_goes_with_it(small: Any) -> None:
    full = ["runtime.recompute_granularity=full", "runtime.recompute_method=uniform", "runtime.recompute_num_layers=1"]
    assert small.refused(DELAYED, *full) == []
    assert small.refused(DELAYED, "runtime.recompute_granularity=selective") == []
    again = ["runtime.recompute_granularity=selective", "runtime.recompute_modules=[layernorm]"]
    assert small.refused("precision.fp8.recipe=blockwise", *again) == []
    assert (
        small.refused(
            DELAYED, "model.num_experts=4", "model.add_bias_linear=false", "runtime.fused_linear_cross_entropy=true"
        )
        == []
    )
    assert small.refused(DELAYED, "parallelism.context_parallel_size=2", "launch.gpus_per_node=2") == []


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    heads=st.sampled_from([4, 8]),
    channels=st.sampled_from([2, 4, 8, 32]),
    ffn=st.sampled_from([16, 32, 40, 64, 128]),
    length=st.sampled_from([8, 16, 24, 64, 128]),
    micro=st.integers(1, 3),
    tp=st.sampled_from([1, 2, 4]),
    sequence_parallel=st.booleans(),
    blockwise=st.booleans(),
    hidden=st.sampled_from([128, 64]),
)
def test_sizes_are_those_that_transformer_engine_takes(
    small: Any,
    heads: int,
    channels: int,
    ffn: int,
    length: int,
    micro: int,
    tp: int,
    sequence_parallel: bool,
    blockwise: bool,
    hidden: int,
) -> None:
    """Its check of every linear's operands, and cuBLAS's of the transposed ones, on a rank."""
    sequence_parallel = sequence_parallel and tp > 1
    said = small.refused(
        *(f"precision.fp8.recipe={'blockwise' if blockwise else 'tensorwise'}", f"model.hidden_size={hidden}"),
        *(f"model.num_attention_heads={heads}", f"model.kv_channels={channels}"),
        *(f"model.ffn_hidden_size={ffn}", f"model.seq_length={length}", f"batch.micro_batch_size={micro}"),
        *(f"parallelism.tensor_model_parallel_size={tp}", f"launch.gpus_per_node={tp}", "batch.global_batch_size=null"),
        *("batch.num_micro_batches=1", f"parallelism.sequence_parallel={str(sequence_parallel).lower()}"),
    )
    tokens, query = length * micro, heads * channels
    sides = (hidden, 3 * query // tp, query // tp, ffn // tp)
    own = tokens // tp if sequence_parallel else tokens
    legal = all(side % 16 == 0 for side in sides) and tokens % 16 == 0 and own % 8 == 0
    if sequence_parallel and blockwise:
        legal = legal and own % 128 == 0 and hidden % 128 == 0
    assert (said == []) == legal, said
