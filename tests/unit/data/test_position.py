"""Where a training is in its data: what makes other samples of a source, and what a marker cannot say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.training import four_layer_job

from orchestrator.data.samples.moved_sources import at_new_places, source_digest
from orchestrator.data.samples.position import DataPosition, beginning, position_of, seen_again
from orchestrator.spec.job import JobSpec


def job_of(blend: list[Any], **data: Any) -> JobSpec:
    return four_layer_job("position", model={"vocab_size": None}, data={"random_tokens": False, "blend": blend, **data})


@pytest.mark.parametrize(
    ("before", "after", "goes_on"),
    [
        ({"split": "90,10,0"}, {"split": "9,1,0"}, True),
        ({"split": "90,10,0"}, {"split": "90,5,5"}, True),
        ({"split": "90,10,0"}, {"split": "80,20,0"}, False),
        ({"split": "100,0,0"}, {"split": "100,0,0", "validation": ["c"]}, True),
        ({}, {"validation": ["c"]}, False),  # what was held out of each source is trained on now
        ({}, {"test": ["c"]}, False),
        ({}, {"seed": 5}, False),
    ],
)
def test_samples_are_others_where_another_part_of_a_source_is_for_training(
    before: dict[str, Any], after: dict[str, Any], goes_on: bool
) -> None:
    first = beginning(job_of(["a"], **before), 100)
    later = position_of(job_of(["a"], **after), first, 40, 100)
    assert later is not None
    if goes_on:
        assert later == first
    else:
        assert (later.since, later.sources[0].drawn, later.others[0].drawn) == (40, 0, 40)


@pytest.mark.parametrize("spelled", ["./sub/../a", str(Path("a").absolute())])
def test_a_path_written_in_another_way_is_no_other_source(spelled: str) -> None:
    first = beginning(job_of(["a"]), 100)
    assert position_of(job_of([spelled]), first, 40, 200) == first
    blend = position_of(job_of([spelled, "b"]), first, 40, 200)
    assert blend is not None
    assert [source.drawn for source in blend.sources] == [40, 0]
    longer = position_of(job_of([spelled], seed=7), first, 40, 80)
    assert longer is not None
    assert seen_again(longer, 80, {str(Path("a").absolute()): 64 * 80}) == 20


def test_a_source_named_twice_goes_on_in_each_of_its_places() -> None:
    first = beginning(job_of([1, "a", 1, "b", 2, "a"]), 400)
    later = position_of(job_of([1, "a", 1, "a", 1, "c"]), first, 200, 400)
    assert later is not None
    assert [(source.path, source.drawn) for source in later.sources] == [("a", 50), ("a", 100), ("c", 0)]
    assert [(source.path, source.drawn) for source in later.others] == [("b", 50)]


def test_a_source_that_was_moved_goes_on_behind_what_was_drawn(tmp_path: Path) -> None:
    """And so do the places of one that is named twice; other data of the same size is another source."""
    for name, content in (("moved", b"1"), ("other", b"2")):
        for ending in (".idx", ".bin"):
            (tmp_path / f"{name}{ending}").write_bytes(content)
    moved, other = str(tmp_path / "moved"), str(tmp_path / "other")
    first = beginning(job_of([1, "a", 1, "b", 2, "a"]), 400)
    recorded = [
        {"part": "training", "path": "a", "digest": source_digest(Path(moved))},
        {"part": "validation", "path": "b", "digest": source_digest(Path(other))},
    ]
    job = job_of([1, moved, 1, "b", 2, moved])
    later = position_of(job, at_new_places(first, job, recorded), 200, 400)
    assert later is not None
    assert [(source.path, source.first) for source in later.sources] == [
        (path, source.first) for path, source in zip((moved, "b", moved), first.sources, strict=True)
    ]
    assert (later.since, later.others) == (0, ()), "the same blend goes on"
    beside = job_of([1, "a", 1, "b", 2, moved])
    assert at_new_places(first, beside, recorded) == first, "it is a copy, as the other one is still read"
    changed = job_of([1, other, 1, "b", 2, "a"])
    assert at_new_places(first, changed, recorded) == first


def test_copies_of_one_source_that_were_moved_go_on_in_their_order(tmp_path: Path) -> None:
    """Whatever sets are ordered by."""
    moved = [str(tmp_path / name) for name in ("one", "two", "three")]
    for place in moved:
        for ending in (".idx", ".bin"):
            Path(f"{place}{ending}").write_bytes(b"1")
    first = beginning(job_of(["a", "b", "c"]), 300)
    digest = source_digest(Path(moved[0]))
    recorded = [{"part": "training", "path": path, "digest": digest} for path in ("a", "b", "c", "a")]
    found = at_new_places(first, job_of(list(moved)), recorded)
    assert found is not None
    assert [source.path for source in found.sources] == moved


SOURCE = {"path": "a", "copy": 0, "cut": "", "tokens": 8, "first": 10, "drawn": 0}


@pytest.mark.parametrize(
    "change",
    [
        {"since": -1},
        {"since": "4"},
        {"since": 1.5},
        {"since": True},
        {"samples": 10**30},
        {"weights": [float("inf")]},
        {"weights": [float("nan")]},
        {"weights": [0]},
        {"weights": [1, 1]},
        {"weights": 1},
        {"sources": []},
        {"sources": [SOURCE] * 40_000, "weights": [1.0] * 40_000},
        {"sources": [{**SOURCE, "first": -1}]},
        {"sources": [{**SOURCE, "tokens": 0}]},
        {"sources": [{**SOURCE, "drawn": 5}]},
        {"sources": [{**SOURCE, "path": None}]},
        {"others": [{**SOURCE, "drawn": "many"}]},
        {"others": None},
        {"larger_surplus": "no"},
    ],
)
def test_a_position_that_cannot_be(change: dict[str, Any]) -> None:
    record = {
        "since": 4,
        "samples": 10,
        "weights": [1.0],
        "sources": [SOURCE],
        "others": [],
        "larger_surplus": False,
    }
    assert DataPosition.from_dict(record).to_dict() == {**record, "weights": (1.0,), "sources": (SOURCE,), "others": ()}
    with pytest.raises((KeyError, TypeError, ValueError)):
        DataPosition.from_dict({**record, **change})
