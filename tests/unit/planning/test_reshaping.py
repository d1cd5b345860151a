"""The verdict on a checkpoint that is to go on as another job."""

from __future__ import annotations

from typing import Any

import pytest
from support.training import layout, tiny_job

from orchestrator.planning.layout.reshaping import judge_reshape

SPLIT = layout(tp=2, pp=2)


def verdicts(optimizer: str | None = "fully_reshardable", rows: int | None = 256, **sections: Any) -> dict[str, str]:
    old = tiny_job("job", parallelism=SPLIT)
    new = tiny_job("job", **{"parallelism": SPLIT, **sections})
    return {finding.what: finding.verdict for finding in judge_reshape(old, new, optimizer, rows)}


def test_layouts_are_fine() -> None:
    found = verdicts(parallelism=layout(tp=4, dp=2), model={"hidden_dropout": 0.1})
    assert found.pop("model.hidden_dropout") == "changes"
    assert found == {
        "parallelism.tensor_model_parallel_size": "fine",
        "parallelism.pipeline_model_parallel_size": "fine",
        "parallelism.data_parallel_size": "fine",
        "optimizer state": "fine",
        "padded vocabulary": "fine",
        "random generators": "fine",
    }
    assert verdicts() == verdicts(rows=None) == {"optimizer state": "fine"}


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [(None, "fine"), ("fully_sharded_model_space", "fine"), ("dp_reshardable", "impossible"), ("other", "impossible")],
)
def test_an_optimizer_may_be_bound_to_its_ranks(kind: str | None, verdict: str) -> None:
    assert verdicts(kind)["optimizer state"] == verdict


def test_a_tokenizer_may_lie_elsewhere_and_a_run_have_another_name() -> None:
    data = [{"tokenizer": {"type": "wordpiece", "path": path}} for path in ("/here/vocab.txt", "/there/vocab.txt")]
    old, new = tiny_job("old", data=data[0]), tiny_job("new", data=data[1])
    for same, verdict in ((True, "fine"), (False, "impossible")):
        found = judge_reshape(old, new, "fully_reshardable", 256, same_tokenizer=same)
        verdicts = {finding.what: finding.verdict for finding in found}
        assert verdicts == {"data.tokenizer.path": verdict, "name": "fine", "optimizer state": "fine"}


def test_the_worst_comes_first() -> None:
    found = verdicts(
        parallelism=layout(tp=2, pp=2, use_distributed_optimizer=False), model={"ffn_hidden_size": 8}, data={"seed": 5}
    )
    assert list(found.values()) == ["impossible", "impossible", "changes", "fine"]
