"""What a verdict says of the weights that a training is to start from, where they are on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.training import four_layer_job, make_run

from orchestrator.planning.forecast import forecast
from orchestrator.planning.plan import make_plan
from orchestrator.planning.warnings import judge
from orchestrator.run_directory.checkpoints.commit_markers import file_record, write_commit

EYES = {"image_size": 16, "patch_size": 8, "num_layers": 2, "hidden_size": 32, "num_attention_heads": 4}


def warnings(
    folder: Path, model: dict[str, Any], theirs: dict[str, Any], *, upcycle: bool = False, fine: str | None = None
) -> list[str]:
    """Of a job with this model that starts from a run with another. `fine`: what is said of it that is fine."""
    run = make_run(folder, four_layer_job("source", model=theirs))
    checkpoint = run.checkpoint(5)
    checkpoint.mkdir(parents=True)
    (checkpoint / "weights").write_bytes(b"weights")
    files = {"weights": file_record(checkpoint / "weights")}
    write_commit(checkpoint, iteration=5, consumed_samples=40, files=files, config_hash="abc")
    checkpoint_section = {"pretrained": str(run.path), "upcycle": upcycle}
    job = four_layer_job("tuned", model=model, checkpoint=checkpoint_section, launch={"gpu": "H100"})
    plan = make_plan(job)
    found = judge(plan, forecast(plan), None)
    assert found.stops == ()
    assert fine is None or any(fine in line for line in found.fine)
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


DENSE = {"add_bias_linear": False, "ffn_hidden_size": 128}
SPARSE = {**DENSE, "num_experts": 4}


@pytest.mark.parametrize(
    ("model", "theirs", "upcycle", "said"),
    [
        (SPARSE, DENSE, True, None),
        ({**SPARSE, "moe_ffn_hidden_size": 64}, DENSE, True, None),
        (SPARSE, SPARSE, False, None),
        (SPARSE, DENSE, False, "is dense, and this job has 4 experts"),
        (SPARSE, SPARSE, True, "has 4 experts already"),
        (SPARSE, {**DENSE, "ffn_hidden_size": 64}, True, "model.ffn_hidden_size is 64 there and 128 here"),
    ],
)
def test_experts_start_from_a_dense_model_where_that_is_asked_for(
    tmp_path: Path, model: dict[str, Any], theirs: dict[str, Any], upcycle: bool, said: str | None
) -> None:
    fine = "the 4 experts of a layer start from the dense MLP of" if upcycle else None
    found = warnings(tmp_path, model, theirs, upcycle=upcycle, fine=fine)
    assert len(found) == (said is not None)
    assert said is None or said in found[0]
