"""Stages of a pipeline that take equally long."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.shipped import SHIPPED
from support.training import layout, tiny_job

from orchestrator.planning.hardware import device_named
from orchestrator.planning.layout.balance import balanced, splits
from orchestrator.planning.memory import estimate_memory
from orchestrator.planning.time import estimate_time
from orchestrator.spec.job import JobSpec
from orchestrator.spec.layout.stages import layers_of_chunks
from orchestrator.spec.loading import load_job
from orchestrator.spec.rules import check

WORDS = 131072
LARGE = SHIPPED["gpt-7.1b"]
PIPELINE = (
    "launch.gpus_per_node=4",
    "parallelism.pipeline_model_parallel_size=2",
    "batch.micro_batch_size=1",
    "batch.global_batch_size=16",
)


def large(*changes: str) -> JobSpec:
    """7.1B with 30 layers, TP 2 and PP 2."""
    return load_job([LARGE], [*PIPELINE, *changes]).job


def seconds(job: JobSpec) -> float:
    return estimate_time(job, WORDS, "torch", device_named("H200")).step_seconds


def anything(job: JobSpec) -> bool:
    return True


@pytest.mark.parametrize(
    ("changes", "override", "layers"),
    [
        ((), "parallelism.num_layers_in_last_pipeline_stage=14", ((16,), (14,))),
        (
            ("parallelism.virtual_pipeline_model_parallel_size=3",),
            "parallelism.pipeline_model_parallel_layout=Et*6|(t*5|)*4t*4L",
            ((6, 5, 5), (5, 5, 4)),
        ),
        (
            ("parallelism.pipeline_model_parallel_size=4", "model.num_layers=32", "launch.gpus_per_node=8"),
            "parallelism.pipeline_model_parallel_layout=Et*8|(t*9|)*2t*6L",
            ((8,), (9,), (9,), (6,)),
        ),
    ],
    ids=["one-field", "virtual-stages", "what-does-not-divide"],
)
def test_the_stage_with_the_loss_has_fewer_layers(
    changes: tuple[str, ...], override: str, layers: tuple[tuple[int, ...], ...]
) -> None:
    job = large(*changes)
    found = balanced(job, seconds, anything)
    assert found is not None
    assert found.split.override == override
    written = large(*changes, override)
    assert layers_of_chunks(written.model.num_layers, written.parallelism) == layers
    assert seconds(written) == found.step_seconds < 0.97 * seconds(job)


def seeing(stages: int, words: int) -> list[int]:
    """The layers of stages in balance, of LLaVA with three images in a sequence and a vocabulary of `words`."""
    degrees = (f"parallelism.pipeline_model_parallel_size={stages}", "parallelism.tensor_model_parallel_size=1")
    alone = ("parallelism.sequence_parallel=false", f"launch.gpus_per_node={stages}")
    images = "model.vision={images_per_sequence: 3, freeze: false}"
    job = load_job([SHIPPED["llava1.5-7b"]], [*degrees, *alone, images]).job

    def taken(job: JobSpec) -> float:
        return estimate_time(job, words, "torch", device_named("H200")).step_seconds

    found = balanced(job, taken, anything)
    assert found is not None
    other = found.split.of(job)
    JobSpec.model_validate(other.model_dump())  # is legal
    assert taken(other) == found.step_seconds < 0.99 * taken(job)
    held = [sum(stage) for stage in layers_of_chunks(job.model.num_layers, other.parallelism)]
    assert sum(held) == job.model.num_layers
    return held


@pytest.mark.parametrize("stages", [2, 4])
def test_the_stage_that_encodes_images_has_fewer_layers(stages: int) -> None:
    """The last one, with a small vocabulary, as many as before, unless it is the only other one."""
    held = seeing(stages, 1024)
    assert held[0] < 32 // stages == held[-1] - (stages == 2)


def test_both_ends_have_fewer_layers() -> None:
    held = seeing(8, WORDS)
    assert max(held[0], held[-1]) < 4


def test_only_what_fits() -> None:
    job, found = large(), balanced(large(), seconds, anything)
    assert found is not None
    most = estimate_memory(job, WORDS, "torch").device_bytes
    assert estimate_memory(found.split.of(job), WORDS, "torch").device_bytes > most
    assert balanced(job, seconds, lambda other: estimate_memory(other, WORDS, "torch").device_bytes <= most) is None


@pytest.mark.parametrize(
    "job",
    [
        large("parallelism.num_layers_in_first_pipeline_stage=15"),
        large("parallelism.pipeline_model_parallel_layout=Et*15|t*15L"),
        large("parallelism.pipeline_model_parallel_size=1"),
        large("model.vocab_size=1024"),
        load_job([SHIPPED["t5-220m"]], []).job,
    ],
    ids=["written", "written-in-letters", "one-stage", "small-vocabulary", "t5"],
)
def test_where_nothing_is_to_be_said(job: JobSpec) -> None:
    words = job.model.vocab_size or WORDS
    assert (
        balanced(job, lambda other: estimate_time(other, words, "torch", device_named("H200")).step_seconds, anything)
        is None
    )


def test_a_job_of_one_stage_is_not_timed_for_it() -> None:
    def never(job: JobSpec) -> float:
        raise AssertionError("there is nothing to balance")

    assert balanced(large("parallelism.pipeline_model_parallel_size=1"), never, anything) is None


@given(st.integers(2, 6), st.integers(1, 4), st.integers(1, 5), st.data())
def test_every_split_is_a_legal_one(stages: int, chunks: int, each: int, data: Any) -> None:
    layers = stages * chunks * each
    job = tiny_job(
        "job",
        model={"num_layers": layers},
        parallelism=layout(pp=stages, vp=chunks),
        batch={"micro_batch_size": 1, "global_batch_size": stages},
    )
    found = list(splits(job))
    assert len(found) == chunks * each - 1
    for less, split in enumerate(found, 1):
        other = split.of(job)
        dealt = layers_of_chunks(layers, other.parallelism)
        totals = [sum(stage) for stage in dealt]
        assert sum(totals) == layers
        assert totals[-1] == chunks * each - less
        assert max(totals[:-1]) - min(totals[:-1]) <= 1
        problems = check(other)
        # A stage with fewer layers than chunks has an empty one, unless that holds the embedding or the loss.
        assert not problems or totals[-1] < chunks - 1, problems
