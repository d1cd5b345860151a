"""The weights of a network, by its spec alone: those that the tables of Hugging Face's families give it."""

from __future__ import annotations

from typing import Any

import pytest
from support.refused import refused
from support.training import tiny_job

from orchestrator.conversion.hugging_face.families.registry import family_of_model
from orchestrator.conversion.megatron.arguments import require_representable
from orchestrator.conversion.shapes import shapes_of_weight, weights_of
from tests.unit.spec.test_shipped import of_preset

ROWS = 256
PRESETS = (
    *("bert-base", "roberta-base", "bert-345m", "modernbert-base", "t5-v1.1-base"),
    *("llama3.2-1b", "olmo2-7b", "gemma2-2b", "falcon-7b", "deepseek-v2-lite", "gpt-oss-20b"),
)


@pytest.mark.parametrize("name", PRESETS)
def test_the_weights_of_a_preset(name: str) -> None:
    model = of_preset(name).model
    wanted = {
        key: (*weight.within, *shape)
        for weight in family_of_model(model).weights(model)
        for key, shape in shapes_of_weight(weight, model, ROWS).items()
    }
    assert weights_of(model, ROWS) == wanted


@pytest.mark.parametrize(
    "otherwise",
    [{"transformer_block_type": "post_ln"}, {"embedding_norm": True}, {"bert_head_bias": False}, {"norm_bias": False}],
)
def test_berts_that_megatron_lm_has_not_are_refused_by_field(otherwise: dict[str, Any]) -> None:
    plain = {"architecture": "bert", "position_embedding_type": "learned_absolute"}
    require_representable(tiny_job("job", model=plain))
    with refused("network_not_in_megatron", *otherwise):
        require_representable(tiny_job("job", model={**plain, **otherwise}))
