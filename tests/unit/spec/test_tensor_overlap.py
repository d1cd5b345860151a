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


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ((f"{SP}=false",), "whole tensors are summed at once"),
        ((*EIGHT, f"{TP}=16"), "2, 4 or 8"),
        (
            ("model={num_attention_heads: 6, hidden_size: 192, seq_length: 96}", f"{TP}=3", "launch.gpus_per_node=3"),
            "2, 4 or 8",
        ),
        (("launch={nodes: 2, gpus_per_node: 1}",), "have to share a machine"),
        (("runtime.layers=torch",), "Transformer Engine's layers, on GPUs"),
        (("runtime={device: cpu}",), "Transformer Engine's layers, on GPUs"),
        (("model.lora={rank: 4}", "checkpoint.pretrained=run"), "adapters stand beside torch's layers"),
        (("model.architecture=bert",), "decoders alone"),
        ((EXPERTS,), "layers with experts"),
        (TASK, "micro-batches of a task"),
        (("runtime.train_step=my_package.steps:Weighted",), "a step of your own"),
        (("precision.dtype=fp16",), "its buffers are bf16"),
        (("precision.dtype=fp32",), "its buffers are bf16"),
        (("precision.fp8={recipe: blockwise}",), "tensors with one scale, of every layer"),
        (("precision.fp8={recipe: tensorwise, num_layers_at_end_in_bf16: 1}",), "tensors with one scale"),
        (
            ("model={hidden_size: 144, seq_length: 258}", "batch.micro_batch_size=1"),
            "part of a micro-batch is 129 · 144",
        ),
        ((*LARGE, "batch.micro_batch_size=32"), "1048576 tokens of 1024 elements are too many"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_what_cannot_does_not_and_is_refused_where_it_is_demanded(
    small: Any, overrides: tuple[str, ...], reason: str
) -> None:
    assert not wants_overlap(small.job(*PLAIN, *overrides))
    messages = small.messages(*PLAIN, *overrides, f"{OVERLAP}=true")
    begins = "overlapped tensor parallelism cannot be had: "
    assert any(each.startswith(begins) and reason in each for each in messages), messages


def test_without_tensor_parallelism_it_means_nothing(small: Any) -> None:
    for said in ("true", "false", "null"):
        assert not wants_overlap(small.job(f"{OVERLAP}={said}"))
