"""Where a run's time went, from its logs: exact on runs whose story is known, and sound on logs of any kind."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.event_log import log_of

from orchestrator.run_directory.rundir import RunDir, append_line
from orchestrator.tracking.measurements.goodput import Goodput, goodput_of
from orchestrator.tracking.measurements.goodput import goodput as account_for
from orchestrator.tracking.measurements.metrics import Metric


def goodput(events: Sequence[dict[str, Any]], metrics: Iterable[Metric], now: float | None = None) -> Goodput:
    return account_for(log_of(*events), metrics, now)


PARTS = ("productive", "lost", "overhead", "startup", "queue", "idle")


def event(time: Any, kind: str, **fields: Any) -> dict[str, Any]:
    return {"time": time, "event": kind, **fields}


def step(time: float, iteration: int, seconds: float = 1.0, tokens: int | None = None, **values: float) -> Metric:
    tokens = iteration * 100 if tokens is None else tokens
    return Metric(time, iteration, tokens, tokens, {"train/loss": 2.0, "throughput/step_seconds": seconds, **values})


def steps(begin: float, iterations: range, seconds: float = 1.0) -> list[Metric]:
    """One step after the other, the first from `begin` on."""
    return [step(begin + number * seconds, each, seconds) for number, each in enumerate(iterations, 1)]


def parts(result: Goodput) -> dict[str, float]:
    """The parts of the time that are not zero."""
    found = {name: getattr(result, f"{name}_seconds") for name in PARTS}
    assert math.fsum(found.values()) == pytest.approx(result.wall_seconds, abs=1e-6)
    assert all(value >= 0 for value in found.values())
    return {name: pytest.approx(value, abs=1e-6) for name, value in found.items() if value}


def test_nothing_has_happened() -> None:
    assert goodput([], []) == Goodput()
    assert goodput([event(5, "created")], [], now=100) == Goodput()
    assert Goodput().fraction is None


def test_a_local_run() -> None:
    events = [event(100, "launched", launch_id="a"), event(108, "started", launch_id="a", iteration=0)]
    events += [event(125, "finished", iteration=10), event(130, "exited", launch_id="a", code=0, cause="completed")]
    result = goodput(events, steps(110, range(1, 11)))
    assert parts(result) == {"startup": 10, "productive": 10, "overhead": 10}
    assert (result.launches, result.lost_steps, result.wall_seconds) == (1, 0, 30)
    assert result.fraction == result.fraction_of_wall == pytest.approx(1 / 3)


def test_the_first_wait_in_the_queue_does_not_count() -> None:
    events = [event(0, "submitted", job_id="7"), event(900, "launched", launch_id="c-7.0", job_id="7", restart=0)]
    events += [event(1000, "exited", launch_id="c-7.0", code=0, cause="completed", iteration=50)]
    result = goodput(events, steps(950, range(1, 51)))
    assert parts(result) == {"queue": 900, "startup": 50, "productive": 50}
    assert (result.fraction, result.fraction_of_wall) == (0.5, 0.05)
    assert result.first_queue_seconds == 900


def test_steps_that_a_resume_did_again_are_lost() -> None:
    """Ten steps, killed; requeued by the orchestrator; goes on from the checkpoint of step 6."""
    events = [
        event(0, "submitted", job_id="7"),
        event(10, "launched", launch_id="c-7.0", job_id="7"),
        event(15, "started", launch_id="c-7.0", iteration=0),
        event(40, "exited", launch_id="c-7.0", code=1, cause="nccl_error", iteration=10),
        event(41, "requeued", launch_id="c-7.0", job_id="7", cause="nccl_error", by="orchestrator", delay=30),
        event(80, "launched", launch_id="c-7.1", job_id="7"),
        event(90, "started", launch_id="c-7.1", iteration=6),
        event(90, "resumed", iteration=6),
        event(110, "exited", launch_id="c-7.1", code=0, cause="completed", iteration=16),
    ]
    metrics = [*steps(20, range(1, 11)), *steps(95, range(7, 17))]
    result = goodput(events, metrics)
    assert parts(result) == {"queue": 10 + 40, "startup": 10 + 15, "productive": 16, "lost": 4, "overhead": 10 + 5}
    assert (result.launches, result.lost_steps, result.reached) == (2, 4, 16)
    assert [goodput(events[:count], metrics[:10]).reached for count in (4, 7)] == [10, 6]
    # They are lost as soon as the run stands at 6 again, and one without a `started` event says so with its first step.
    assert goodput(events[:8], metrics[:10], now=95).lost_steps == 4
    assert goodput([each for each in events if each["event"] != "started"], metrics).lost_steps == 4


def test_slurm_starts_the_job_again_and_the_new_start_speaks_for_the_dead_one() -> None:
    """The node died at 30; what is written of that end at 100 is the next start's."""
    events = [
        event(10, "launched", launch_id="c-7.0", job_id="7"),
        event(15, "started", launch_id="c-7.0", iteration=0),
        event(100, "exited", launch_id="c-7.0", code=None, cause="node_fail", iteration=10),
        event(100, "requeued", launch_id="c-7.0", job_id="7", cause="node_fail", by="slurm"),
        event(100, "launched", launch_id="c-7.1", job_id="7"),
        event(105, "started", launch_id="c-7.1", iteration=0),
    ]
    result = goodput(events, [*steps(20, range(1, 11)), *steps(110, range(1, 11))])
    assert parts(result) == {"startup": 10 + 10, "lost": 10, "queue": 70, "productive": 10}
    # The same without any word on the end.
    silent = [each for each in events if each["event"] not in ("exited", "requeued")]
    assert goodput(silent, [*steps(20, range(1, 11)), *steps(110, range(1, 11))]) == result


def test_a_run_that_lay_about_until_somebody_resumed_it() -> None:
    events = [
        event(0, "launched", launch_id="a"),
        event(10, "exited", launch_id="a", code=1, cause="stopped", iteration=10),
        event(1000, "launched", launch_id="b"),
        event(1000, "started", launch_id="b", iteration=10),
        event(1010, "exited", launch_id="b", code=0, cause="completed", iteration=20),
    ]
    result = goodput(events, [*steps(0, range(1, 11)), *steps(1000, range(11, 21))])
    assert parts(result) == {"productive": 20, "idle": 990}
    resubmitted = [*events[:2], event(900, "submitted", job_id="8"), *events[2:]]
    assert parts(goodput(resubmitted, [])) == {"startup": 20, "idle": 890, "queue": 100}


def test_a_run_that_still_goes_on_or_waits() -> None:
    events = [event(0, "submitted", job_id="7")]
    assert parts(goodput(events, [], now=50)) == {"queue": 50}
    assert goodput(events, [], now=50).fraction is None
    events.append(event(60, "launched", launch_id="c-7.0", job_id="7"))
    assert parts(goodput(events, [], now=70)) == {"queue": 60, "startup": 10}
    metrics = steps(75, range(1, 6))
    assert parts(goodput(events, metrics, now=82)) == {"queue": 60, "startup": 15, "productive": 5, "overhead": 2}
    events.append(event(90, "exited", launch_id="c-7.0", code=1, cause="preempted", iteration=5))
    events.append(event(90, "requeued", launch_id="c-7.0", job_id="7", by="orchestrator"))
    waiting = {"queue": 160, "startup": 15, "productive": 5, "overhead": 10}
    assert parts(goodput(events, metrics, now=190)) == waiting


def test_a_record_every_five_steps() -> None:
    """Its tokens at its rate say what all of its steps took; the first record of a start has only its last step's time.

    The stop at 17 saved steps that no record tells of; the crash at 24 lost four.
    """
    rate = {"throughput/tokens_per_second": 50.0}  # 100 tokens a step: 2 s
    first = [step(11, 5, 2.0, **rate), step(21, 10, 7.0, **rate), step(31, 15, 7.0, **rate)]
    second = [step(103, 20, 2.0, **rate)]
    events = [
        event(0, "launched", launch_id="a"),
        event(1, "started", launch_id="a", iteration=0),
        event(36, "exited", launch_id="a", code=1, cause="stopped", iteration=17),
        event(96, "launched", launch_id="b"),
        event(97, "started", launch_id="b", iteration=17),
        event(111, "exited", launch_id="b", code=1, cause="killed", iteration=24),
        event(111, "launched", launch_id="d"),
        event(112, "started", launch_id="d", iteration=20),
    ]
    result = goodput(events, [*first, *second])
    assert result.lost_steps == 4
    assert parts(result) == {
        "startup": 1 + 1 + 1,
        "productive": 30 + 4 + 6,
        "overhead": 1,
        "lost": 8,
        "idle": 60,
    }


def test_a_refused_start_changes_nothing() -> None:
    events = [event(0, "launched", launch_id="a"), event(20, "exited", launch_id="a", code=0, cause="completed")]
    refused = [event(5, "launched", launch_id="b"), event(6, "exited", launch_id="b", code=2, cause="held")]
    metrics = steps(10, range(1, 11))
    expected = goodput(events, metrics)
    assert goodput([events[0], *refused, events[1]], metrics) == expected
    assert goodput([events[0], *refused, events[1], *refused, *refused], metrics) == expected


def test_a_late_word_of_a_start_that_was_overtaken_changes_nothing() -> None:
    events = [
        event(0, "launched", launch_id="c-7.0", job_id="7"),
        event(20, "launched", launch_id="c-7.1", job_id="7"),
        event(21, "started", launch_id="c-7.1", iteration=5),
        event(30, "exited", launch_id="c-7.1", code=0, cause="completed", iteration=10),
    ]
    metrics = [*steps(0, range(1, 6)), *steps(25, range(6, 11))]
    late = event(28, "exited", launch_id="c-7.0", code=1, cause="lease_lost", iteration=99)
    assert goodput([*events[:3], late, events[3]], metrics) == goodput(events, metrics)


def test_a_training_without_a_launcher() -> None:
    result = goodput([event(0, "started", launch_id="by-hand", iteration=0)], steps(5, range(1, 6)))
    assert (result.launches, parts(result)) == (1, {"startup": 5, "productive": 5})
    assert parts(goodput([], steps(5, range(1, 6)))) == {"productive": 4}  # nothing is known of before its first record


def test_torn_files(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    append_line(run.events_file, event(0, "launched", launch_id="a"))
    for each in steps(2, range(1, 4)):
        append_line(run.metrics_file, each._asdict())
    whole = goodput_of(run, now=10)
    assert parts(whole) == {"startup": 2, "productive": 3, "overhead": 5}
    for path in (run.events_file, run.metrics_file):
        with open(path, "ab") as file:
            file.write(b'{"time": 7, "event": "exi')
    assert goodput_of(run, now=10) == whole
    for nonsense in ({"time": "noon"}, {"event": "launched"}, {"time": None, "event": "exited", "launch_id": "a"}):
        append_line(run.events_file, nonsense)
    assert goodput_of(run, now=10) == whole


def test_a_clock_that_went_back() -> None:
    """By 50 s, after ten steps: the steps after that take no time that could be told, and nothing becomes negative."""
    events = [event(100, "launched", launch_id="a"), event(70, "exited", launch_id="a", code=0, iteration=15)]
    result = goodput(events, [*steps(100, range(1, 11)), *steps(60, range(11, 16))], now=30)
    assert (parts(result), result.lost_steps) == ({"productive": 10}, 0)


MAYBE = st.none() | st.integers(-2, 40) | st.sampled_from([10**30, 1.5, "7", True])
TIMES = st.floats(0, 1000) | st.integers(0, 1000)
IDS = st.sampled_from(["a", "b", "c-7.0", "c-7.1", None])
KINDS = (
    "submitted",
    "launched",
    "started",
    "resumed",
    "exited",
    "requeued",
    "checkpoint_saved",
    "finished",
    "unheard of",
)


@st.composite
def events_of_any_kind(draw: st.DrawFn) -> list[dict[str, Any]]:
    found = []
    for _ in range(draw(st.integers(0, 14))):
        each = event(draw(TIMES | st.sampled_from([None, "x", math.nan, 1e300, 10**400])), draw(st.sampled_from(KINDS)))
        for name, values in (
            ("launch_id", IDS),
            ("job_id", st.sampled_from(["7", 8, None])),
            ("iteration", MAYBE),
            ("code", st.sampled_from([0, 1, None])),
            ("cause", st.sampled_from(["completed", "held", "killed"])),
            ("by", st.sampled_from(["slurm", "orchestrator"])),
        ):
            if draw(st.booleans()):
                each[name] = draw(values)
        found.append(each)
    return found


NUMBERS = st.floats(-10, 1e4) | st.sampled_from([math.nan, math.inf, -math.inf, 1e308, 0.0])
MEASUREMENTS = st.lists(
    st.builds(
        Metric,
        TIMES,
        st.integers(-3, 40) | st.just(10**400),
        st.just(0),
        st.integers(0, 4000) | st.just(10**400),
        st.dictionaries(
            st.sampled_from(
                ["train/loss", "validation/loss", "throughput/step_seconds", "throughput/tokens_per_second"]
            ),
            NUMBERS,
        ),
    ),
    max_size=20,
)


@given(events_of_any_kind(), MEASUREMENTS, st.none() | TIMES, st.booleans())
def test_the_parts_are_never_negative_and_add_up(
    events: list[dict[str, Any]], metrics: Sequence[Metric], now: float | None, in_order: bool
) -> None:
    if in_order:
        events = sorted(events, key=lambda each: each["time"] if isinstance(each["time"], int | float) else 0)
        metrics = sorted(metrics, key=lambda each: each.time)
    result = goodput(events, metrics, now)
    parts(result)
    assert result.lost_steps >= 0
    for fraction in (result.fraction, result.fraction_of_wall):
        assert fraction is None or 0 <= fraction <= 1
    # What is of no consequence, and asking again, changes nothing.
    assert goodput([*events, event(0, "unheard of", launch_id="nobody")], metrics, now) == result
    assert goodput(events, metrics, now) == result


@given(st.data())
def test_a_run_whose_story_is_known(data: st.DataObject) -> None:
    """Starts of one job one after the other: each waits, starts, does steps, and some of the last are lost."""
    seconds = st.integers(0, 50)
    clock, saved, number = 0.0, 0, 0
    events: list[dict[str, Any]] = [event(clock, "submitted", job_id="7")]
    metrics: list[Metric] = []
    expected = dict.fromkeys(PARTS, 0.0)
    lost_steps = 0
    for number in range(data.draw(st.integers(1, 5))):
        wait, startup, count, last = (data.draw(each) for each in (seconds, seconds, st.integers(0, 8), seconds))
        launch = {"launch_id": f"c-7.{number}", "job_id": "7"}
        events.append(event(clock + wait, "launched", **launch))
        events.append(event(clock + wait + startup, "started", iteration=saved, **launch))
        metrics += steps(clock + wait + startup, range(saved + 1, saved + count + 1), 2.0)
        clock += wait + startup + 2.0 * count + last
        speaks = data.draw(st.booleans()) or last
        if speaks:
            events.append(event(clock, "exited", code=1, iteration=saved + count, **launch))
            events.append(event(clock, "requeued", by="orchestrator", **launch))
        undone = data.draw(st.integers(0, count))
        saved, lost_steps = saved + count - undone, lost_steps + undone
        expected["queue"] += wait
        expected["startup"] += startup if count else startup + last
        expected["overhead"] += last if count else 0
        expected["lost"] += 2.0 * undone
        expected["productive"] += 2.0 * (count - undone)
    events.append(event(clock, "launched", launch_id="c-7.end", job_id="7"))
    events.append(event(clock, "started", launch_id="c-7.end", iteration=saved))
    result = goodput(events, metrics)
    assert parts(result) == {name: value for name, value in expected.items() if value}
    assert (result.lost_steps, result.launches) == (lost_steps, number + 2)
