"""Low-rank adapters in the arithmetic of a job, and what they do not go with."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.errors import SpecError
from orchestrator.planning.memory import estimate_memory
from orchestrator.planning.parameters import parameters
from orchestrator.planning.parameters.adapters import adapter_parameters
from orchestrator.spec.diff import diff_jobs
from orchestrator.spec.job import JobSpec

WIDE = {"num_layers": 4, "hidden_size": 256, "num_attention_heads": 8, "seq_length": 32, "vocab_size": 300}


def test_parameters_are_those_of_the_published_formula(make_job: Any) -> None:
    """r · (in + out) for each matrix; q, k and v are one, and so are both halves of a gate."""
    model = {**WIDE, "num_query_groups": 2, "activation": "swiglu", "ffn_hidden_size": 512}
    lora = {"rank": 8, "target_modules": ["linear_qkv", "linear_fc1"]}
    job = make_job(model={**model, "lora": lora})
    each = 8 * (256 + 256 + 2 * 2 * 32) + 8 * (256 + 2 * 512)
    assert adapter_parameters(job.model, 1) == each
    assert parameters(job, 384).total == parameters(make_job(model=model), 384).total + 4 * each


def test_frozen_weights_take_no_memory_beside_their_own(make_job: Any) -> None:
    whole = estimate_memory(make_job(model=WIDE), 384, "torch").stages[0].parts
    job = make_job(model={**WIDE, "lora": {"rank": 4}})
    adapted = estimate_memory(job, 384, "torch").stages[0].parts
    share = 4 * adapter_parameters(job.model, 1) / parameters(job, 384).total
    assert whole["weights"] < adapted["weights"] < 1.1 * whole["weights"]
    for part in ("gradients", "optimizer"):
        assert adapted[part] == pytest.approx(share * whole[part] / (1 - share), rel=0.01)


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "there is no checkpoint.pretrained": ({}, {"data": {"blend": [{"path": "a"}], "random_tokens": False}}),
    "Transformer Engine's layers take no adapters": ({}, {"runtime": {"layers": "transformer_engine"}}),
    "rank 65 > hidden_size 64": ({"rank": 65}, {}),
    "names a module twice": ({"target_modules": ["linear_fc1", "linear_fc1"]}, {}),
    "adapters beside experts": ({}, {"model": {"num_experts": 2}}),
}


def built(make_job: Any, lora: dict[str, Any], **sections: Any) -> JobSpec:
    model = {**sections.pop("model", {}), "lora": lora}
    return JobSpec.model_validate(make_job(model=model, **sections).model_dump())


@pytest.mark.parametrize("said", REFUSED)
def test_what_adapters_do_not_go_with(make_job: Any, said: str) -> None:
    lora, sections = REFUSED[said]
    with pytest.raises(SpecError, match=said):
        built(make_job, lora, **sections)


def test_other_adapters_are_another_run(make_job: Any) -> None:
    old = built(make_job, {"rank": 4})
    kinds = {change.path: change.kind for change in diff_jobs(old, built(make_job, {"rank": 8, "alpha": 16.0}))}
    assert kinds == {"model.lora.rank": "forbidden", "model.lora.alpha": "trajectory"}
    without = JobSpec.model_validate(make_job().model_dump())
    assert "forbidden" in {change.kind for change in diff_jobs(old, without)}
