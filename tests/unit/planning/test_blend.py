"""What a job takes from each source of its blends, from index headers written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.indexed_files import write_indexed

from orchestrator.planning.blend import blend_report, evaluations, samples_needed
from orchestrator.planning.blend.report import BlendReport
from orchestrator.planning.forecast import forecast
from orchestrator.planning.plan import make_plan
from orchestrator.planning.training_schedule.batch import BatchSchedule
from orchestrator.planning.warnings import judge
from orchestrator.spec.job import JobSpec


@pytest.fixture
def books(tmp_path: Path) -> str:
    return write_indexed(tmp_path / "books", [50] * 100)


@pytest.fixture
def web(tmp_path: Path) -> str:
    return write_indexed(tmp_path / "web", [50] * 1000)


@pytest.fixture
def report(make_job: Any) -> Any:
    """`report(blend=[…], steps=10)`: sequences of 32 tokens, 8 a step."""

    def call(steps: int = 10, evaluation: dict[str, Any] | None = None, **data: Any) -> BlendReport:
        return report_on(job(make_job, steps, evaluation, **data))

    return call


def job(make_job: Any, steps: int, evaluation: dict[str, Any] | None, **data: Any) -> JobSpec:
    made: JobSpec = make_job(
        data={"random_tokens": False, "split": "90,10,0", **data},
        schedule={"train_iters": steps},
        evaluation=evaluation or {},
    )
    return made


def report_on(made: JobSpec) -> BlendReport:
    return blend_report(made, BatchSchedule.of(made))


def test_samples_tokens_and_epochs(report: Any, books: str, web: str) -> None:
    train = report(steps=70, blend=[3, books, 1, web]).train
    first, second = train.sources
    assert train.samples == 560
    assert (first.share, first.samples, first.tokens_used) == (0.75, 420, 13_440)
    assert (first.documents, first.tokens_held, first.samples_held) == (90, 4_500, 140)
    assert first.epochs == pytest.approx(13_440 / 4_500)
    # Three of four samples are of books: its 141st is in about 187 samples, in the 24th step of 8.
    assert (first.second_epoch_step, first.epochs_are_mixed) == (24, True)
    assert (second.samples, second.second_epoch_step, second.epochs_are_mixed) == (140, None, False)
    assert train.samples_before_repeats == 186


def test_held_tokens_are_those_of_the_documents_of_the_part(report: Any, tmp_path: Path) -> None:
    uneven = write_indexed(tmp_path / "uneven", [1000, 10, 20, 30, 40, 50, 60, 70, 80, 500])
    found = report(blend=[uneven], split="8,1,1", evaluation={"eval_interval": 5})
    held = [part.sources[0].tokens_held for part in (found.train, found.validation, found.test)]
    assert held == [1280, 80, 500]
    assert [part.sources[0].documents for part in (found.train, found.validation, found.test)] == [8, 1, 1]


def test_own_validation_data_leaves_the_blend_whole(report: Any, books: str, web: str) -> None:
    found = report(blend=[books], validation=[3, books, 1, web], test=[web], evaluation={"eval_interval": 4})
    assert found.train.sources[0].documents == 100
    validation = found.validation
    assert (validation.samples, validation.evaluations) == (80, 3)
    assert [(source.samples, source.samples_alone) for source in validation.sources] == [(60, 80), (20, 80)]
    assert (found.test.samples, found.test.sources[0].documents) == (0, 1000)


@pytest.mark.parametrize(
    ("steps", "evaluation", "expected"),
    [
        (100, {}, 0),
        (100, {"eval_interval": 25}, 4),
        (110, {"eval_interval": 25}, 5),
        (110, {"eval_interval": 25, "eval_at_end": False}, 4),
        (110, {"eval_interval": 200, "eval_at_start": True}, 2),
        (100, {"eval_at_start": True}, 1),
    ],
)
def test_number_of_evaluations(make_job: Any, steps: int, evaluation: dict[str, Any], expected: int) -> None:
    made = job(make_job, steps, evaluation)
    batch = BatchSchedule.of(made)
    assert evaluations(made, batch) == expected
    assert samples_needed(made, batch) == (steps * 8, 80 if expected else 0, 0)


def test_data_that_is_elsewhere_or_torn_is_a_note(report: Any, tmp_path: Path) -> None:
    torn = write_indexed(tmp_path / "torn", [50] * 10)
    (tmp_path / "torn.bin").write_bytes(b"short")
    away = str(tmp_path / "away")
    found = report(blend=[away, torn])
    first, second = found.train.sources
    assert (first.epochs, second.epochs, found.train.samples_before_repeats) == (None, None, None)
    assert "no indexed data set" in str(first.note)
    assert "do not belong together" in str(second.note)
    assert (first.samples, second.samples) == (40, 40)


def test_parts_that_cannot_be_built_stop_the_job(report: Any, make_job: Any, tmp_path: Path) -> None:
    single = write_indexed(tmp_path / "single", [500])
    assert any("the train part" in stop and "is empty" in stop for stop in report(blend=[single], split="4,6,0").stops)
    evaluated = {"eval_interval": 10}
    [stop] = report(blend=[single], split="8,2,0", evaluation=evaluated).stops
    assert "the validation part of" in stop
    assert "is empty" in stop
    assert report(blend=[single], split="8,2,0").stops == ()
    short = write_indexed(tmp_path / "short", [10, 10])
    [stop] = report(blend=[short], split="1,0,0").stops
    assert "has 20 tokens in 2 documents, fewer than one sequence of 32 + 1" in stop
    plan = make_plan(job(make_job, 10, evaluated, blend=[single], split="8,2,0"))
    assert plan.blend.stops[0] in [stop.message for stop in judge(plan, forecast(plan), None).stops]


def test_too_many_epochs(report: Any, books: str, web: str) -> None:
    [warning] = report(steps=140, blend=[3, books, 1, web]).warnings
    assert "books is read 5.97 times (again from step 24 on, with its epochs shuffled together)" in warning
    assert "4 epochs are a share of 50.22% instead of 75.00%" in warning
    [warning] = report(steps=100, blend=[books]).warnings
    assert "books is read 5.69 times (again from step 18 on" in warning
    assert "4 epochs are 18,000 tokens" in warning


def test_sources_that_are_read_again_are_noted(report: Any, books: str) -> None:
    found = report(steps=20, blend=[books])
    assert found.warnings == ()
    [note] = found.notes
    assert note.endswith("books is read 1.14 times (again from step 18 on)")


def test_weights_that_cannot_be_reached(report: Any, books: str, web: str, tmp_path: Path) -> None:
    rare = write_indexed(tmp_path / "rare", [50] * 100)
    [warning] = report(steps=1, blend=[0.7, web, 0.3, books, 1e-6, rare]).warnings
    assert "rare gives no sample of 8: its weight is 1e-06 of all" in warning
    found = report(blend=[1e300, web, 1e-300, rare])
    assert "rare gives no sample of 80: its weight is 0 of all" in found.warnings[0]
    assert found.train.samples_before_repeats == 1406
    # Whoever lags behind its share comes next: of two, the rare one is second.
    [warning] = report(blend=[1, web, 1e-6, rare]).warnings
    assert "rare gives one sample of 80: its weight is 1e-06 of all" in warning


def test_data_evaluated_on_what_it_was_trained_on(report: Any, books: str, web: str) -> None:
    found = report(blend=[books], validation=[web, f"{books}/../books"], evaluation={"eval_interval": 5})
    assert any("is in data.blend and in data.validation" in warning for warning in found.warnings)
    assert any("occurs 2 times in data.blend" in warning for warning in report(blend=[1, books, 1, books]).warnings)


def test_validation_parts_that_are_too_small(report: Any, books: str) -> None:
    [warning] = report(blend=[books], evaluation={"eval_interval": 5}).warnings
    assert "validation reads 80 samples of" in warning
    assert "holds 15: it reads them 5." in warning
    [warning] = report(blend=[books], split="97,3,0", evaluation={"eval_interval": 5, "eval_iters": 1}).warnings
    assert "holds 4" in warning
    assert report(blend=[books]).warnings == ()


def test_few_documents(report: Any, tmp_path: Path) -> None:
    long = write_indexed(tmp_path / "long", [5000] * 10)
    [warning] = report(blend=[long], split="8,2,0", evaluation={"eval_interval": 5}).warnings
    assert "is 2 documents: its loss says little" in warning


def test_random_tokens_have_no_sources(make_job: Any) -> None:
    found = report_on(make_job(evaluation={"eval_interval": 10}))
    assert (found.train.sources, found.validation.sources, found.stops, found.warnings) == ((), (), (), ())
    assert found.train.samples == 800


def test_the_report_is_json(make_job: Any, books: str, web: str) -> None:
    plan = make_plan(job(make_job, 140, {"eval_interval": 5}, blend=[3, books, 1, web]))
    data = json.loads(json.dumps(plan.to_dict()))
    assert data["blend"] == data["blend_report"]["train"]["sources"]
    assert data["blend_report"]["validation"]["samples"] == 80
    assert data["blend_report"]["train"]["samples_before_repeats"] == 186
    assert data["blend_report"]["warnings"]
