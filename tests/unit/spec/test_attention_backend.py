"""Which jobs can have FlashAttention 4, and what is refused where it is asked for."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.kernel_selection.attention import may_use_flash
from orchestrator.spec.rules.kernels.flash_attention import ATTENTION
from orchestrator.spec.schema.canonical import config_hash

PLAIN = ("model={hidden_size: 256}", "precision.dtype=bf16")
CONTEXT = ("parallelism.context_parallel_size=2", "launch.gpus_per_node=2")
IMAGES = (
    *("model.vision={type: gemma3, image_size: 28, pooled_tokens: 1}", "data.chat={template: t.jinja, packing: false}"),
    "data.tokenizer={type: huggingface, path: t}",
)
PACKED = ("data.chat={template: t.jinja}", "data.tokenizer={type: huggingface, path: t}")


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("model.hidden_size=512",),
        ("model.kv_channels=128",),
        ("model={num_query_groups: 1, qk_layernorm: true}",),
        ("precision.dtype=fp16",),
        ("precision.fp8={recipe: delayed}",),
        ("runtime.layers=torch",),
        ("runtime={recompute_granularity: selective}",),
        ("parallelism={tensor_model_parallel_size: 2}", "launch.gpus_per_node=2"),
    ],
    ids=" ".join,
)
def test_what_can_have_it_has_it_looked_for_unless_it_is_not_to(small: Any, overrides: tuple[str, ...]) -> None:
    assert may_use_flash(small.job(*PLAIN, *overrides))
    assert may_use_flash(small.job(*PLAIN, *overrides, f"{ATTENTION}=flash"))
    assert not may_use_flash(small.job(*PLAIN, *overrides, f"{ATTENTION}=fused"))


OBSTACLES: list[tuple[tuple[str, ...], str]] = [
    (("model.architecture=bert",), "model.architecture"),
    (("runtime.device=cpu",), "runtime.device"),
    (("model.kv_channels=96",), "model.kv_channels"),
    (("model.hidden_size=128",), "model.num_attention_heads"),
    (("model.attention_dropout=0.1",), "model.attention_dropout"),
    (("model.position_embedding_type=alibi",), "model.position_embedding_type"),
    (("model.sliding_window=32",), "model.sliding_window"),
    (("model.attention_logit_softcapping=30",), "model.attention_logit_softcapping"),
    (("model.softmax_type=learnable",), "model.softmax_type"),
    (PACKED, "data.chat.packing"),
    (IMAGES, "model.vision.type"),
    (CONTEXT, "parallelism.context_parallel_size"),
    (("precision.dtype=fp32",), "precision.dtype"),
    (("runtime.deterministic=true",), "runtime.deterministic"),
    (("runtime.cpu_offloading_num_layers=1",), "runtime.cpu_offloading_num_layers"),
]
"""What is asked for, and the field that stands in its way."""


@pytest.mark.parametrize(
    ("overrides", "field"), OBSTACLES, ids=lambda value: value if isinstance(value, str) else " ".join(value)
)
def test_what_cannot_does_not_and_is_refused_where_it_is_demanded(
    small: Any, overrides: tuple[str, ...], field: str
) -> None:
    assert not may_use_flash(small.job(*PLAIN, *overrides))
    found = small.problems(*PLAIN, *overrides, f"{ATTENTION}=flash")
    assert ("flash_attention", (ATTENTION, field)) in [(problem.code, problem.paths) for problem in found]


def test_a_spec_that_says_nothing_of_it_has_the_identity_it_had(small: Any) -> None:
    document = small.job().model_dump(mode="json")
    without = {**document, "runtime": {k: v for k, v in document["runtime"].items() if k != "attention_backend"}}
    assert config_hash(document) == config_hash(without)
    assert config_hash(small.job(f"{ATTENTION}=fused").model_dump(mode="json")) != config_hash(without)
