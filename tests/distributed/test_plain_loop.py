"""Our training and the loop over megatron-core itself that it is measured beside learn the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.faults import Ranks
from support.measured import Meter, largest_differences
from support.peer import peer_meter
from support.training import layout, tiny_job


@pytest.mark.parametrize("parallelism", [layout(dp=2), layout(pp=2, vp=2)])
def test_both_learn_the_same(parallelism: dict[str, object], ranks: Ranks, tmp_path: Path) -> None:
    job = tiny_job(
        "same",
        model={"num_layers": 4, "vocab_size": 256, "add_bias_linear": False, "position_embedding_type": "rope"},
        parallelism=parallelism,
        schedule={"train_iters": 5},
    )
    ours = Meter(ranks.starter, tmp_path / "ours").measure(job)
    plain = peer_meter(ranks.starter, tmp_path / "plain").measure(job)
    assert ours.outcome == "measured", ours.message
    assert plain.outcome == "measured", plain.message
    losses, norms = largest_differences(ours, plain)
    assert losses < 1e-5
    assert norms < 1e-4
