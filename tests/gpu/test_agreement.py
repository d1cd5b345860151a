"""What changes where a job computes, or what it keeps, and nothing that it learns: each trains what the plain job does.

All jobs of one size are trained one after the other by the same ranks, side by side where there are GPUs for it. Where
there are fewer GPUs than ranks, several ranks share one.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.fixtures import real_sentences
from support.measured import Measured, Meter, asked_of, has_layers, largest_differences, needs_layers
from support.training import four_layer_job, layout

from orchestrator.spec.job import JobSpec

__all__ = ["real_sentences"]

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(580)]

STEPS = 12
GPT: dict[str, Any] = {
    **{"hidden_size": 512, "num_attention_heads": 8, "num_query_groups": 4, "seq_length": 512, "vocab_size": 50000},
    **{"normalization": "RMSNorm", "activation": "swiglu", "add_bias_linear": False},
}
T5: dict[str, Any] = {
    **{"architecture": "t5", "num_layers": 2, "hidden_size": 256, "num_attention_heads": 4, "vocab_size": 320},
    **{"seq_length": 256, "decoder_seq_length": 128, "position_embedding_type": "relative"},
    **{"normalization": "RMSNorm", "add_bias_linear": False},
}
BERT: dict[str, Any] = {
    **{"architecture": "bert", "hidden_size": 256, "num_attention_heads": 4, "seq_length": 256, "vocab_size": 300},
    "position_embedding_type": "learned_absolute",
}
POST_LN: dict[str, Any] = {**BERT, "transformer_block_type": "post_ln", "norm_epsilon": 1e-12}
CP2, TP2 = layout(context_parallel_size=2), layout(tp=2, sequence_parallel=True)
JOINED: dict[str, Any] = {"fused_linear_cross_entropy": True}
"""The loss of four parts of the tokens, one after the other."""
ONE_BY_ONE: dict[str, Any] = {"cuda_graphs": False}
"""As graphs, which jobs so small would be, passes need other memory; `test_graphs.py` has what they train."""
LAYOUTS = {
    "plain-optimizer": layout(use_distributed_optimizer=False),
    "tp2": layout(tp=2),
    "tp2-sp": TP2,
    "pp2": layout(pp=2),
    "pp2-interleaved": layout(pp=2, vp=2),
    "dp2": layout(dp=2),
    "tp2-pp2-sp": layout(tp=2, pp=2, sequence_parallel=True),
    "tp2-dp2": layout(tp=2, dp=2),
}
AGAINST = {
    "torch-cp2": "torch",
    "torch-joined": "torch",
    "torch-joined-tp2": "torch",
    "te": "torch",
    "te-cp2": "te",
    "te-joined": "te",
    "te-offloaded": "te",
    "t5-torch-tp2": "t5-torch",
    "t5-torch-pp2": "t5-torch",
    "t5-te": "t5-torch",
    "bert-te": "bert-torch",
    "post-ln-te": "post-ln-torch",
    "torch-fp32-tp2": "torch-fp32",
    **{f"{layers}-{name}": layers for layers in ("torch", "te") for name in LAYOUTS},
}
"""What each must train as. Matrix products in another order, or of other shapes, round otherwise in bf16."""
STD = 0.05
"""Of the initial weights: so large that what attention does shows in the losses. With weights of the usual size a GPT
without positions has the losses of one with them, to 3e-5.
"""
LIMITS = {"gpt": (1.5e-3, 2e-2), "t5": (3e-3, 3e-2), "bert": (1.5e-2, 0.15)}
"""Largest relative differences of losses and of gradient norms. On a CPU bf16 is a third to a sixth of them away from
fp32, and a GPT with a short window, or without positions, several times as much.
"""
IN_FP32 = (1e-4, 1e-3)


def gpt_job(
    name: str, layers: str, parallelism: dict[str, Any] | None = None, dtype: str = "bf16", **runtime: Any
) -> JobSpec:
    return four_layer_job(
        name,
        model={**GPT, "init_method_std": STD},
        batch={"micro_batch_size": 4, "global_batch_size": 8},
        parallelism=parallelism or {},
        precision={"dtype": dtype},
        runtime={"layers": layers, "attention_backend": "fused", **ONE_BY_ONE, **runtime},
        schedule={"train_iters": STEPS},
    )


def text_job(
    name: str, model: dict[str, Any], layers: str, text: str, parallelism: dict[str, Any] | None = None
) -> JobSpec:
    return four_layer_job(
        name,
        model={**model, "init_method_std": STD},
        data={
            **{"blend": [{"path": text}], "random_tokens": False, "split": "90,10,0"},
            "tokenizer": {"vocab_extra_ids": 20},
        },
        parallelism=parallelism or {},
        precision={"dtype": "bf16"},
        runtime={"layers": layers, **ONE_BY_ONE},
        schedule={"train_iters": STEPS},
    )


def jobs(text: str) -> list[JobSpec]:
    """Every job of this file; `text` is the prefix of a data set of sentences."""
    te = "transformer_engine"
    return [
        gpt_job("torch", "torch"),
        gpt_job("torch-cp2", "torch", CP2),
        gpt_job("torch-joined", "torch", **JOINED),
        gpt_job("torch-joined-tp2", "torch", TP2, **JOINED),
        gpt_job("te", te),
        gpt_job("te-cp2", te, CP2),
        gpt_job("te-joined", te, **JOINED),
        gpt_job("te-offloaded", te, cpu_offloading_num_layers=2),
        gpt_job("torch-fp32", "torch", dtype="fp32"),
        gpt_job("torch-fp32-tp2", "torch", TP2, dtype="fp32"),
        *(gpt_job(f"torch-{name}", "torch", parallelism) for name, parallelism in LAYOUTS.items()),
        *(gpt_job(f"te-{name}", te, parallelism) for name, parallelism in LAYOUTS.items()),
        text_job("t5-torch", T5, "torch", text),
        text_job("t5-torch-tp2", T5, "torch", text, TP2),
        text_job("t5-torch-pp2", T5, "torch", text, layout(pp=2)),
        text_job("t5-te", T5, te, text),
        text_job("bert-torch", BERT, "torch", text),
        text_job("bert-te", BERT, te, text),
        text_job("post-ln-torch", POST_LN, "torch", text),
        text_job("post-ln-te", POST_LN, te, text),
    ]


@pytest.fixture(scope="module")
def trained(
    request: pytest.FixtureRequest, trainer: Meter, real_sentences: str
) -> dict[str, tuple[JobSpec, Measured | None]]:
    """Every job of this file by its name, with what it did if this session asks for it and has its layers."""
    every, asked = jobs(real_sentences), {name for (name,) in asked_of(request, "name")}
    asked |= {AGAINST[name] for name in asked}
    found = trainer.measure_all(job for job in every if job.name in asked and has_layers(job.runtime.layers))
    return {job.name: (job, found.get(job.name)) for job in every}


@pytest.mark.parametrize("name", AGAINST)
def test_trains_what_the_plain_job_trains(name: str, trained: dict[str, tuple[JobSpec, Measured | None]]) -> None:
    job, found = trained[name]
    needs_layers(job.runtime.layers)
    _, plain = trained[AGAINST[name]]
    assert found is not None
    assert plain is not None
    for each in (plain, found):
        assert each.outcome == "measured", each.message
    losses, norms = largest_differences(plain, found)
    print(
        f"\nRESULT {name} against {AGAINST[name]}: losses {losses:.1e} gradient norms {norms:.1e} apart, "
        f"{found.losses[0]:.3f} to {found.losses[-1]:.3f}, "
        f"peak {max(found.peak_bytes) / 2**20:.0f} MiB ({max(plain.peak_bytes) / 2**20:.0f})"
    )
    assert found.layers == job.runtime.layers
    if not job.data.random_tokens:
        assert found.losses[-1] < found.losses[0] - 0.3
    loss_limit, norm_limit = IN_FP32 if job.precision.dtype == "fp32" else LIMITS[job.model.architecture]
    assert losses < loss_limit
    assert norms < norm_limit
    if job.runtime.fused_linear_cross_entropy or job.runtime.cpu_offloading_num_layers is not None:
        assert max(found.peak_bytes) < max(plain.peak_bytes), "it is done to save memory"
