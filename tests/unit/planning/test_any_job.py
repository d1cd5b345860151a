"""Whatever job keeps the rules has a forecast and a verdict, and every figure in them is a number."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from support.depth import examples

from orchestrator.errors import SpecError
from orchestrator.planning.forecast import forecast, planned_timeline
from orchestrator.planning.hardware import shipped_names
from orchestrator.planning.plan import make_plan
from orchestrator.planning.warnings import judge
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.spec.job import JobSpec

DEGREE = st.sampled_from([1, 1, 2, 3, 4, 8, 16])
RECOMPUTE: list[dict[str, Any]] = [
    {},
    {"recompute_granularity": "selective"},
    {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
    {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 1},
]
CLUSTER = ClusterSpec.model_validate(
    {"name": "alps", "gpu": "A100", "time": 3600, "partitions": {"gpu": {"nodes": 4, "gpus_per_node": 4}}}
)


@st.composite
def images(draw: st.DrawFn, tp: int) -> dict[str, Any]:
    """Encoders of images of one patch and of many."""
    heads, patch = tp * draw(st.sampled_from([1, 3])), draw(st.sampled_from([1, 14]))
    return {
        "image_size": patch * draw(st.sampled_from([1, 2, 24])),
        "patch_size": patch,
        "num_layers": draw(st.sampled_from([1, 23])),
        "hidden_size": heads * draw(st.sampled_from([1, 64])),
        "num_attention_heads": heads,
        "ffn_hidden_size": draw(st.sampled_from([None, tp, 4096 * tp])),
        "activation": draw(st.sampled_from(["quick_gelu", "gelu"])),
        "images_per_sequence": draw(st.sampled_from([1, 1, 5])),
        "freeze": draw(st.booleans()),
    }


@st.composite
def jobs(draw: st.DrawFn) -> JobSpec:
    """Jobs of every shape, far too small and far too large ones too, on 1 to 4,096 processes."""
    tp, pp, dp = draw(DEGREE), draw(DEGREE), draw(DEGREE)
    chunks = draw(st.sampled_from([1, 2, 3])) if pp > 1 else 1
    shared = draw(st.booleans())
    heads = tp * draw(st.sampled_from([1, 4])) * (2 if shared else 1)
    sequence_parallel = tp > 1 and draw(st.booleans())
    micro = draw(st.sampled_from([1, 3]))
    unit = micro * dp * (pp if chunks > 1 else 1)
    batch = unit * draw(st.integers(1, 6))
    rampup = {"start_global_batch_size": unit, "increment": unit, "samples": draw(st.sampled_from([1, 10**9]))}
    device = draw(st.sampled_from(["cuda", "cuda", "cpu"]))
    in_fp8 = device == "cuda" and draw(st.integers(0, 3)) == 0
    sees = not in_fp8 and draw(st.integers(0, 3)) == 0
    world = tp * pp * dp
    nodes = draw(st.sampled_from([count for count in range(1, world + 1) if world % count == 0]))
    document = {
        "name": "any",
        "model": {
            "num_layers": pp * chunks * draw(st.sampled_from([1, 2, 10])),
            "hidden_size": heads * draw(st.sampled_from([2, 64, 256])),
            "num_attention_heads": heads,
            "num_query_groups": heads // 2 if shared else None,
            "seq_length": draw(st.sampled_from([1, 7, 2048, 65536])) * (tp if sequence_parallel else 1),
            "ffn_hidden_size": tp * draw(st.sampled_from([1, 4096])),
            "vocab_size": draw(st.sampled_from([1, 300, 128_000])),
            "make_vocab_size_divisible_by": draw(st.sampled_from([1, 128])),
            "activation": draw(st.sampled_from(["gelu", "swiglu"])),
            "position_embedding_type": draw(st.sampled_from(["rope", "learned_absolute", "none"])),
            "qk_layernorm": draw(st.booleans()),
            "hidden_dropout": draw(st.sampled_from([0.0, 1.0])),
            "untie_embeddings_and_output_weights": draw(st.booleans()),
            "vision": draw(images(tp)) if sees else None,
        },
        "parallelism": {
            "tensor_model_parallel_size": tp,
            "pipeline_model_parallel_size": pp,
            "virtual_pipeline_model_parallel_size": chunks if chunks > 1 else None,
            "sequence_parallel": sequence_parallel,
            "use_distributed_optimizer": draw(st.booleans()),
            "overlap_grad_reduce": draw(st.booleans()),
        },
        "batch": {
            "micro_batch_size": micro,
            "global_batch_size": batch,
            "rampup_batch_size": rampup if batch > unit and draw(st.booleans()) else None,
        },
        "data": {"random_tokens": True},
        "optimizer": {"lr": 1e-3},
        "schedule": draw(st.sampled_from([{"train_iters": 1}, {"train_samples": 1}, {"train_tokens": 10**15}])),
        "precision": {
            "dtype": "bf16" if in_fp8 else draw(st.sampled_from(["bf16", "fp32", *(["fp16"] * (device == "cuda"))])),
            "fp8": {"recipe": draw(st.sampled_from(["delayed", "tensorwise", "blockwise", "mxfp8"]))}
            if in_fp8
            else None,
            "grad_reduce_in_fp32": draw(st.booleans()),
        },
        "checkpoint": draw(st.sampled_from([{}, {"save_seconds": 60}, {"keep_last": 10**6}])),
        "evaluation": draw(st.sampled_from([{}, {"eval_interval": 1, "eval_iters": 3}, {"eval_at_start": True}])),
        "runtime": {**draw(st.sampled_from(RECOMPUTE)), "device": device},
        "launch": {
            "nodes": nodes,
            "gpus_per_node": world // nodes,
            "gpu": draw(st.sampled_from([None, *shipped_names()])),
        },
    }
    try:
        return JobSpec.model_validate(document)
    except SpecError:
        assume(False)
        raise


def numbers(value: Any) -> Iterator[float]:
    """Every number in plain data."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for each in value:
            yield from numbers(each)
    elif isinstance(value, int | float):
        yield value


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow])
@given(job=jobs(), cluster=st.sampled_from([None, CLUSTER]))
def test_any_job_has_a_forecast_and_a_verdict(job: JobSpec, cluster: ClusterSpec | None) -> None:
    plan = make_plan(job)
    taken = forecast(plan, cluster)
    assert all(math.isfinite(number) and number >= 0 for number in numbers(taken.to_dict()))
    assert sum(taken.time.parts.values()) == pytest.approx(taken.time.step_seconds)
    assert taken.training_seconds > 0
    step = planned_timeline(plan, taken)
    assert 0 < step.seconds < 1.2 * taken.time.step_seconds, "a long one is estimated in closed form"
    said = judge(plan, taken, cluster)
    stops_for_memory = taken.fit == "does not fit" and not taken.choice.is_assumed
    assert stops_for_memory == ("out_of_memory" in {problem.code for problem in said.stops})
