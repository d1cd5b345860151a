"""What is planned for hybrids: parameters, FLOPs, memory and time by kind of layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from support.training import layout, tiny_job

from orchestrator.planning.flops import formula, model_flops
from orchestrator.planning.hardware.devices import device_named
from orchestrator.planning.memory import estimate_memory
from orchestrator.planning.parameters import parameters, stage_parameters
from orchestrator.planning.time import estimate_time
from orchestrator.spec.job import JobSpec

SIZES = {"num_layers": 8, "hidden_size": 1024, "num_attention_heads": 16, "seq_length": 4096, "vocab_size": 32000}


def hybrid(
    pattern: str | None,
    parallelism: dict[str, Any] | None = None,
    runtime: dict[str, Any] | None = None,
    **model: Any,
) -> JobSpec:
    family = {"architecture": "mamba", "hybrid_override_pattern": pattern, "num_layers": len(pattern or "M" * 8)}
    return tiny_job(
        "job",
        model={**SIZES, **(family if pattern else {}), **model},
        parallelism=parallelism or {},
        batch={"micro_batch_size": 1, "global_batch_size": 8},
        precision={"dtype": "bf16"},
        runtime=runtime or {},
    )


@dataclass(frozen=True)
class Figures:
    parameters: int
    flops: float
    memory: int
    seconds: float


def figures(job: JobSpec) -> Figures:
    memory, time = estimate_memory(job, 32000, "torch"), estimate_time(job, 32000, "torch", device_named("H100"))
    assert sum(memory.stages[0].parts.values()) == memory.stages[0].peak_bytes
    assert sum(time.parts.values()) == pytest.approx(time.step_seconds)
    assert min(time.parts.values()) >= 0
    return Figures(parameters(job, 32000).total, model_flops(job, 4096, 32000), memory.peak_bytes, time.step_seconds)


EXPERTS = {
    **{"num_experts": 4, "moe_ffn_hidden_size": 1024, "moe_shared_expert_intermediate_size": 512},
    **{"moe_router_topk": 2, "add_bias_linear": False},
}


@pytest.mark.parametrize(("letter", "model"), [("-", {}), ("E", EXPERTS)])
def test_attention_and_mlp_are_a_transformer_layer(letter: str, model: dict[str, Any]) -> None:
    """A hybrid of these two alone is a GPT of half as many layers, but for the kernel that rotates its projection."""
    plain = {"position_embedding_type": "none", **model}
    gpt, same = (hybrid(None, num_layers=4, **plain), hybrid(f"*{letter}" * 4, **plain))
    one, other = figures(gpt), figures(same)
    assert (other.parameters, other.flops, other.memory) == (one.parameters, one.flops, one.memory)
    assert parameters(same, 32000).inactive == parameters(gpt, 32000).inactive
    assert other.seconds == pytest.approx(one.seconds)


def test_a_state_space_layer() -> None:
    """Mamba-2 of this size: two matrices, a convolution, and of each head three numbers."""
    plain, more = hybrid("M" * 8), hybrid("M" * 9)
    width, projected = 2048, 2 * 2048 + 2 * 8 * 128 + 32
    matrices = 1024 * projected + 2048 * 1024
    counted = matrices + (2048 + 2048) * 5 + 3 * 32 + 2048 + 2 * 1024  # and the LayerNorm before it
    assert parameters(more, 32000).total - parameters(plain, 32000).total == counted
    flops = model_flops(more, 1, 32000) - model_flops(plain, 1, 32000)
    assert flops == 3 * (2 * matrices + 7 * width * 128)
    assert "7*w*n" in formula(plain)
    one, two = figures(plain), figures(more)
    assert 0 < two.memory - one.memory < 2**30
    assert 0 < two.seconds - one.seconds < 0.1


def recomputed(pattern: str, *modules: str) -> tuple[int, float]:
    """Bytes that recomputing these modules saves, or whole layers without any, and the seconds that it takes."""
    whole = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    runtime = {"recompute_granularity": "selective", "recompute_modules": modules} if modules else whole
    plain, again = (hybrid(pattern, runtime=each, add_bias_linear=False) for each in ({}, runtime))
    seconds = estimate_time(again, 32000, "torch", device_named("H100")).parts.get("recompute", 0.0)
    return figures(plain).memory - figures(again).memory, seconds


def test_what_is_recomputed() -> None:
    """Whole layers of each kind; of modules those that some layers have, however many others there are."""
    saved, seconds = recomputed("M*-M" * 2)
    assert saved > 0
    assert seconds > recomputed("M*-M" * 2, "core_attn")[1] > 0
    assert recomputed("M" * 8)[0] > 0
    for module in ("core_attn", "layernorm", "mlp"):
        few, many = recomputed("*-MM", module), recomputed("*-" + "M" * 6, module)
        assert many[0] == few[0]
        assert many[1] == pytest.approx(few[1])
    norms = [recomputed(pattern, "layernorm")[1] for pattern in ("*-MM", "**--")]
    assert norms[1] == pytest.approx(2 * norms[0])


def test_stages_are_counted_by_their_layers() -> None:
    job = hybrid("MMMM*-*-", layout(tp=2, pp=2))
    stages = estimate_memory(job, 32000, "torch").stages
    first, last = stage_parameters(job, 32000)
    whole = parameters(job, 32000)
    assert [rank.parameters for rank in whole.per_rank] == [first, first, last, last]
    tables = 2 * 32000 // 2 * 1024
    assert first + last - tables == pytest.approx((whole.total - 32000 * 1024) / 2, rel=1e-3)  # norms are held twice
    assert stages[0].parts["activations"] != stages[1].parts["activations"]


def test_ranks_that_share_a_sequence_share_out_heads() -> None:
    """They bring each other what the first matrix gives, and B and C once for each rank that has heads of a group."""
    wide = {"hidden_size": 4096, "num_attention_heads": 32}
    degrees = layout(context_parallel_size=4)
    alone, shared, one_group = (
        hybrid("M" * 8, parallelism, **wide, mamba_num_groups=groups)
        for parallelism, groups in ((None, 8), (degrees, 8), (degrees, 1))
    )
    one, other = figures(alone), figures(shared)
    assert other.parameters == one.parameters
    assert other.memory < one.memory
    sent = [
        estimate_time(job, 32000, "torch", device_named("H100")).parts["context_parallel"]
        for job in (shared, one_group)
    ]
    given, states = 2 * 8192 + 128 + 8192, 2 * 128
    assert sent[0] > 0
    assert sent[1] / sent[0] == pytest.approx((given + 4 * states) / (given + 8 * states), rel=0.05)


def test_tensor_parallelism_shares_it_out() -> None:
    wide: dict[str, Any] = {
        "hidden_size": 4096,
        "num_attention_heads": 32,
    }  # the GPU takes longer than the host
    one, two = (
        figures(hybrid("M-M*M-M-", degrees, **wide)) for degrees in (None, layout(tp=2, sequence_parallel=True))
    )
    assert two.memory < 0.65 * one.memory
    assert 0.4 * one.seconds < two.seconds < one.seconds
