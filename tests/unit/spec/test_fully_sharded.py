"""Which jobs are fully sharded, and what is refused beside it."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.spec.rules.kernels.cuda_graphs import GRAPHS
from orchestrator.spec.rules.parallelism.fully_sharded import FSDP

EXPERTS, SPREAD = "model={num_experts: 4, add_bias_linear: false}", "parallelism.expert_model_parallel_size=4"
PLAIN = ("launch.gpus_per_node=2", f"{FSDP}=full")
OBSTACLES: list[tuple[tuple[str, ...], str]] = [
    (
        ("parallelism.pipeline_model_parallel_size=2", "launch.gpus_per_node=4"),
        "parallelism.pipeline_model_parallel_size",
    ),
    (("model.architecture=t5", "model.encoder_seq_length=64"), "model.architecture"),
    (("parallelism.use_distributed_optimizer=false",), "parallelism.use_distributed_optimizer"),
    (("optimizer.offload_fraction=0.5",), "optimizer.offload_fraction"),
    (("model.lora={rank: 4}", "checkpoint.pretrained=run"), "model.lora"),
    (("precision.fp8={recipe: delayed}",), "precision.fp8"),
    (("runtime={cpu_offloading_num_layers: 1, layers: transformer_engine}",), "runtime.cpu_offloading_num_layers"),
    (
        (
            *("model={num_experts: 2, add_bias_linear: false}", "checkpoint.pretrained=run", "checkpoint.upcycle=true"),
            "model.moe_ffn_hidden_size=512",
        ),
        "checkpoint.upcycle",
    ),
]
"""What is asked for beside it, and the field that stands in its way."""


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("parallelism.context_parallel_size=2",),
        ("parallelism.tensor_model_parallel_size=2", "launch.gpus_per_node=4"),
        (EXPERTS,),
        ("model.architecture=bert", "model.max_position_embeddings=128"),
        ("optimizer.name=muon",),
        ("precision.dtype=fp16",),
    ],
    ids=" ".join,
)
def test_replicas_share_out_the_weights(small: Any, overrides: tuple[str, ...]) -> None:
    assert small.job(*PLAIN, *overrides).is_fully_sharded


@pytest.mark.parametrize(
    "overrides",
    [
        (f"{FSDP}=1",),
        (f"{FSDP}=3",),
        (f"{FSDP}=8",),
        (f"{FSDP}=2", EXPERTS, SPREAD),
    ],
    ids=" ".join,
)
def test_groups_are_equal_and_share_something_out(small: Any, overrides: tuple[str, ...]) -> None:
    problems = small.problems("launch.gpus_per_node=4", *overrides)
    assert [problem.code for problem in problems if problem.paths[0] == FSDP] == ["sharding_groups"]


def test_groups_of_replicas_share_out_a_copy_each(small: Any) -> None:
    four = "launch.gpus_per_node=4"
    sizes = {"null": 1, "full": 1, "4": 1, "2": 2}
    assert {size: small.job(four, f"{FSDP}={size}").sharded_copies for size in sizes} == sizes
    assert small.job(four, EXPERTS, SPREAD.replace("4", "2"), f"{FSDP}=2").sharded_copies == 2
    halved = small.job("launch.gpus_per_node=8", f"{FSDP}=4", "batch.global_batch_size=16")
    assert halved.changed(launch={"gpus_per_node": 9}).sharded_copies == 1, "9 ranks are not two groups"


def test_one_replica_has_them_all(small: Any) -> None:
    assert not small.job(*PLAIN, "launch.gpus_per_node=1").is_fully_sharded
    assert not small.job("launch.gpus_per_node=2").is_fully_sharded


@pytest.mark.parametrize(
    ("overrides", "field"), OBSTACLES, ids=lambda value: value if isinstance(value, str) else " ".join(value)
)
def test_what_does_not_go_with_it_is_refused(small: Any, overrides: tuple[str, ...], field: str) -> None:
    found = small.problems(*PLAIN, *overrides)
    assert ("fully_sharded", (FSDP, field)) in [(problem.code, problem.paths) for problem in found]


def test_its_passes_are_no_graph(small: Any) -> None:
    found = small.problems(*PLAIN, f"{GRAPHS}=true")
    assert ("cuda_graphs", (GRAPHS, FSDP)) in [(problem.code, problem.paths) for problem in found]
