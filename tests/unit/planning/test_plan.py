"""The plan as a whole: what it holds and that it is plain data."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.problems import codes

from orchestrator.planning.flops import model_flops
from orchestrator.planning.plan import make_plan

PARALLELISM = {
    "tensor_model_parallel_size": 2,
    "pipeline_model_parallel_size": 2,
    "virtual_pipeline_model_parallel_size": 2,
    "data_parallel_size": 2,
}


def test_the_plan_is_json(make_job: Any) -> None:
    job = make_job(parallelism=PARALLELISM, batch={"global_batch_size": 16, "rampup_batch_size": [8, 4, 100]})
    plan = json.loads(json.dumps(make_plan(job).to_dict()))
    assert plan["config_hash"] == job.config_hash
    assert plan["parameters"]["total"] > 0
    assert {(rank["tp"], rank["pp"]) for rank in plan["parameters"]["per_rank"]} == {(0, 0), (1, 0), (0, 1), (1, 1)}
    assert plan["topology"]["world_size"] == len(plan["topology"]["ranks"]) == 8
    assert plan["topology"]["stages"][1] == {"pp": 1, "chunks": [{"first": 1, "last": 1}, {"first": 3, "last": 3}]}
    assert plan["batch"]["global_batch_size"] == 16
    assert plan["batch"]["num_micro_batches"] == 4
    assert [stage["global_batch_size"] for stage in plan["batch"]["rampup"]] == [8, 12, 16]
    assert plan["steps"] == 100
    assert plan["tokens"] == plan["samples"] * 32
    assert plan["flops"]["total"] == model_flops(job, plan["tokens"], 512)


AWAY = {"random_tokens": False, "blend": ["away"], "tokenizer": {"type": "huggingface", "path": "no/such"}}
"""Data and a tokenizer that are not on this machine."""


def test_warnings_and_notes(make_job: Any) -> None:
    plain = make_plan(make_job())
    assert (plain.warnings, plain.notes) == ((), ())
    plan = make_plan(make_job(data=AWAY))
    assert codes(plan.warnings) == ["data data.tokenizer.path", "data data.blend[0]"]
    assert "test data (0.10% of each source, by data.split) is not evaluated during training" in plan.notes
    assert not any("test data" in note for note in make_plan(make_job(data={**AWAY, "split": "9,1,0"})).notes)
    tested = make_plan(make_job(data={**AWAY, "test": ["held/back"]})).notes
    assert "test data (data.test) is not evaluated during training" in tested


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"seq_length": 8192}, []),
        ({"seq_length": 16384}, ["a step with sequences of more than 8,192 tokens"]),
        ({"num_experts": 4, "add_bias_linear": False}, ["a step with experts"]),
    ],
)
def test_what_published_steps_took_longer_for(make_job: Any, model: dict[str, Any], said: list[str]) -> None:
    notes = [note for note in make_plan(make_job(model=model)).notes if "a third longer" in note]
    assert [note.partition(" may")[0] for note in notes] == said
