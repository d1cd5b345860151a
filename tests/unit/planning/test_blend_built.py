"""The blend report against what megatron-core builds."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.built_datasets import datasets_of
from support.depth import examples
from support.indexed_files import write_indexed

from orchestrator.data.samples.predicted_blend import (
    Draws,
    asked_of_sources,
    built,
    larger_surplus,
    length_of,
    normalized,
)
from orchestrator.planning.blend import blend_report, samples_needed
from orchestrator.planning.training_schedule.batch import BatchSchedule

WEIGHTS = st.lists(
    st.one_of(
        st.sampled_from([0.1, 0.2, 0.25, 0.3, 0.5, 1.0, 2.0]),
        st.floats(0.001, 1).map(lambda weight: round(weight, 3)),
        st.integers(1, 10**10).map(float),
    ),
    min_size=1,
    max_size=20,
)


def drawn(weights: list[float], samples: int) -> np.ndarray[Any, Any]:
    """The source of each sample, by megatron-core's own program."""
    from megatron.core.datasets import helpers
    from megatron.core.datasets.utils import normalize

    sources = np.zeros(samples, dtype=np.int16)
    helpers.build_blending_indices(
        sources, np.zeros(samples, dtype=np.int64), normalize(normalize(weights)), len(weights), samples, False
    )
    return sources


@given(WEIGHTS, st.integers(1, 30_000), st.data())
@settings(max_examples=examples(60))
def test_draws_are_megatrons(weights: list[float], samples: int, data: st.DataObject) -> None:
    sources = drawn(weights, samples)
    counts = np.bincount(sources, minlength=len(weights)).tolist()
    draws = Draws(weights)
    found = draws.counts(samples)
    assert sum(found) == samples
    # A source that gives hardly a sample while others give thousands may be one off; no other is.
    assert found == counts or (max(weights) / min(weights) > 1e4 and max(map(abs, np.subtract(found, counts))) <= 1)
    source = data.draw(st.integers(0, len(weights) - 1))
    if counts[source] and found == counts and max(weights) / min(weights) <= 1e4:
        number = data.draw(st.integers(0, counts[source] - 1))
        assert draws.position(source, number) == np.flatnonzero(sources == source)[number]


@pytest.mark.parametrize("count", [1, 3, 7, 8, 9, 40, 127, 128, 129, 500])
def test_weights_are_normalized_as_by_megatron(count: int) -> None:
    from megatron.core.datasets.utils import normalize

    numbers = random.Random(count)
    for _ in range(20):
        weights = [numbers.choice([0.1, 0.3, numbers.random(), 10 * numbers.random()]) for _ in range(count)]
        assert normalized(weights) == normalize(weights)


@given(WEIGHTS, st.integers(1, 10**9))
def test_sources_are_asked_as_by_megatron(weights: list[float], samples: int) -> None:
    from megatron.core.datasets.blended_megatron_dataset_builder import _get_size_per_split_per_dataset
    from megatron.core.datasets.blended_megatron_dataset_config import BlendedMegatronDatasetConfig
    from megatron.core.datasets.utils import normalize

    asked, drawn = (
        [size for (size,) in _get_size_per_split_per_dataset(normalize(weights), [samples], surplus=extra)]
        for extra in (BlendedMegatronDatasetConfig.mid_level_dataset_surplus, 0.0)
    )
    assert (asked_of_sources(weights, samples), length_of(weights, samples)) == (asked, sum(drawn))


@pytest.mark.parametrize(("weights", "samples"), [([0.1, 2.0, 0.1, 0.1, 0.7], 31), ([0.25, 0.3, 0.1], 36_168)])
def test_ties_are_decided_as_by_megatron(weights: list[float], samples: int) -> None:
    """Whose shares have other last bits when they are divided by their sum a second time, as megatron-core does."""
    assert Draws(weights).counts(samples) == np.bincount(drawn(weights, samples)).tolist()


def test_a_billion_samples_are_counted_quickly() -> None:
    draws = Draws([0.5, 0.3, 0.15, 0.05, 123.456])
    assert sum(draws.counts(1_000_000_007)) == 1_000_000_007
    assert draws.position(1, 1_000_000) == pytest.approx(1_000_000 / draws.shares[1], abs=1 / draws.shares[1])


def test_weights_beyond_any_sense_raise_nothing() -> None:
    for weights in ([1e300, 1e-300], [1e308, 1e308, 1.0], [5e-324, 5e-324]):
        assert sum(Draws(weights).counts(1000)) == 1000
        assert 0.005 <= larger_surplus(weights, 1000) <= len(weights) + 2


@pytest.fixture
def process_group() -> Iterator[None]:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("steps", [5, 23, 29, 64, 150])
@pytest.mark.parametrize(
    ("weights", "rampup"), [([1.0], None), ([0.7, 0.2, 0.1], None), ([3.0, 1.0, 0.33], [4, 4, 200])]
)
def test_the_report_is_what_the_index_holds(
    make_job: Any, tmp_path: Path, weights: list[float], rampup: list[int] | None, steps: int
) -> None:
    numbers = random.Random(steps)
    sizes = [120, 300, 60][: len(weights)]
    paths = [
        write_indexed(tmp_path / f"source{number}", [numbers.randint(5, 120) for _ in range(size)])
        for number, size in enumerate(sizes)
    ]
    blend = [{"path": path, "weight": weight} for path, weight in zip(paths, weights, strict=True)]
    batch_section = {"rampup_batch_size": rampup} if rampup else {}
    job = make_job(
        data={"random_tokens": False, "blend": blend, "split": "9,1,0"},
        batch=batch_section,
        schedule={"train_iters": steps},
        evaluation={"eval_interval": 10, "eval_iters": 3},
    )
    batch = BatchSchedule.of(job)
    report, needed = blend_report(job, batch), samples_needed(job, batch)
    data = datasets_of(job.data, job.model, tmp_path / "cache", needed.train, needed.validation, needed.test)
    sets = {"train": (data.train, report.train), "validation": (data.validation["validation"], report.validation)}
    for part, (made, plan) in sets.items():
        dataset: Any = made
        single = len(weights) == 1
        order = np.zeros(plan.samples, dtype=int) if single else dataset.dataset_index[: plan.samples]
        for number, source in enumerate(plan.sources):
            index = dataset if single else dataset.datasets[number]
            tokens = int(index.dataset.sequence_lengths[index.indices].sum())
            assert source.samples == int((order == number).sum())
            assert (source.tokens_held, source.documents) == (tokens, len(index.indices))
            expected = built(tokens, index.num_samples, 32)
            assert expected.samples == len(index)
            assert expected.epochs == len(index.document_index) // len(index.indices)
            # Whether the first epoch is read to its end: each of its documents stands once before any comes again.
            first = index.document_index[: len(index.indices)]
            assert source.epochs_are_mixed == (len(set(first.tolist())) < len(first))
            if part == "train":
                places = np.flatnonzero(order == number)
                again = places[source.samples_held :] if source.samples_held is not None else []
                step = batch.iteration_of(int(again[0])) + 1 if len(again) else None
                assert source.second_epoch_step == step
