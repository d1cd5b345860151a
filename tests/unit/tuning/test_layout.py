"""A layout goes into a job and comes out of it again, and changes nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.refused import refused

from orchestrator.spec.job import JobSpec
from orchestrator.spec.schema.shape import leaf_paths
from orchestrator.tuning.layout import (
    KEYS,
    Layout,
    Recompute,
    fields_kept,
    layout_of,
    on_machines,
    settings_of,
    with_layout,
)

LAYOUT = Layout(2, 2, 2, 1, 1, 4, True, False, True, False, Recompute("full", "block", 1))


def test_a_layout_goes_into_a_job_and_comes_out_again(make_job: Callable[..., JobSpec]) -> None:
    assert layout_of(with_layout(make_job(), LAYOUT)) == LAYOUT


def test_nothing_but_the_layout_changes(make_job: Callable[..., JobSpec]) -> None:
    job = make_job()
    changed = with_layout(job, LAYOUT)
    back = with_layout(changed, layout_of(job))
    assert back == job
    assert changed.model == job.model
    assert changed.global_batch_size == job.global_batch_size


def test_a_degree_of_sequence_parallelism_is_the_same_as_true(make_job: Callable[..., JobSpec]) -> None:
    job = make_job(parallelism={"tensor_model_parallel_size": 2, "sequence_parallel": 2})
    assert layout_of(job).sequence_parallel is True


def test_the_keys_are_those_of_a_spec_and_each_is_set() -> None:
    paths = set(leaf_paths())
    written = {f"{section}.{key}" for section, values in settings_of(LAYOUT).items() for key in values}
    assert set(KEYS) <= paths
    assert written == {*KEYS, "parallelism.data_parallel_size"}
    assert set(KEYS.values()) == set(Layout._fields)


def test_other_machines_keep_a_global_batch_that_followed_from_others(make_job: Callable[..., JobSpec]) -> None:
    job = make_job(batch={"global_batch_size": None, "num_micro_batches": 4}, parallelism={"data_parallel_size": 2})
    moved = on_machines(job, 2, 4)
    assert moved.global_batch_size == job.global_batch_size == 8
    assert (moved.world_size, moved.data_parallel_size) == (8, 8)


@pytest.mark.parametrize("key", ["tensor_model_parallel_size", "parallelism.tensor_model_parallel_size"])
def test_a_kept_key_is_named_by_its_path_or_its_last_part(key: str) -> None:
    assert fields_kept([key]) == {"tp"}


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("tensor_model_paralel_size", "did you mean tensor_model_parallel_size?"),
        ("model.num_layers", "the tuner never changes it"),
        ("global_batch_size", "the tuner never changes it"),
        ("nonsense", "it searches tensor_model_parallel_size"),
    ],
)
def test_a_key_that_is_not_searched_is_refused(key: str, said: str) -> None:
    with refused("layout_not_searched", "--keep") as refusal:
        fields_kept([key])
    assert said in str(refusal.value)
