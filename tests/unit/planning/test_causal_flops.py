"""`throughput.flops: causal` against Megatron-LM's own count of FLOPs."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.api.plan_rows import forecast_rows
from orchestrator.planning.flops import formula, model_flops
from orchestrator.planning.forecast import forecast
from orchestrator.planning.plan import make_plan
from orchestrator.planning.training_schedule.batch import BatchSchedule
from orchestrator.quantities import amount

LLAMA = {
    "num_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_query_groups": 8,
    "ffn_hidden_size": 14336,
    "activation": "swiglu",
}
SMALL = {"hidden_size": 512, "num_attention_heads": 8, "num_layers": 8, "seq_length": 2048}
EXPERTS = {"hidden_size": 256, "num_attention_heads": 8, "ffn_hidden_size": 1024, "seq_length": 128}

RECORDED: dict[str, tuple[dict[str, Any], int, int, float]] = {
    "gpt-125m": (
        {"num_layers": 12, "hidden_size": 768, "num_attention_heads": 12, "seq_length": 1024},
        50304,
        8,
        6537477095424.0,
    ),
    "gpt-345m": (
        {"num_layers": 24, "hidden_size": 1024, "num_attention_heads": 16, "seq_length": 1024},
        50304,
        512,
        1191183409741824.0,
    ),
    "odd": (
        {"num_layers": 5, "hidden_size": 96, "num_attention_heads": 6, "ffn_hidden_size": 100, "seq_length": 33},
        640,
        3,
        212414400.0,
    ),
    "wide heads": (
        {"num_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "kv_channels": 128, "seq_length": 512},
        1024,
        4,
        67645734912.0,
    ),
    "grouped queries": ({**SMALL, "num_query_groups": 2}, 32000, 16, 9199819948032.0),
    "one key, gated": (
        {**SMALL, "num_query_groups": 1, "ffn_hidden_size": 1536, "activation": "swiglu"},
        32000,
        16,
        9509057593344.0,
    ),
    "llama": ({**LLAMA, "seq_length": 8192}, 128256, 1024, 4.317650220881019e17),
    "window": ({**LLAMA, "seq_length": 8192, "sliding_window": 4096}, 32000, 1, 402266636943360.0),
    "experts": (
        {**LLAMA, "seq_length": 4096, "num_experts": 8, "moe_router_topk": 2, "moe_expert_capacity_factor": 0.5},
        32000,
        256,
        8.357827687376486e16,
    ),
    "a shared expert": (
        {
            **EXPERTS,
            "num_layers": 6,
            "num_experts": 8,
            "moe_router_topk": 3,
            "moe_ffn_hidden_size": 96,
            "moe_shared_expert_intermediate_size": 192,
            "moe_layer_freq": 2,
            "activation": "swiglu",
        },
        1024,
        8,
        33772535808.0,
    ),
    "experts in some layers": (
        {**EXPERTS, "num_layers": 4, "num_experts": 4, "moe_router_topk": 1, "moe_layer_freq": [0, 1, 1, 0]},
        1024,
        8,
        21743271936.0,
    ),
    "further tokens": ({**SMALL, "mtp_num_layers": 2}, 32000, 16, 18116776034304.0),
    "further tokens of experts": (
        {
            **{**EXPERTS, "num_layers": 4, "num_experts": 4, "moe_router_topk": 1, "moe_layer_freq": [0, 1, 1, 1]},
            "mtp_num_layers": 1,
        },
        1024,
        8,
        29197074432.0,
    ),
    "bert": (
        {
            "architecture": "bert",
            "num_layers": 24,
            "hidden_size": 1024,
            "num_attention_heads": 16,
            "ffn_hidden_size": 4096,
            "seq_length": 512,
        },
        29056,
        256,
        270789098078208.0,
    ),
    "state space": (
        {
            "architecture": "mamba",
            "hybrid_override_pattern": "M-M*M-M-",
            "num_layers": 8,
            "hidden_size": 256,
            "num_attention_heads": 8,
            "num_query_groups": 2,
            "ffn_hidden_size": 1024,
            "seq_length": 256,
            "mamba_state_dim": 32,
            "mamba_num_groups": 4,
        },
        1024,
        4,
        25417482240.0,
    ),
}
"""Of each shape: the model, its padded vocabulary, the sequences of a batch, and what num_floating_point_operations of
Megatron-LM 0.16.1 (megatron/training/training.py) gave for it; for further tokens that of its main branch, d98e8a64."""

CAUSAL = {"flops": "causal"}


@pytest.mark.parametrize("name", RECORDED)
def test_it_is_megatrons_count(make_job: Any, name: str) -> None:
    model, vocab, batch, expected = RECORDED[name]
    full, causal = (make_job(model=model, throughput=counted) for counted in ({}, CAUSAL))
    tokens = batch * full.model.seq_length
    assert model_flops(causal, tokens, vocab) == pytest.approx(expected, rel=1e-14)
    assert model_flops(full, tokens, vocab) != pytest.approx(expected, rel=1e-6)
    assert formula(causal) != formula(full)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_a_closed_form(make_job: Any, gated: bool, groups: int) -> None:
    """As Narayanan et al. 2021, section 5.1, without recomputation and with half of the scores: two operations for each
    weight of the matrices, and for each score and its use, and twice as many backward."""
    activation = "swiglu" if gated else "gelu"
    job = make_job(model={"num_query_groups": groups, "activation": activation}, throughput=CAUSAL)
    m = job.model
    h, width, ffn = m.hidden_size, m.head_dim, m.ffn_size
    weights = m.num_layers * (2 * h * h + 2 * h * groups * width + (3 if gated else 2) * h * ffn) + 300 * h
    pairs = sum(position + 0.5 for position in range(m.seq_length))  # s² / 2
    scores = m.num_layers * 2 * (2 * h * pairs)
    assert model_flops(job, 10 * m.seq_length, 300) == 10 * 3 * (2 * weights * m.seq_length + scores)


@pytest.mark.parametrize(
    ("model", "masked"),
    [
        ({"architecture": "t5", "decoder_seq_length": 16}, 16),
        ({"lora": {"rank": 4, "target_modules": ["linear_qkv"]}}, 32),
    ],
    ids=["t5", "lora"],
)
def test_what_megatron_does_not_count_has_half_of_its_causal_scores(
    make_job: Any, model: dict[str, Any], masked: int
) -> None:
    """`masked`: tokens of a sample under a causal mask."""
    full, causal = (make_job(model=model, throughput=counted) for counted in ({}, CAUSAL))
    layers, width, tokens = 4, 64, full.model.sample_length
    halved = 6 * layers * width * masked * masked
    assert model_flops(full, tokens, 512) - model_flops(causal, tokens, 512) == pytest.approx(halved)
    assert formula(full) != formula(causal)


def test_plan_and_its_mfu_follow(make_job: Any) -> None:
    model = {"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 4096}
    plans = [make_plan(make_job(model=model, launch={"gpu": "H100"}, throughput=counted)) for counted in ({}, CAUSAL)]
    times = [forecast(plan).time for plan in plans]
    assert times[0].step_seconds == times[1].step_seconds
    full, causal = (time.mfu or 0.0 for time in times)
    assert full > causal > 0
    per_step = plans[1].step_flops / plans[0].step_flops
    assert per_step == pytest.approx(causal / full)
    assert per_step == pytest.approx(times[1].tflops_per_gpu / times[0].tflops_per_gpu)
    flops = [plan.to_dict()["flops"] for plan in plans]
    assert "full_per_step" not in flops[0]
    assert (flops[1]["per_step"], flops[1]["full_per_step"]) == (plans[1].step_flops, flops[0]["per_step"])
    [said] = [row for name, row in forecast_rows(plans[1], forecast(plans[1])) if name == "speed"]
    assert all(f"{amount(time.tflops_per_gpu)} TFLOP/s" in said for time in times)
    assert plans[1].total_flops == plans[1].step_flops * BatchSchedule.of(plans[1].job).train_iters
