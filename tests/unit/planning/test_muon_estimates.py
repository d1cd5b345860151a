"""What is planned of Muon: as many parameters as the runtime orthogonalises, their state, and their time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.faults import Ranks
from support.matrix import FAMILIES
from support.training import layout

from orchestrator.planning.forecast import checkpoint_bytes
from orchestrator.planning.hardware.devices import device_named
from orchestrator.planning.memory import estimate_memory
from orchestrator.planning.parameters import parameters
from orchestrator.planning.parameters.matrices import matrix_parameters_in_all, stage_matrix_parameters
from orchestrator.planning.time import estimate_time
from orchestrator.planning.vocabulary import vocabulary
from orchestrator.spec.job import JobSpec

SP, EP = {"sequence_parallel": True}, {"expert_model_parallel_size": 2}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gpt": (FAMILIES["gpt"], layout(tp=2, pp=2)),
    "experts": (FAMILIES["experts"], layout(tp=2, dp=2, **SP, **EP)),
    "whole experts": (FAMILIES["experts"], layout(tp=2, dp=2, **SP, **EP, expert_tensor_parallel_size=1)),
    "bert": (FAMILIES["bert"], layout(tp=2, pp=2)),
    "t5": (FAMILIES["t5"], layout(tp=2, pp=2)),
    "vision": (FAMILIES["vision"], layout(tp=2)),
    "delta": (FAMILIES["delta"], layout(tp=2, **SP)),
    "further tokens": (FAMILIES["mtp"], layout(pp=2)),
}


def job_of(make_job: Any, case: str, **optimizer: Any) -> JobSpec:
    model, parallelism = CASES[case]
    job: JobSpec = make_job(
        model=model, parallelism=parallelism, batch={"global_batch_size": 16}, optimizer={"name": "muon", **optimizer}
    )
    return job


def test_matrices_are_those_of_the_runtime(make_job: Any, ranks: Ranks) -> None:
    jobs = {name: job_of(make_job, name) for name in CASES}
    typed = json.dumps([job.model_dump(mode="json") for job in jobs.values()])
    said = ranks.program(Path(__file__).parent, "expert_counts_program", "matrices", typed=typed)
    built = dict(zip(CASES, json.loads(said), strict=True))
    for name, job in jobs.items():
        planned = {(pp, count) for pp, (count, _) in enumerate(stage_matrix_parameters(job))}
        assert {(pp, count) for _, pp, count in built[name]} == planned, name


def test_a_matrix_has_one_moment(make_job: Any) -> None:
    muon, adam = job_of(make_job, "gpt"), job_of(make_job, "gpt", name="adam")
    words = vocabulary(muon).padded_size
    total, matrices = parameters(muon, words).total, matrix_parameters_in_all(muon)
    assert 0 < matrices < total
    assert checkpoint_bytes(adam, total) - checkpoint_bytes(muon, total) == 4 * matrices
    ours, theirs = (estimate_memory(job, words, "torch").stages for job in (muon, adam))
    for stage, other, (count, _) in zip(ours, theirs, stage_matrix_parameters(muon), strict=True):
        assert other.parts["optimizer"] - stage.parts["optimizer"] == 4 * count


def test_other_optimizers_orthogonalise_nothing(make_job: Any) -> None:
    assert matrix_parameters_in_all(job_of(make_job, "gpt", name="adam")) == 0


@pytest.mark.parametrize("name", ["gpt", "experts"])
def test_an_update_takes_longer_than_that_of_adam(make_job: Any, name: str) -> None:
    job = job_of(make_job, name)
    words, device = vocabulary(job).padded_size, device_named("H100")
    seconds = [
        estimate_time(each, words, "torch", device).parts["optimizer"]
        for each in (job, job_of(make_job, name, muon_num_ns_steps=10), job_of(make_job, name, name="adam"))
    ]
    assert seconds[2] < seconds[0] < seconds[1]
