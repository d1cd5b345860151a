"""What a run has read of each source, told from its spec, its log and the headers of its data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as cases
from hypothesis import strategies as st
from support.event_log import append_event
from support.indexed_files import write_indexed
from support.training import four_layer_job

from orchestrator.data.samples.predicted_blend import Draws
from orchestrator.launch.code.code_version import CodeState
from orchestrator.launch.runs import add_generation, create_run
from orchestrator.planning.training_schedule.spec_history import Period, Start, arranged
from orchestrator.review.charts.blend import blend_use, consumption_figure, given
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import dump_resolved
from orchestrator.spec.sections.data import BlendEntry
from orchestrator.tracking.measurements.metrics import MetricLog

CODE = CodeState({"commit": "0" * 40, "branch": "main", "dirty": False}, "")


def job_of(blend: list[Any], steps: int = 100, **data: Any) -> JobSpec:
    """Sequences of 64 tokens, 8 a step."""
    return four_layer_job(
        "read",
        model={"vocab_size": None},
        data={"random_tokens": False, "split": "1,0,0", "blend": blend, **data},
        schedule={"train_iters": steps},
    )


def run_of(job: JobSpec, folder: Path, steps: int) -> RunDir:
    """A run of a job after some steps."""
    run = create_run(job, dump_resolved(job), folder, CODE)
    append_event(run, "started", launch_id="1", iteration=0)
    log = MetricLog(run, check=lambda: None)
    for step in range(1, steps + 1):
        log.append(step, 8 * step, 8 * step * 64, {"train/loss": 1.0})
    return run


def test_what_each_source_gave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work").mkdir()
    write_indexed(tmp_path / "work" / "books", [640] * 20)
    write_indexed(tmp_path / "work" / "web", [640] * 1000)
    monkeypatch.chdir(tmp_path / "work")
    run = run_of(job_of([3, "books", 1, "web"]), tmp_path, 50)
    monkeypatch.chdir(tmp_path)  # paths are from where the run was created
    use = blend_use(run)
    books, web = use.sources
    assert (use.iteration, use.samples, use.samples_at_end, use.remarks) == (50, 400, 800, ())
    assert (books.name, books.weight, books.share, books.documents, books.tokens_held) == ("books", 3, 0.75, 20, 12_800)
    assert (books.samples, books.tokens, books.samples_at_end, books.part) == (300, 19_200, 600, 0.5)
    assert (books.epochs, books.epochs_at_end, books.tokens_left) == (1.5, 3.0, 0)
    # The 200th of its samples begins the second time: after about 265 samples of the blend, in step 34 or so.
    assert books.again_from_step is not None
    assert 30 < books.again_from_step < 36
    assert (web.samples, web.again_from_step, web.tokens_left) == (100, None, 640_000 - 6_400)
    assert any("books is read 3.00 times" in note for note in use.notes)
    figure = consumption_figure(run)
    assert [trace["name"] for trace in figure["data"]] == ["books", "web"]
    assert [(trace["x"][-1], trace["y"][-1]) for trace in figure["data"]] == [(50, 19_200), (50, 6_400)]
    assert figure["data"][0]["y"] == sorted(figure["data"][0]["y"])


def test_data_on_another_machine(tmp_path: Path) -> None:
    use = blend_use(run_of(job_of([3, "/elsewhere/books", 1, "/elsewhere/web"]), tmp_path, 50))
    assert [(each.samples, each.documents, each.epochs, each.tokens_left) for each in use.sources] == [
        (300, None, None, None),
        (100, None, None, None),
    ]
    assert "no indexed data set at /elsewhere/books" in str(use.sources[0].note)
    assert any("cannot be read from here" in remark for remark in use.remarks)


def test_nothing_was_measured_yet(tmp_path: Path) -> None:
    run = run_of(job_of(["/elsewhere/books"]), tmp_path, 0)
    assert [source.samples for source in blend_use(run).sources] == [0]
    assert consumption_figure(run)["data"] == []


def test_steps_that_a_resume_undid_are_not_read_yet(tmp_path: Path) -> None:
    run = run_of(job_of(["/elsewhere/books"]), tmp_path, 50)
    append_event(run, "started", launch_id="2", iteration=20)
    use = blend_use(run)
    assert (use.iteration, use.samples) == (20, 160)


def test_runs_without_a_blend(tmp_path: Path) -> None:
    run = run_of(four_layer_job("random"), tmp_path, 5)
    use = blend_use(run)
    assert (use.kind, use.sources, use.samples) == ("random", (), 40)
    assert consumption_figure(run)["data"] == []


def test_a_blend_that_a_resume_changed(tmp_path: Path) -> None:
    run = run_of(job_of([1, "/a", 1, "/b"]), tmp_path, 10)
    changed = job_of([3, "/b", 1, "/c"])
    add_generation(run, changed, dump_resolved(changed))
    append_event(run, "started", launch_id="2", iteration=10)
    log = MetricLog(run, check=lambda: None)
    log.append(20, 160, 160 * 64, {"train/loss": 1.0})
    use = blend_use(run)
    found = {source.name: (source.samples, source.weight) for source in use.sources}
    assert found == {"b": (40 + 60, 3), "c": (20, 1), "a": (40, None)}
    assert any("A resume changed" in remark for remark in use.remarks)
    assert sum(trace["y"][-1] for trace in consumption_figure(run)["data"]) == 160 * 64


def test_tokens_are_counted_at_the_length_that_they_were_read_with(tmp_path: Path) -> None:
    run = run_of(job_of(["/a"]), tmp_path, 10)
    longer = JobSpec.model_validate(
        {**job_of(["/a"]).model_dump(), "model": {**job_of(["/a"]).model_dump()["model"], "seq_length": 128}}
    )
    add_generation(run, longer, dump_resolved(longer))
    append_event(run, "started", launch_id="2", iteration=10, samples=80, tokens=80 * 64, blend_since=80)
    log = MetricLog(run, check=lambda: None)
    log.append(20, 160, 80 * 64 + 80 * 128, {"train/loss": 1.0})
    use = blend_use(run)
    assert (use.samples, use.tokens) == (160, 80 * 64 + 80 * 128)
    assert sum(source.tokens for source in use.sources) == use.tokens


PLAIN = four_layer_job("plain")
weights = st.lists(st.integers(1, 9), min_size=1, max_size=4)


@cases(st.lists(st.tuples(weights, st.integers(0, 300)), min_size=1, max_size=3), st.integers(0, 900))
def test_sources_give_all_samples_and_never_take_one_back(plan: list[tuple[list[int], int]], samples: int) -> None:
    periods, begin = [], 0
    for parts, length in plan:
        blend = [BlendEntry(path=f"/{number}", weight=weight) for number, weight in enumerate(parts)]
        job = PLAIN.model_copy(update={"data": PLAIN.data.model_copy(update={"blend": blend})})
        periods.append(Period(job, begin // 8, begin, 64 * begin))
        begin += length
    counts = {path: read.samples for path, read in given(periods, samples).items()}
    assert sum(counts.values()) == samples
    later = given(periods, samples + 1)
    assert all(later[path].samples >= count for path, count in counts.items())
    if len(periods) == 1:
        assert list(counts.values()) == Draws([float(part) for part in plan[0][0]]).counts(samples)


starts = st.lists(st.tuples(st.floats(0, 9), st.integers(0, 90)), max_size=6)


@cases(starts, st.integers(1, 4))
def test_periods_follow_each_other(starts: list[tuple[float, int]], count: int) -> None:
    generations = [(2.0 * number, PLAIN.model_copy(update={"name": str(number)})) for number in range(count)]
    found = arranged(generations, [Start(*start) for start in starts])
    assert found[0].iteration == found[0].samples == 0
    assert [each.iteration for each in found] == sorted({each.iteration for each in found})
    assert [each.samples for each in found] == [8 * each.iteration for each in found]
