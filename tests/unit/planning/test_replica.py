"""Which layouts a network can be split over."""

from __future__ import annotations

import pytest
from support.training import layout, tiny_job

from orchestrator.errors import UserError
from orchestrator.planning.replica import at_layout


def test_another_pipeline_has_stages_of_its_own() -> None:
    """What shared out the layers of the training's pipeline is forgotten; four layers go into three stages."""
    job = tiny_job("job", parallelism=layout(pp=2, vp=2, account_for_loss_in_pipeline_split=False))
    assert at_layout(job, 1, 2) is job
    assert at_layout(job, 1, 3).parallelism.pipeline_model_parallel_layout == "Ett|t|tL"
    uneven = tiny_job("job", parallelism=layout(pp=2, num_layers_in_first_pipeline_stage=1))
    assert at_layout(uneven, 2, 1).parallelism.num_layers_in_first_pipeline_stage is None


@pytest.mark.parametrize(
    ("tp", "pp", "message"),
    [
        (3, 1, "tensor_model_parallel_size 3 does not divide the model's 4 attention heads"),
        (1, 5, "pipeline_model_parallel_size 5 is more than the model's 4 layers"),
    ],
)
def test_a_network_that_cannot_be_split_so_is_refused(tp: int, pp: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        at_layout(tiny_job("job"), tp, pp)
