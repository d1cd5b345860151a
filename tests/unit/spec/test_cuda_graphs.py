"""Which jobs can have their passes as a CUDA graph."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.spec.rules.kernels.cuda_graphs import GRAPHS
from orchestrator.spec.schema.canonical import config_hash

DEMANDED = f"{GRAPHS}=true"
RECOMPUTED = "runtime={recompute_granularity: full, recompute_method: uniform, recompute_num_layers: 1}"
TWO = "launch.gpus_per_node=2"
EXPERTS = "model={num_experts: 4, moe_router_topk: 2, add_bias_linear: false}"


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        (TWO,),
        ("model.architecture=bert",),
        ("model={hidden_dropout: 0.1, attention_dropout: 0.1}",),
        ("precision.dtype=fp16",),
        ("runtime.layers=torch",),
        ("runtime.deterministic=true",),
        ("runtime.recompute_granularity=selective",),
        ("precision={dtype: bf16, fp8: {recipe: delayed}}",),
        ("precision={dtype: bf16, fp8: {recipe: delayed}}", RECOMPUTED),
        ("precision={dtype: bf16, fp8: {recipe: blockwise}}", TWO),
        ("model.lora={rank: 4, lora_dropout: 0.1}", "checkpoint.pretrained=another"),
    ],
    ids=" ".join,
)
def test_what_can_have_it(small: Any, overrides: tuple[str, ...]) -> None:
    assert small.job(*overrides, DEMANDED).runtime.cuda_graphs
    assert small.job(*overrides).runtime.cuda_graphs is None


OBSTACLES: list[tuple[tuple[str, ...], str]] = [
    (("runtime.device=cpu",), "runtime.device"),
    (("parallelism.tensor_model_parallel_size=2", TWO), "parallelism.tensor_model_parallel_size"),
    (("parallelism.pipeline_model_parallel_size=2", TWO), "parallelism.pipeline_model_parallel_size"),
    (("parallelism.context_parallel_size=2", TWO), "parallelism.context_parallel_size"),
    ((EXPERTS,), "model.num_experts"),
    (("model.mtp_num_layers=1",), "model.mtp_num_layers"),
    (("precision={dtype: bf16, fp8: {recipe: tensorwise}}", RECOMPUTED), "precision.fp8.recipe"),
    (("precision={dtype: bf16, fp8: {recipe: blockwise}}", RECOMPUTED), "precision.fp8.recipe"),
    (("precision={dtype: bf16, fp8: {recipe: delayed}}", TWO), "precision.fp8.recipe"),
    (("runtime.train_step=steps:Own",), "runtime.train_step"),
    (("runtime.recompute_granularity=selective", "model.hidden_dropout=0.1"), "runtime.recompute_granularity"),
    (
        ("runtime.recompute_granularity=selective", "model.lora={rank: 4, lora_dropout: 0.1}"),
        "runtime.recompute_granularity",
    ),
    (("runtime.cpu_offloading_num_layers=1",), "runtime.cpu_offloading_num_layers"),
]
"""What is asked for, and the field that stands in its way."""


@pytest.mark.parametrize(
    ("overrides", "field"), OBSTACLES, ids=lambda value: value if isinstance(value, str) else " ".join(value)
)
def test_what_cannot_is_refused(small: Any, overrides: tuple[str, ...], field: str) -> None:
    found = small.problems(*overrides, DEMANDED)
    assert ("cuda_graphs", (GRAPHS, field)) in [(problem.code, problem.paths) for problem in found]


def test_a_spec_that_says_nothing_of_it_has_the_identity_it_had(small: Any) -> None:
    document = small.job().model_dump(mode="json")
    without = {**document, "runtime": {k: v for k, v in document["runtime"].items() if k != "cuda_graphs"}}
    assert config_hash(document) == config_hash(without)
    assert config_hash(small.job(DEMANDED).model_dump(mode="json")) != config_hash(without)
