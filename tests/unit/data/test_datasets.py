from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from megatron.core.datasets.blended_megatron_dataset_config import (
    convert_split_vector_to_split_matrix,
    parse_and_normalize_split,
)
from support.built_datasets import datasets_of
from support.faults import Ranks
from support.refused import refused

from orchestrator.data.checks import source_names, split_bounds
from orchestrator.data.indexed_dataset.header import bin_path
from orchestrator.data.indexed_dataset.manifest import manifest_path
from orchestrator.data.samples.datasets import Datasets
from orchestrator.errors import DataError
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.sections.data import BlendEntry, DataSpec, TokenizerSpec


def small_model(length: int) -> ModelSpec:
    return ModelSpec(num_layers=1, hidden_size=64, num_attention_heads=1, seq_length=length)


def build(
    data: DataSpec, cache: Path, train: int = 20, validation: int = 4, test: int = 0, length: int = 32
) -> Datasets:
    return datasets_of(data, small_model(length), cache, train, validation, test)


@pytest.fixture
def prefix(tokenize: Any, corpus: Path) -> Path:
    return tokenize(corpus)


@pytest.fixture
def other(tokenize: Any, tmp_path: Path) -> Path:
    """A second source, of the letter z alone."""
    folder = tmp_path / "other"
    folder.mkdir()
    for number in range(40):
        (folder / f"{number:02}.txt").write_text("z" * 100)
    return tokenize(folder, name="other_data")


def ids(dataset: Any, count: int) -> list[list[int]]:
    return [dataset[i]["tokens"].tolist() for i in range(count)]


@pytest.mark.usefixtures("process_group")
class TestBuild:
    def test_samples_are_shifted_by_one(self, prefix: Path, tmp_path: Path) -> None:
        datasets = build(DataSpec(blend=[{"path": str(prefix)}]), tmp_path / "cache")
        assert datasets.train is not None
        sample = datasets.train[3]
        assert sample["tokens"].shape == sample["labels"].shape == (32,)
        assert sample["tokens"][1:].tolist() == sample["labels"][:-1].tolist()
        assert sample["loss_mask"].tolist() == [1.0] * 32
        assert list(datasets.validation) == ["validation"]
        assert datasets.test is None

    def test_split_keeps_parts_apart(self, tokenize: Any, tmp_path: Path) -> None:
        for letter in "abcdefghij":
            (tmp_path / f"{letter}.txt").write_text(letter * 200)
        prefix = tokenize(*(tmp_path / f"{letter}.txt" for letter in "abcdefghij"))
        datasets = build(DataSpec(blend=[{"path": str(prefix)}], split="8,1,1"), tmp_path / "cache", 30, 4, 4)
        assert datasets.test is not None

        def letters(dataset: Any) -> set[str]:
            numbers = {number for sample in ids(dataset, len(dataset)) for number in sample}
            return {chr(number) for number in numbers - {256}}

        assert letters(datasets.train) == set("abcdefgh")
        assert letters(datasets.validation["validation"]) == {"i"}
        assert letters(datasets.test) == {"j"}

    def test_blend_draws_by_weight(self, prefix: Path, other: Path, tmp_path: Path) -> None:
        data = DataSpec(blend=[0.75, str(prefix), 0.25, str(other)], split="1,0,0")
        datasets = build(data, tmp_path / "cache", train=400, validation=0)
        sources = [int(datasets.train[i]["dataset_id"]) for i in range(400)]  # type: ignore[index]
        assert sources.count(1) == 100
        assert datasets.validation == {}

    @pytest.mark.parametrize("samples", [1, 2, 3, 10, 100])
    @pytest.mark.parametrize("weight", [0.5, 0.1, 0.001])
    def test_any_share_can_be_built(
        self, prefix: Path, other: Path, tmp_path: Path, samples: int, weight: float
    ) -> None:
        data = DataSpec(blend=[1 - weight, str(prefix), weight, str(other)], split="1,0,0")
        assert len(build(data, tmp_path / "cache", samples, 0).train) >= samples  # type: ignore[arg-type]

    def test_each_validation_source_by_itself(self, prefix: Path, other: Path, tmp_path: Path) -> None:
        data = DataSpec(blend=[{"path": str(prefix)}], validation=[0.5, str(prefix), 0.5, str(other)])
        datasets = build(data, tmp_path / "cache")
        assert list(datasets.validation) == ["blend", "data", "other_data"]
        assert set(ids(datasets.validation["other_data"], 1)[0]) <= {ord("z"), 256}

    def test_one_validation_source_is_whole(self, prefix: Path, other: Path, tmp_path: Path) -> None:
        data = DataSpec(blend=[{"path": str(prefix)}], validation=[{"path": str(other)}], split="1,0,0")
        datasets = build(data, tmp_path / "cache", validation=120)
        assert list(datasets.validation) == ["blend"]
        assert len(datasets.validation["blend"]) >= 120  # type: ignore[arg-type]

    def test_cache_is_found_again(self, prefix: Path, tmp_path: Path) -> None:
        data = DataSpec(blend=[{"path": str(prefix)}])
        first = build(data, tmp_path / "cache")
        written = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.npy")}
        assert written
        again = build(data, tmp_path / "cache")
        assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.npy")} == written
        assert ids(first.train, 20) == ids(again.train, 20)

    def test_order_depends_on_the_seed_alone(self, prefix: Path, tmp_path: Path) -> None:
        orders = [
            ids(build(DataSpec(blend=[{"path": str(prefix)}], seed=seed), tmp_path / f"cache{number}").train, 20)
            for number, seed in enumerate((1, 1, 2))
        ]
        assert orders[0] == orders[1] != orders[2]

    def test_torn_index_is_built_again(self, prefix: Path, tmp_path: Path) -> None:
        data = DataSpec(blend=[{"path": str(prefix)}])
        whole = ids(build(data, tmp_path / "cache").train, 20)
        for path in (tmp_path / "cache").rglob("*_index.npy"):
            os.truncate(path, path.stat().st_size // 2)
        assert ids(build(data, tmp_path / "cache").train, 20) == whole

    def test_data_made_anew_is_not_read_through_the_old_index(
        self, tokenize: Any, corpus: Path, tmp_path: Path
    ) -> None:
        build(DataSpec(blend=[{"path": str(tokenize(corpus))}]), tmp_path / "cache")
        (tmp_path / "short.txt").write_text("y" * 500)
        prefix = tokenize(*[tmp_path / "short.txt"] * 10, overwrite=True)
        datasets = build(DataSpec(blend=[{"path": str(prefix)}], split="8,1,1"), tmp_path / "cache")
        assert {number for sample in ids(datasets.train, 20) for number in sample} == {ord("y"), 256}

    def test_split_may_be_written_with_exponents(self, prefix: Path, tmp_path: Path) -> None:
        data = DataSpec(blend=[{"path": str(prefix)}], split="1,1e-1,1e-5")
        assert build(data, tmp_path / "cache").train is not None

    def test_unused_empty_part_does_not_hang(self, tokenize: Any, tmp_path: Path) -> None:
        (tmp_path / "one.txt").write_text("w" * 5000)
        prefix = tokenize(tmp_path / "one.txt")
        assert build(DataSpec(blend=[{"path": str(prefix)}]), tmp_path / "cache", validation=0).train is not None


@pytest.mark.usefixtures("process_group")
class TestRefusals:
    def test_empty_part(self, tokenize: Any, tmp_path: Path) -> None:
        (tmp_path / "one.txt").write_text("w" * 5000)
        data = DataSpec(blend=[{"path": str(tokenize(tmp_path / "one.txt"))}], split="8,1,1")
        with refused("data_does_not_fit_job", "validation part", "1 documents", "8,1,1", kind=DataError) as caught:
            build(data, tmp_path / "cache", test=3)
        assert "the test part" in str(caught.value)

    def test_shorter_than_a_sequence(self, other: Path, tmp_path: Path) -> None:
        with refused("data_does_not_fit_job", "train part", "4040 tokens", "40 documents", "5000 + 1", kind=DataError):
            build(DataSpec(blend=[{"path": str(other)}], split="1,0,0"), tmp_path / "cache", validation=0, length=5000)

    def test_missing(self, prefix: Path, tmp_path: Path) -> None:
        with refused("missing_data_set", "gone"):
            build(DataSpec(blend=[{"path": str(prefix)}, {"path": "gone"}]), tmp_path / "cache")

    def test_other_tokenizer(self, prefix: Path, bpe: Path, tmp_path: Path) -> None:
        tokenizer = TokenizerSpec(type="huggingface", path=str(bpe))
        with refused("data_does_not_fit_job", "byte_level", "data.tokenizer", "hash", kind=DataError):
            build(DataSpec(blend=[{"path": str(prefix)}], tokenizer=tokenizer), tmp_path / "cache")

    def test_ids_beyond_the_vocabulary_without_a_manifest(
        self, tokenize: Any, corpus: Path, bpe: Path, tmp_path: Path
    ) -> None:
        prefix = tokenize(corpus, tokenizer_type="huggingface", tokenizer_path=str(bpe))
        manifest_path(prefix).unlink()
        with refused("data_does_not_fit_job", "token id 399", "261 tokens", kind=DataError):
            build(DataSpec(blend=[{"path": str(prefix)}]), tmp_path / "cache")

    def test_cache_that_cannot_be_written(self, prefix: Path, tmp_path: Path) -> None:
        (tmp_path / "cache").write_text("a file")
        with refused("unwritable_folder", "/cache/"):
            build(DataSpec(blend=[{"path": str(prefix)}]), tmp_path / "cache")

    def test_cache_where_no_folder_can_be(self, prefix: Path) -> None:
        with refused("unwritable_folder", "/proc/"):
            build(DataSpec(blend=[{"path": str(prefix)}]), Path("/proc/cache"))

    def test_no_blend(self, tmp_path: Path) -> None:
        with refused("no_blend", "data.blend"):
            build(DataSpec(), tmp_path / "cache")

    def test_torn(self, prefix: Path, tmp_path: Path) -> None:
        os.truncate(bin_path(prefix), 100)
        with refused("damaged_data_set", ".bin", ".idx", "100 bytes", kind=DataError):
            build(DataSpec(blend=[{"path": str(prefix)}]), tmp_path / "cache")


def test_two_ranks_read_the_same(ranks: Ranks, prefix: Path, other: Path, tmp_path: Path) -> None:
    program, arguments = Path(__file__).with_name("datasets_program.py"), (prefix, other, tmp_path / "cache")
    assert ranks.starter.start(tmp_path, 2, *map(str, arguments), program=program).wait() == 0, ranks.starter.said()
    first, second = (json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2))
    assert len(first) == 50
    assert first == second


@given(st.lists(st.integers(0, 1000), min_size=3, max_size=3).filter(any), st.integers(0, 5000))
def test_split_bounds_are_those_of_megatron(weights: list[int], sequences: int) -> None:
    split = ",".join(map(str, weights))
    matrix = convert_split_vector_to_split_matrix(parse_and_normalize_split(split))
    expected = [part and tuple(round(end * float(sequences)) for end in part) for part in matrix]
    assert split_bounds([float(weight) for weight in weights], sequences) == expected


def test_source_names_are_short_and_distinct() -> None:
    def names(*paths: str) -> list[str]:
        return source_names([BlendEntry(path=path) for path in paths])

    assert names("data/wiki", "data/code") == ["wiki", "code"]
    assert names("en/wiki", "de/wiki") == ["en.wiki", "de.wiki"]
    assert names("/data/wiki", "/data/wiki") == ["0.wiki", "1.wiki"]
    # "blend" is the set of all together, which would else be evaluated as this one alone.
    assert names("data/blend", "data/code") == ["data.blend", "data.code"]
    assert names("blend", "code") == ["0.blend", "1.code"]
