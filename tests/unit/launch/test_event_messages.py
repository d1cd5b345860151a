"""Events as sentences, whatever stands in the log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.event_log import log_of

from orchestrator.launch import event_messages
from orchestrator.launch.event_messages import thinned, told
from orchestrator.run_directory.events.labels import LabelEvent
from orchestrator.run_directory.events.types import Event


def test_checkpoints_are_counted_where_nothing_else_happened() -> None:
    saved = [{"event": "checkpoint_saved", "iteration": step, "bytes": 1, "seconds": 1.0} for step in range(1, 8)]
    exported = {"event": "exported", "iteration": 2, "format": "hf", "bytes": 1, "seconds": 1.0}
    more = {**exported, "iteration": 3}
    end = {"event": "finished", "iteration": 7}
    lines = thinned(log_of({"event": "created"}, *saved[:2], exported, saved[2], more, end, saved[3], end, exported))
    assert [line.text for line in lines] == [
        "created",
        "3 checkpoints saved, the last at iteration 3",
        "2 checkpoints exported, the last at iteration 3",
        "all steps are done: iteration 7",
        told(log_of(saved[3]))[0].text,
        "all steps are done: iteration 7",
        told(log_of(exported))[0].text,
    ]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
kinds = [
    "launched",
    "started",
    "first_step",
    "exited",
    "requeued",
    "pretrained",
    "checkpoint_saved",
    "notified",
    "hang",
]
fields = [
    "time",
    "iteration",
    "seconds",
    "bytes",
    "cause",
    "nodes",
    "exclude",
    "delay",
    "evidence",
    "topology",
    "failed",
]


@given(
    events=st.lists(st.dictionaries(st.sampled_from(["event", *fields]), values | st.sampled_from(kinds), max_size=8))
)
def test_every_event_becomes_a_sentence(events: list[dict[str, object]]) -> None:
    log = log_of(*events)
    found = told(log)
    assert [each.number for each in found] == list(range(1, len(log) + 1))
    assert all(isinstance(each.text, str) for each in found)


CHOSEN = {"device": "NVIDIA H200", "layers": "torch", "torch": "2.9.0", "megatron_core": "0.16.1"}


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ({"event": "launched", "host": "n1", "launch_id": "a"}, "started on n1"),
        (
            {"event": "launched", "nodes": ["n1", "n2"], "job_id": "7", "restart": 1},
            "started on n[1-2] as job 7, restart 1",
        ),
        (
            {"event": "exited", "cause": "killed", "message": "by SIGKILL", "iteration": 3},
            "a process was killed at iteration 3 (by SIGKILL)",
        ),
        (
            {"event": "checkpoint_saved", "iteration": 20, "bytes": 3_900_000, "seconds": 1.5},
            "saved a checkpoint at iteration 20 (3.9 MB in 1.5 s)",
        ),
        (
            {"event": "resumed", "iteration": 20, "checkpoint": "iter_0000020"},
            "resumed from the checkpoint of iteration 20",
        ),
        (
            {"event": "first_step", "iteration": 121, "seconds": {"launch": 1.0, "imports": 3.0, "step": 2.5}},
            "the first step of this start, iteration 121, was done 6.5 s after the launch "
            "(imports 3 s, step 2.5 s, launch 1 s)",
        ),
        (
            {"event": "notified", "occasion": "completed", "told": ["command", "webhook"], "failed": {}},
            "notified that it had completed, by command and webhook",
        ),
        (
            {"event": "notified", "occasion": "stopped", "told": [], "failed": {"webhook": "no answer"}},
            "nobody was notified that it had stopped; not by webhook: no answer",
        ),
        (
            {"event": "started", "world_size": 4, "topology": {"tp": 2, "dp": 2, "pp": 1}, "iteration": 7, **CHOSEN},
            "started 4 processes (TP 2 x DP 2) at iteration 7, on NVIDIA H200, torch's layers "
            "(torch 2.9.0, megatron-core 0.16.1)",
        ),
        ({"event": "of a later version", "size": 4}, "of a later version: size 4"),
        ({"event": "exported", "iteration": 20}, "exported: iteration 20"),
    ],
)
def test_sentences(event: dict[str, object], text: str) -> None:
    [found] = told(log_of(event))
    assert found.text == text


def test_every_event_has_a_sentence() -> None:
    assert {*Event.kinds.values(), *LabelEvent.kinds.values()} == set(event_messages.SENTENCES)
