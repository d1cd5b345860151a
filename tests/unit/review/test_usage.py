"""GPU-hours and waits, from event logs as they are."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.event_log import append_event, log_of

from orchestrator.review.run_summary import RunSummary
from orchestrator.review.summary import unreadable
from orchestrator.review.usage import Launch, RunUsage, UsageLog, Wait, days_figure, gpus_of, usage
from orchestrator.review.usage import taken as taken_by
from orchestrator.run_directory.rundir import RunDir

NOON = time.mktime((2026, 3, 10, 12, 0, 0, 0, 0, -1))


def event(kind: str, hours: float, **more: Any) -> dict[str, Any]:
    return {"time": NOON + 3600 * hours, "event": kind, **more}


def taken(events: list[dict[str, Any]], gpus: int, **more: Any) -> RunUsage:
    return taken_by(log_of(*events), gpus, **more)


def summary(name: str, **fields: Any) -> RunSummary:
    return replace(unreadable(RunDir(Path("/runs") / name / "1"), "made up"), **fields)


def test_a_run_that_waits_trains_and_is_preempted() -> None:
    events = [
        event("submitted", 0, job_id="1", cluster="alps"),
        event("launched", 2, launch_id="a", job_id="1"),
        event("started", 2.1, launch_id="a", world_size=8, iteration=0),
        event("exited", 5, launch_id="a", code=0, cause="preempted", iteration=30),
        event("requeued", 5, launch_id="a", job_id="1", by="orchestrator"),
        event("launched", 6, launch_id="b", job_id="1"),
        event("started", 6, launch_id="b", world_size=4, iteration=20),
    ]
    found = taken(events, 1, is_active=True)
    hour = [NOON + 3600 * hours for hours in range(8)]
    assert found.launches == (Launch(8, hour[2], hour[5]), Launch(4, hour[6], None))
    assert found.waits == (Wait("alps", hour[0], hour[2]), Wait("alps", hour[5], hour[6]))
    run = summary("a", state="running", user="ann", goodput=0.5, lost_steps=10)
    use = usage([(run, found)], None, hour[7])
    assert (use.gpu_hours, use.gpus_now) == (8 * 3 + 4, 4)
    assert [(share.name, share.gpu_hours, share.launches, share.goodput) for share in use.users] == [
        ("ann", 28, 2, 0.5)
    ]
    [queue] = use.queues
    assert (queue.name, queue.waits, queue.median, queue.ninetieth, queue.longest) == ("alps", 2, 5400, 7200, 7200)
    assert use.days == (("2026-03-10", {"a": 28.0}),)
    # Of the last two hours: one of the second launch.
    assert usage([(run, found)], hour[5] + 1, hour[7]).gpu_hours == 4


def test_a_launch_without_a_last_word_ends_with_its_last_sign() -> None:
    events = [event("launched", 0, launch_id="a"), event("started", 1, launch_id="a", world_size=2)]
    assert taken(events, 1, is_active=False).launches == (Launch(2, NOON, NOON + 3600),)
    assert taken(events, 1, is_active=False, sign=NOON + 7200).launches == (Launch(2, NOON, NOON + 7200),)
    again = [*events, event("launched", 9, launch_id="b")]
    assert taken(again, 1, is_active=False).launches[0].end == NOON + 3600


def test_processes_on_cpus_are_no_gpus() -> None:
    events = [event("launched", 0, launch_id="a"), event("started", 0, launch_id="a", world_size=3, device="cpu")]
    on_cpu = summary("a", state="running"), taken(events, 1, is_active=True)
    events[1] |= {"device": "NVIDIA H200", "world_size": 2}
    on_gpus = summary("b", state="running"), taken(events, 1, is_active=True, is_on_cpu=True)
    now = NOON + 3600
    both = usage([on_cpu, on_gpus], None, now)
    assert (both.gpus_now, both.processes_now, both.hours, both.gpu_hours) == (2, 3, "GPU-hours", 5)
    alone = usage([on_cpu], None, now)
    assert (alone.gpus_now, alone.processes_now, alone.hours) == (0, 3, "Process hours")
    assert days_figure(alone)["layout"]["yaxis"]["title"] == {"text": "Process hours"}
    assert usage([], None, now).hours == "GPU-hours"
    # Nothing is known of the start yet but what the spec says.
    assert taken(events[:1], 4, is_active=True, is_on_cpu=True).launches == (Launch(4, NOON, None, True),)


def test_a_run_that_was_requeued_waits_since_then() -> None:
    events = [event("submitted", 0, job_id="1"), event("launched", 1, launch_id="a"), event("requeued", 5)]
    assert taken(events, 1, is_active=True).waiting_since == NOON + 5 * 3600
    assert taken(events[:2], 1, is_active=True).waiting_since is None


def test_a_start_that_was_refused_took_nothing() -> None:
    events = [event("launched", 0, launch_id="a"), event("exited", 1, launch_id="a", cause="held", code=2)]
    assert taken(events, 4, is_active=False).launches == ()


@pytest.mark.parametrize("is_active", [True, False])
def test_a_start_that_was_refused_ends_nothing(is_active: bool) -> None:
    refused = [event("launched", 1, launch_id="b"), event("exited", 1.1, launch_id="b", cause="held", code=2)]
    at_work = [event("launched", 0, launch_id="a"), event("started", 0, launch_id="a", world_size=2), *refused]
    done = [] if is_active else [event("exited", 5, launch_id="a", cause="completed", code=0)]
    end = None if is_active else NOON + 5 * 3600
    assert taken([*at_work, *done], 4, is_active=is_active).launches == (Launch(2, NOON, end),)


def test_a_job_that_was_taken_out_of_the_queue_did_not_wait_for_anything() -> None:
    events = [event("submitted", 0, job_id="1", cluster="alps"), event("withdrawn", 3, job_id="1")]
    assert taken(events, 4, is_active=False) == RunUsage()


def test_a_day_ends_at_midnight() -> None:
    found = RunUsage((Launch(2, NOON, NOON + 86400),))
    use = usage([(summary("a"), found)], None, NOON + 1e6)
    assert use.days == (("2026-03-10", {"a": 24.0}), ("2026-03-11", {"a": 24.0}))
    figure = days_figure(use)
    assert [(bars["name"], bars["y"]) for bars in figure["data"]] == [("a", [24.0, 24.0])]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"launch.nodes": "2", "launch.gpus_per_node": "8"}, 16),
        ({"parallelism.tensor_model_parallel_size": "2", "parallelism.data_parallel_size": "4"}, 8),
        ({"launch.gpus_per_node": "null", "parallelism.data_parallel_size": "many"}, 1),
        ({}, 1),
    ],
)
def test_gpus_of_a_spec(spec: dict[str, str], expected: int) -> None:
    assert gpus_of(summary("a", spec=spec)) == expected


def test_a_log_is_read_again_when_it_grew(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "a" / "1")
    run.path.mkdir(parents=True)
    append_event(run, "launched", launch_id="a")
    log, shown = UsageLog(), replace(unreadable(run, "made up"), state="running")
    assert len(log.of([shown])[0][1].launches) == 1
    append_event(run, "exited", launch_id="a", cause="completed", code=0)
    append_event(run, "launched", launch_id="b")
    assert len(log.of([shown])[0][1].launches) == 2
    run.events_file.write_bytes(b'{"time": "torn')
    assert log.of([shown])[0][1] == RunUsage()


words = st.sampled_from(
    ["created", "submitted", "requeued", "withdrawn", "launched", "started", "exited", "finished", "nonsense"]
)
times = st.floats(NOON, NOON + 1e6) | st.sampled_from([math.nan, -1.0, 1e300, None, "late", True])
logs = st.lists(
    st.fixed_dictionaries(
        {"event": words, "time": times},
        optional={
            "launch_id": st.sampled_from(["a", "b", None]),
            "world_size": st.sampled_from([1, 8, -3, True, "many", 1 << 80]),
            "cause": st.sampled_from(["held", "bug", None]),
            "by": st.sampled_from(["slurm", "orchestrator"]),
            "iteration": st.integers(-2, 50),
        },
    ),
    max_size=20,
)


@given(logs, st.booleans())
def test_launches_follow_each_other(events: list[dict[str, Any]], is_active: bool) -> None:
    found = taken(events, 2, is_active=is_active)
    ends = [(each.begin, math.inf if each.end is None else each.end) for each in found.launches]
    assert all(begin <= end for begin, end in ends)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(ends))
    assert all(wait.end is None or wait.begin <= wait.end for wait in found.waits)
    assert is_active or all(each.end is not None for each in (*found.launches, *found.waits))


@given(
    st.lists(st.tuples(logs, st.booleans(), st.sampled_from("ab"), st.sampled_from("xyz")), max_size=5),
    st.none() | st.floats(NOON, NOON + 1e6),
)
def test_parts_add_up(runs: list[tuple[list[dict[str, Any]], bool, str, str]], since: float | None) -> None:
    shown = [
        (summary(name, user=user, state="running" if active else "failed"), taken(events, 2, is_active=active))
        for events, active, user, name in runs
    ]
    use = usage(shown, since, NOON + 1e6)
    whole = pytest.approx(use.gpu_hours, abs=1e-6)
    assert math.fsum(share.gpu_hours for share in use.users) == whole
    assert math.fsum(share.gpu_hours for share in use.projects) == whole
    assert math.fsum(hours for _, by in use.days for hours in by.values()) == whole
    assert all(share.gpu_hours >= 0 for share in (*use.users, *use.projects))
    assert sum(number for _, number in use.states) == len(runs)
    assert use.gpu_hours <= usage(shown, None, NOON + 1e6).gpu_hours + 1e-6
