"""A decoder that sees trains the same on every layout (fp32, relative difference below 1e-5)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.faults import Ranks
from support.trained_weights import weights_apart
from support.training import largest_difference, layout, losses, make_run, tiny_job

from orchestrator.rundir import RunDir

pytestmark = [pytest.mark.distributed, pytest.mark.slow("each layout trains on real ranks")]

EYES: dict[str, Any] = {
    **{"image_size": 16, "patch_size": 4, "num_layers": 2, "hidden_size": 32, "num_attention_heads": 4},
    "images_per_sequence": 2,
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "tp2": layout(tp=2),
    "tp2-sp": layout(tp=2, sequence_parallel=True),
    "pp2": layout(pp=2),
    "pp2-vp2": layout(pp=2, vp=2),
    "dp2": layout(dp=2, use_distributed_optimizer=True),
    "tp2-sp-dp2": layout(tp=2, dp=2, sequence_parallel=True, use_distributed_optimizer=True),
}


def trained(ranks: Ranks, folder: Path, name: str, parallelism: dict[str, Any], **eyes: Any) -> RunDir:
    sections: dict[str, Any] = {"batch": {"micro_batch_size": 2}, "schedule": {"train_iters": 5}}
    sections["runtime"] = eyes.pop("runtime", {})
    job = tiny_job(name, model={"vision": {**EYES, **eyes}}, parallelism=parallelism, **sections)
    return ranks.must_train(make_run(folder, job), job)


@pytest.fixture(scope="module")
def reference(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return trained(ranks, tmp_path_factory.mktemp("reference"), "one", {})


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name: str, reference: RunDir, ranks: Ranks, tmp_path: Path) -> None:
    run = trained(ranks, tmp_path, name, LAYOUTS[name])
    assert largest_difference(losses(reference), losses(run)) < 1e-5
    assert weights_apart(reference, run) == {}
