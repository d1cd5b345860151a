"""Which layouts a network can be split over."""

from __future__ import annotations

from typing import Any

import pytest
from support.refused import refused
from support.training import four_layer_job, layout

from orchestrator.errors import UserError
from orchestrator.planning.layout.replica import at_layout


def test_another_pipeline_has_stages_of_its_own() -> None:
    """What shared out the layers of the training's pipeline is forgotten; four layers go into three stages."""
    job = four_layer_job("job", parallelism=layout(pp=2, vp=2, account_for_loss_in_pipeline_split=False))
    assert at_layout(job, 1, 2) is job
    assert at_layout(job, 1, 3).parallelism.pipeline_model_parallel_layout == "Ett|t|tL"
    uneven = four_layer_job("job", parallelism=layout(pp=2, num_layers_in_first_pipeline_stage=1))
    assert at_layout(uneven, 2, 1).parallelism.num_layers_in_first_pipeline_stage is None


_HEADS = "num_attention_heads / TP must be whole: 4"
_T5 = {"architecture": "t5", "decoder_seq_length": 32, "position_embedding_type": "learned_absolute"}
_HYBRID = {"architecture": "mamba", "mamba_head_dim": 16, "mamba_num_groups": 2}
_EXPERTS = {"num_experts": 4, "moe_ffn_hidden_size": 66, "add_bias_linear": False}


@pytest.mark.parametrize(
    ("model", "tp", "pp", "why", "fit"),
    [
        ({}, 3, 1, f"{_HEADS} / 3 = 1.333", "1, 2, 4"),
        ({}, 8, 1, f"{_HEADS} / 8 = 0.5", "1, 2, 4"),
        ({"ffn_hidden_size": 66}, 4, 1, "ffn_hidden_size / TP must be whole: 66 / 4 = 16.5", "1, 2"),
        (_EXPERTS, 4, 1, "moe_ffn_hidden_size / ETP must be whole: 66 / 4 = 16.5", "1, 2"),
        (_HYBRID, 4, 1, "TP 4 does not divide the 2 groups of state space layers: 2 / 4 = 0.5", "1, 2"),
        (_T5, 1, 5, "the decoder's layers / its stages must be whole: 4 / 3 = 1.333", "1, 2, 3, 4, 8"),
    ],
)
def test_sizes_that_do_not_divide_are_refused_beside_those_that_do(
    model: dict[str, Any], tp: int, pp: int, why: str, fit: str
) -> None:
    asked = f"tensor_model_parallel_size {tp}" if tp > 1 else f"pipeline_model_parallel_size {pp}"
    with pytest.raises(UserError) as refused:
        at_layout(four_layer_job("job", model=model), tp, pp)
    assert str(refused.value) == f"{asked} does not fit this model: {why}; sizes that fit: {fit}"


def test_where_no_size_fits_the_training_s_own_does() -> None:
    job = four_layer_job("job", model=_HYBRID)
    stored = job.model_copy(update={"model": job.model.model_copy(update={"mamba_num_groups": 3})})
    with refused("layout_does_not_fit_model", "8 / 3 = 2.667"):
        at_layout(stored, 2, 1)
    assert at_layout(stored, 1, 1) is stored


def test_query_groups_are_shared_by_equally_many_ranks() -> None:
    job = four_layer_job("job", model={"num_attention_heads": 12, "hidden_size": 96, "num_query_groups": 2})
    assert at_layout(job, 4, 1).parallelism.tensor_model_parallel_size == 4
    with refused("layout_does_not_fit_model", "2 / 3 = 0.6667", "1, 2, 4, 6, 12"):
        at_layout(job, 3, 1)


def test_a_stage_has_a_layer_at_least() -> None:
    with refused("layout_does_not_fit_model", "pipeline_model_parallel_size 5", "4 layers"):
        at_layout(four_layer_job("job"), 1, 5)
