"""What a verdict says of the weights that a training is to start from, where they are on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.training import four_layer_job, make_run

from orchestrator.planning.forecast import forecast
from orchestrator.planning.plan import make_plan
from orchestrator.planning.verdict import judge
from orchestrator.run_directory.checkpoints.commit_markers import file_record, write_commit

EYES = {"image_size": 16, "patch_size": 8, "num_layers": 2, "hidden_size": 32, "num_attention_heads": 4}


def warnings(folder: Path, model: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """Of a job with this model that starts from a run with another."""
    run = make_run(folder, four_layer_job("source", model=theirs))
    checkpoint = run.checkpoint(5)
    checkpoint.mkdir(parents=True)
    (checkpoint / "weights").write_bytes(b"weights")
    files = {"weights": file_record(checkpoint / "weights")}
    write_commit(checkpoint, iteration=5, consumed_samples=40, files=files, config_hash="abc")
    job = four_layer_job("tuned", model=model, checkpoint={"pretrained": str(run.path)}, launch={"gpu": "H100"})
    plan = make_plan(job)
    found = judge(plan, forecast(plan), None)
    assert found.stops == ()
    return [each.message for each in found.warnings if "checkpoint.pretrained" in each.paths]


@pytest.mark.parametrize(
    ("model", "theirs", "said"),
    [
        ({}, {}, None),
        ({"vision": EYES}, {"vision": {**EYES, "freeze": True}}, None),
        ({"lora": {"rank": 2}}, {}, None),
        ({"num_layers": 2}, {}, "model.num_layers is 4 there and 2 here"),
        ({"vision": EYES}, {"vision": {**EYES, "num_layers": 3}}, "model.vision.num_layers is 3 there and 2 here"),
        ({"vision": EYES}, {}, "takes no images, so the encoder starts at random"),
        ({"vision": {**EYES, "freeze": True}}, {}, "starts at random and stays so"),
        ({}, {"vision": EYES}, "model.vision.image_size is 16 there and None here"),
    ],
)
def test_weights_that_are_here(tmp_path: Path, model: dict[str, Any], theirs: dict[str, Any], said: str | None) -> None:
    found = warnings(tmp_path, model, theirs)
    assert len(found) == (said is not None)
    assert said is None or said in found[0]
