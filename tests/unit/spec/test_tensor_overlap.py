"""Which jobs' tensor parallelism overlaps, and what is refused where it is asked for."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.kernel_selection.tensor_overlap import wants_overlap
from orchestrator.spec.rules.parallelism.tensor_overlap import OVERLAP

TP = "parallelism.tensor_model_parallel_size"
SP = "parallelism.sequence_parallel"
PLAIN = (f"{TP}=2", f"{SP}=true", "launch.gpus_per_node=2")
EIGHT = ("model={num_attention_heads: 16, hidden_size: 256}", "batch.global_batch_size=16", "launch.gpus_per_node=16")
LARGE = ("model={hidden_size: 1024, seq_length: 32768, max_position_embeddings: 32768}", "batch.global_batch_size=null")
EXPERTS = "model={num_experts: 2, add_bias_linear: false}"
TASK = (
    "model={architecture: bert, max_position_embeddings: 128}",
    "task={name: mnli, train: [train.tsv], validation: [dev.tsv]}",
    "data={blend: null, tokenizer: {type: wordpiece, path: vocab.txt}}",
)


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("parallelism.context_parallel_size=2", "launch.gpus_per_node=4"),
        ("parallelism.pipeline_model_parallel_size=2", "launch.gpus_per_node=4"),
        (*EIGHT, f"{TP}=8"),
        ("launch={nodes: 2, gpus_per_node: 2}",),
        ("runtime.layers=transformer_engine",),
        ("precision.fp8={recipe: delayed}",),
        ("precision.fp8={recipe: tensorwise}",),
        ("model={hidden_size: 144, seq_length: 258}", "batch.micro_batch_size=4"),
        (*LARGE, "batch.micro_batch_size=31"),
    ],
    ids=" ".join,
)
def test_what_can_overlap_does_unless_it_is_switched_off(small: Any, overrides: tuple[str, ...]) -> None:
    assert wants_overlap(small.job(*PLAIN, *overrides))
    assert wants_overlap(small.job(*PLAIN, *overrides, f"{OVERLAP}=true"))
    assert not wants_overlap(small.job(*PLAIN, *overrides, f"{OVERLAP}=false"))


OBSTACLES: list[tuple[tuple[str, ...], str]] = [
    ((f"{SP}=false",), "parallelism.sequence_parallel"),
    ((*EIGHT, f"{TP}=16"), "parallelism.tensor_model_parallel_size"),
    (
        ("model={num_attention_heads: 6, hidden_size: 192, seq_length: 96}", f"{TP}=3", "launch.gpus_per_node=3"),
        "parallelism.tensor_model_parallel_size",
    ),
    (("launch={nodes: 2, gpus_per_node: 1}",), "parallelism.tensor_model_parallel_size"),
    (("runtime.layers=torch",), "runtime.layers"),
    (("runtime={device: cpu}",), "runtime.device"),
    (("model.lora={rank: 4}", "checkpoint.pretrained=run"), "model.lora"),
    (("model.architecture=bert",), "model.architecture"),
    ((EXPERTS,), "model.num_experts"),
    (TASK, "task"),
    (("runtime.train_step=my_package.steps:Weighted",), "runtime.train_step"),
    (("precision.dtype=fp16",), "precision.dtype"),
    (("precision.dtype=fp32",), "precision.dtype"),
    (("precision.fp8={recipe: blockwise}",), "precision.fp8"),
    (("precision.fp8={recipe: tensorwise, num_layers_at_end_in_bf16: 1}",), "precision.fp8"),
    (
        ("model={hidden_size: 144, seq_length: 258}", "batch.micro_batch_size=1"),
        "model.hidden_size",
    ),
    ((*LARGE, "batch.micro_batch_size=32"), "batch.micro_batch_size"),
]
"""What is asked for, and the field that stands in its way."""


@pytest.mark.parametrize(
    ("overrides", "field"), OBSTACLES, ids=lambda value: value if isinstance(value, str) else " ".join(value)
)
def test_what_cannot_does_not_and_is_refused_where_it_is_demanded(
    small: Any, overrides: tuple[str, ...], field: str
) -> None:
    assert not wants_overlap(small.job(*PLAIN, *overrides))
    found = small.problems(*PLAIN, *overrides, f"{OVERLAP}=true")
    assert ("overlapped_tensor_parallel", (OVERLAP, field)) in [(problem.code, problem.paths) for problem in found]


def test_without_tensor_parallelism_it_means_nothing(small: Any) -> None:
    for said in ("true", "false", "null"):
        assert not wants_overlap(small.job(f"{OVERLAP}={said}"))
