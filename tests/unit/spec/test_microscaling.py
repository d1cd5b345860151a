"""MXFP8 and NVFP4 in a job: what they need, and what they do not go with."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.depth import examples

MXFP8, NVFP4 = "precision.fp8.recipe=mxfp8", "precision.fp4.recipe=nvfp4"
TWO = ("parallelism.tensor_model_parallel_size=2", "parallelism.sequence_parallel=true", "launch.gpus_per_node=2")
EXPERTS = ("model.num_experts=2", "model.add_bias_linear=false")


def test_a_line_is_enough(small: Any) -> None:
    precision = small.job(NVFP4).precision
    assert (precision.products, precision.quantization, precision.fp8) == ("nvfp4", precision.fp4, None)
    precision = small.job(MXFP8).precision
    assert (precision.products, precision.fp8.chosen_format) == ("mxfp8", "e4m3")
    assert small.refused("precision.fp4.recipe=mxfp4")


def test_what_goes_with_them(small: Any) -> None:
    full = ["runtime.recompute_granularity=full", "runtime.recompute_method=uniform", "runtime.recompute_num_layers=1"]
    again = ["runtime.recompute_granularity=selective", "runtime.recompute_modules=[layernorm]"]
    for each in (MXFP8, NVFP4):
        assert small.refused(each, *full) == small.refused(each, *again) == small.refused(each, *TWO) == []
    assert small.refused(MXFP8, *EXPERTS) == []
    assert small.refused(NVFP4, "precision.fp4.num_layers_at_end_in_bf16=3") == []


REFUSED: dict[tuple[str, ...], list[str]] = {
    (NVFP4, MXFP8): ["fp4_dtype precision.fp4"],
    (NVFP4, "precision.dtype=fp16"): ["fp4_dtype precision.fp4"],
    (NVFP4, "runtime.layers=torch"): ["fp4_layers precision.fp4"],
    (NVFP4, "runtime.device=cpu"): ["fp4_layers precision.fp4"],
    (NVFP4, *EXPERTS): ["fp4_layers precision.fp4"],
    (NVFP4, "runtime.cpu_offloading_num_layers=1"): ["fp4_layers runtime.cpu_offloading_num_layers"],
    (NVFP4, "precision.fp4.num_layers_at_start_in_bf16=2", "precision.fp4.num_layers_at_end_in_bf16=2"): [
        "fp4_layers_in_bf16 precision.fp4.num_layers_at_start_in_bf16"
    ],
    (MXFP8, "precision.fp8.margin=1"): ["fp8_scaling precision.fp8.margin"],
    (MXFP8, "model.ffn_hidden_size=48"): ["fp8_matrix_sizes model.ffn_hidden_size"],
    (NVFP4, "model.ffn_hidden_size=48"): ["fp4_matrix_sizes model.ffn_hidden_size"],
    (MXFP8, "model.seq_length=8"): ["fp8_tokens model.seq_length"],
    (NVFP4, "model.seq_length=8"): ["fp4_tokens model.seq_length"],
    (MXFP8, "runtime.cuda_graphs=true"): ["cuda_graphs runtime.cuda_graphs"],
    (NVFP4, "runtime.cuda_graphs=true"): ["cuda_graphs runtime.cuda_graphs"],
    (MXFP8, *TWO, "parallelism.tp_comm_overlap=true"): ["overlapped_tensor_parallel parallelism.tp_comm_overlap"],
    (NVFP4, *TWO, "parallelism.tp_comm_overlap=true"): ["overlapped_tensor_parallel parallelism.tp_comm_overlap"],
    (NVFP4, "model.kv_lora_rank=16"): ["untried_with_latents precision.fp4"],
    (NVFP4, "model.mtp_num_layers=1"): ["untried_with_predictions precision.fp4"],
}


@pytest.mark.parametrize("overrides", REFUSED, ids=" ".join)
def test_what_does_not_go_with_them_is_named(small: Any, overrides: tuple[str, ...]) -> None:
    assert small.refused(*overrides) == REFUSED[overrides]


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    number_format=st.sampled_from([MXFP8, NVFP4]),
    channels=st.sampled_from([4, 8, 16, 32]),
    ffn=st.sampled_from([32, 48, 64, 96, 128]),
    hidden=st.sampled_from([64, 80, 128]),
    length=st.sampled_from([16, 32, 48, 64]),
    tp=st.sampled_from([1, 2, 4]),
)
def test_sizes_are_whole_blocks_on_each_rank(
    small: Any, number_format: str, channels: int, ffn: int, hidden: int, length: int, tp: int
) -> None:
    """Transformer Engine's quantizers take sides and tokens that blocks of 32 divide; FP4's are read 16 bytes, 32
    elements, at a time.
    """
    said = small.refused(
        *(number_format, f"model.hidden_size={hidden}", f"model.kv_channels={channels}"),
        *("model.num_attention_heads=4", f"model.ffn_hidden_size={ffn}", f"model.seq_length={length}"),
        *(f"parallelism.tensor_model_parallel_size={tp}", f"launch.gpus_per_node={tp}"),
        *("batch.micro_batch_size=1", "batch.global_batch_size=1"),
        f"parallelism.sequence_parallel={str(tp > 1).lower()}",
    )
    sides = (hidden, 12 * channels // tp, 4 * channels // tp, ffn // tp, length // tp)
    assert (said == []) == all(side % 32 == 0 for side in sides), said
