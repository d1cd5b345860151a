"""Blends beside megatron-core's own builder: the same samples wherever it builds one, and one where it refuses."""

from __future__ import annotations

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core

# isort: split
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from megatron.core.datasets.blended_megatron_dataset_builder import (
    BlendedMegatronDatasetBuilder,
    _get_size_per_split_per_dataset,
)
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.utils import normalize
from support.indexed_files import write_indexed
from support.training import tiny_job

from orchestrator.data.samples.datasets import Datasets, build_datasets
from orchestrator.data.samples.position import DataPosition, beginning, position_of
from orchestrator.data.samples.predicted_blend import built
from orchestrator.data.tokenizers.tokenizer import load_tokenizer
from orchestrator.planning.blend import blend_report
from orchestrator.planning.training_schedule.batch import BatchSchedule
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.schedule import ScheduleSpec

LENGTH = 8
BLENDS = 40


@pytest.fixture(scope="module", autouse=True)
def process_group() -> Iterator[None]:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def sources(folder: Path, tokens: list[int]) -> list[str]:
    """Each has documents of up to 9 tokens."""
    paths = []
    for number, count in enumerate(tokens):
        lengths = [9] * (count // 9) + [count % 9] * (count % 9 > 0)
        paths.append(write_indexed(folder / f"source{number}-{count}", lengths))
    return paths


def job_of(paths: list[str], weights: list[float], **data: Any) -> JobSpec:
    blend = [{"path": path, "weight": weight} for path, weight in zip(paths, weights, strict=True)]
    return tiny_job(
        "blend",
        model={"vocab_size": None, "seq_length": LENGTH},
        data={"random_tokens": False, "split": "1,0,0", "blend": blend, **data},
    )


def ours(job: JobSpec, samples: int, cache: Path, position: DataPosition | None = None, **more: int) -> Datasets:
    return build_datasets(
        job.data,
        model=job.model,
        tokenizer=load_tokenizer(job.data.tokenizer),
        train_samples=samples,
        validation_samples=more.get("validation_samples", 0),
        test_samples=0,
        cache_dir=cache,
        position=position,
    )


def megatrons(job: JobSpec, samples: int, cache: Path) -> Any:
    """The training set of Megatron-LM's trainer; None where it refuses to build it."""
    blend = job.data.blend or []
    config = GPTDatasetConfig(
        random_seed=job.data.seed,
        sequence_length=LENGTH,
        blend=([entry.path for entry in blend], [entry.weight for entry in blend]),
        split="1,0,0",
        path_to_cache=str(cache),
        tokenizer=load_tokenizer(job.data.tokenizer),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    try:
        return BlendedMegatronDatasetBuilder(GPTDataset, [samples, 0, 0], lambda: True, config).build()[0]
    except IndexError:
        return None


def sizes(dataset: Any) -> list[int]:
    return [source.num_samples for source in dataset.datasets]


def order(dataset: Any) -> list[Any]:
    """All that decides which sample comes when."""
    arrays = [dataset.dataset_index, dataset.dataset_sample_index]
    for source in dataset.datasets:
        arrays += [source.document_index, source.sample_index, source.shuffle_index]
    return [np.asarray(array).tolist() for array in arrays]


def is_mixed(source: Any) -> bool:
    """Whether a document can come again before all were read, by the number of samples asked for."""
    tokens = int(source.dataset.sequence_lengths[source.indices].sum())
    return built(tokens, source.num_samples, LENGTH).in_order is None


def test_a_blend_is_megatrons_wherever_megatron_builds_it(tmp_path: Path) -> None:
    numbers, refused = random.Random(2), 0
    for number in range(BLENDS):
        count, samples = numbers.choice([2, 3, 5, 12]), numbers.choice([8, 16, 40, 304])
        weights = [numbers.choice([0.02, 0.02, 1.0, round(numbers.random() + 0.001, 3)]) for _ in range(count)]
        paths = sources(tmp_path, [numbers.choice([10, 17, 41, 90, 900]) for _ in range(count)])
        job = job_of(paths, weights).model_copy(update={"schedule": ScheduleSpec(train_samples=samples)})
        batch = BatchSchedule.of(job)
        samples = batch.train_samples
        plain = megatrons(job, samples, tmp_path / f"{number}-plain")
        made: Any = ours(job, samples, tmp_path / f"{number}").train
        planned = [source.epochs_are_mixed for source in blend_report(job, batch).train.sources]
        assert planned == [is_mixed(source) for source in made.datasets]
        if plain is not None:
            assert (sizes(made), order(made)) == (sizes(plain), order(plain))
            continue
        refused += 1
        asked = [
            size for (size,) in _get_size_per_split_per_dataset(normalize(list(weights)), [samples], surplus=0.005)
        ]
        given = np.bincount(made.dataset_index, minlength=count).tolist()
        assert sizes(made) != asked
        assert all(
            size == usual or (size == gives and len(source) >= gives)
            for size, usual, gives, source in zip(sizes(made), asked, given, made.datasets, strict=True)
        )
    assert 0 < refused < BLENDS / 4, "both kinds are among them"


def test_a_run_of_an_earlier_version_keeps_its_order(tmp_path: Path) -> None:
    """Its marker does not say which surplus: it asked every source for more, in its validation sets too."""
    job = job_of(sources(tmp_path, [41, 41]), [0.9, 0.1], split="1,1,0")
    new = beginning(job, 40)
    assert [source.first for source in new.sources] == [37, 5]
    larger = beginning(job, 40, larger_surplus=True)
    record = {key: value for key, value in larger.to_dict().items() if key != "larger_surplus"}
    stored = DataPosition.from_dict(record)
    assert [source.first for source in stored.sources] == [72, 8]
    made = ours(job, 40, tmp_path / "cache", stored, validation_samples=40)
    validation: Any = made.validation["validation"]
    assert (sizes(made.train), sizes(validation), made.position) == ([72, 8], [72, 8], stored)
    goes_on = position_of(job, stored, 16, 40)
    assert goes_on == stored
    other = position_of(job_of(sources(tmp_path, [41, 90]), [0.9, 0.1], split="1,1,0"), stored, 16, 40)
    assert other is not None
    assert other.larger_surplus, "its validation goes on as it was"


def test_a_source_that_was_too_small_is_what_it_was_when_the_run_goes_on(tmp_path: Path) -> None:
    weights = [1.0, *[0.02] * 12]
    job = job_of(sources(tmp_path, [10, *[41] * 12]), weights)
    assert megatrons(job, 40, tmp_path / "plain") is None
    position = beginning(job, 40)
    made = ours(job, 40, tmp_path / "cache", position)
    assert made.position is not None
    train: Any = made.train
    first = int(np.bincount(train.dataset_index)[0])
    assert [source.first for source in made.position.sources] == [first, *sizes(made.train)[1:]]
    assert first > position.sources[0].first
    stored = DataPosition.from_dict(made.position.to_dict())
    again = ours(job, 40, tmp_path / "cache", stored)
    assert (order(again.train), again.position) == (order(made.train), stored)
    longer = ours(job, 60, tmp_path / "cache", stored)
    assert longer.position == stored
    train: Any = made.train
    extended: Any = longer.train
    assert all(train[number]["tokens"].equal(extended[number]["tokens"]) for number in range(40))
