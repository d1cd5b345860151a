"""Parameters of models with experts: as many on every rank as the runtime builds, and those that are published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.faults import Ranks

from orchestrator.planning.flops import model_flops
from orchestrator.planning.parameters import parameters, stage_expert_parameters
from orchestrator.planning.vocabulary import vocabulary
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_job, load_text

MIXTRAL = Path(__file__).parents[3] / "jobs" / "mixtral-8x7b.yaml"
SMALL: dict[str, Any] = {
    "num_layers": 4,
    "activation": "swiglu",
    "add_bias_linear": False,
    "num_experts": 4,
    "moe_ffn_hidden_size": 96,
    "moe_shared_expert_intermediate_size": 64,
}
ROUTED = {
    **{"moe_shared_expert_gate": True, "moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True},
    "ffn_hidden_size": 128,
}
TP, PP, VP = (f"{name}_model_parallel_size" for name in ("tensor", "pipeline", "virtual_pipeline"))
CP, EP, ETP = "context_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size"
SP = {"sequence_parallel": True}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one": ({}, {}),
    "ep": ({}, {EP: 2, "data_parallel_size": 2}),
    "ep4, one expert each": ({"activation": "gelu"}, {EP: 4, "data_parallel_size": 4}),
    "tp, ep": ({}, {TP: 2, **SP, EP: 2, "data_parallel_size": 2}),
    "tp, ep, whole experts": ({}, {TP: 2, **SP, EP: 2, ETP: 1}),
    "less tp of experts": ({}, {TP: 4, **SP, EP: 2, ETP: 2}),
    "pp, ep, cp": ({"untie_embeddings_and_output_weights": True}, {PP: 2, CP: 2, EP: 2}),
    "interleaved": ({"num_layers": 8}, {PP: 2, VP: 2, EP: 2, "data_parallel_size": 2}),
    "every other layer": ({"moe_layer_freq": 2}, {PP: 2, EP: 2, "data_parallel_size": 2}),
    "dense stage": ({"moe_layer_freq": [0, 0, 1, 1]}, {PP: 2, EP: 2, "data_parallel_size": 2}),
    "gated, biased": ({**ROUTED, "moe_layer_freq": [0, 1, 1, 1]}, {TP: 2, **SP, PP: 2, EP: 2, "data_parallel_size": 2}),
    "mixtral": ({}, {}),
    "mixtral, all degrees": ({}, {TP: 2, **SP, PP: 2, VP: 2, EP: 4, ETP: 1, "data_parallel_size": 2}),
}


def job_of(make_job: Any, name: str) -> JobSpec:
    model, degrees = CASES[name]
    mixtral = name.startswith("mixtral")
    whole = load_job([MIXTRAL]).job.model.model_dump() if mixtral else {**SMALL, **model}
    job: JobSpec = make_job(model=whole, parallelism=degrees, batch={"global_batch_size": 16})
    return job


@pytest.fixture(scope="module")
def built(make_job: Any, ranks: Ranks) -> dict[str, list[list[int]]]:
    """[tp, pp, parameters] of every rank of every case, from one process that builds them all without memory."""
    jobs = [job_of(make_job, name).model_dump(mode="json") for name in CASES]
    said = ranks.program(Path(__file__).parent, "expert_counts_program", typed=json.dumps(jobs))
    return dict(zip(CASES, json.loads(said), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_every_rank_holds_what_is_planned(make_job: Any, built: dict[str, list[list[int]]], name: str) -> None:
    job = job_of(make_job, name)
    planned = {(rank.tp, rank.pp): rank.parameters for rank in parameters(job, vocabulary(job).padded_size).per_rank}
    assert {(tp, pp, count) for tp, pp, count in built[name]} == {(*place, count) for place, count in planned.items()}


def test_mixtral_has_the_parameters_that_are_published() -> None:
    job = load_job([MIXTRAL]).job
    counted = parameters(job, vocabulary(job).padded_size)
    assert counted.total == 46_702_792_704
    assert counted.active == 12_879_925_248
    experts = 3 * 4096 * 14336
    assert stage_expert_parameters(job) == (8 * experts,) * 4, "eight layers of a stage with an expert each"


def test_flops_are_those_of_the_active_parameters(make_job: Any) -> None:
    """Six for each active weight and token, and those of the scores; embeddings and norms do not multiply."""
    job = job_of(make_job, "ep")
    model, vocab = job.model, vocabulary(job).padded_size
    counted = parameters(job, vocab)
    norms = (2 * model.num_layers + 1) * 2 * model.hidden_size
    scores = 12 * model.num_layers * model.hidden_size * model.seq_length
    assert model_flops(job, 1, vocab) == 6 * (counted.active - norms) + scores


def test_a_dense_model_has_nothing_inactive() -> None:
    job = load_text(
        "name: dense\nmodel: {preset: gpt2}\nbatch: {}\ndata: {random_tokens: true}\noptimizer: {lr: 1e-4}\n"
        "schedule: {train_iters: 10}\n"
    ).job
    counted = parameters(job, vocabulary(job).padded_size)
    assert counted.active == counted.total
    assert stage_expert_parameters(job) == (0,)
