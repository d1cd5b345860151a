"""What follows an end: a stop, or the way back into the queue."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.event_log import log_of

from orchestrator.launch.requeue_policy import DEFAULT_ACTIONS, Decision
from orchestrator.launch.requeue_policy import decide as decide_after
from orchestrator.run_directory.exits.causes import CAUSES, Exit
from orchestrator.spec.sections.launch import FailureCause, LaunchSpec


def exited(cause: str, node: str | None = None) -> dict[str, Any]:
    return {"event": "exited", "cause": cause, "node": node}


def decide(launch: LaunchSpec, end: Exit, events: list[dict[str, Any]]) -> Decision:
    return decide_after(launch, end, log_of(*events))


SUBMITTED = {"event": "submitted"}
REQUEUED = {"event": "requeued"}
SAVED = {"event": "checkpoint_saved"}


def end(cause: str) -> Exit:
    return Exit.of(cause, "", None)


def test_every_failure_that_a_spec_can_name_has_a_default() -> None:
    assert set(DEFAULT_ACTIONS) == set(get_args(FailureCause)) <= set(CAUSES)


@pytest.mark.parametrize("cause", [cause for cause, action in DEFAULT_ACTIONS.items() if action != "stop"])
def test_a_fault_of_the_machine_goes_back_into_the_queue(cause: str) -> None:
    decision = decide(LaunchSpec(), end(cause), [SUBMITTED, exited(cause)])
    assert decision.requeue
    assert decision.delay == (0 if cause in ("time_limit", "preempted") else 30)


@pytest.mark.parametrize("cause", ["completed", "stopped", "cancelled", "requeued", "user_error", "held", "lease_lost"])
def test_nothing_can_make_these_come_back(cause: str) -> None:
    assert not decide(LaunchSpec(), end(cause), [SUBMITTED, exited(cause)]).requeue


@pytest.mark.parametrize("cause", [cause for cause, action in DEFAULT_ACTIONS.items() if action == "stop"])
def test_a_fault_of_the_job_stops_unless_the_spec_says_otherwise(cause: str) -> None:
    events = [SUBMITTED, exited(cause)]
    assert not decide(LaunchSpec(), end(cause), events).requeue
    assert decide(LaunchSpec.model_validate({"on_failure": {cause: "requeue"}}), end(cause), events).requeue


def test_a_spec_can_make_a_fault_of_the_machine_stop() -> None:
    launch = LaunchSpec.model_validate({"on_failure": {"node_fail": "stop"}})
    decision = decide(launch, end("node_fail"), [SUBMITTED, exited("node_fail")])
    assert (decision.requeue, decision.reason) == (False, "after node_fail a run is not restarted (launch.on_failure)")


def test_the_delay_doubles_with_failures_without_progress_and_starts_anew_after_a_checkpoint() -> None:
    events = [SUBMITTED]
    delays = []
    for _ in range(4):
        events += [exited("killed")]
        delays.append(decide(LaunchSpec(), end("killed"), events).delay)
        events += [REQUEUED]
    assert delays == [30, 60, 120, 240]
    events += [SAVED, exited("killed")]
    assert decide(LaunchSpec(), end("killed"), events).delay == 30


def test_five_failures_without_a_checkpoint_end_it() -> None:
    events = [SUBMITTED, *[exited("killed"), REQUEUED] * 4, exited("killed")]
    decision = decide(LaunchSpec(), end("killed"), events)
    assert (decision.requeue, decision.reason) == (False, "5 failures in a row without a new checkpoint")


def test_time_limits_between_are_no_failures_and_no_progress() -> None:
    events = [SUBMITTED, *[exited("killed"), REQUEUED, exited("time_limit"), REQUEUED] * 4, exited("killed")]
    assert not decide(LaunchSpec(), end("killed"), events).requeue
    assert decide(LaunchSpec(), end("time_limit"), [*events, exited("time_limit")]).requeue


def test_requeues_are_counted_from_the_last_submission() -> None:
    launch = LaunchSpec(max_requeues=2)
    events = [SUBMITTED, REQUEUED, REQUEUED, exited("time_limit")]
    decision = decide(launch, end("time_limit"), events)
    assert (decision.requeue, decision.reason) == (
        False,
        "it was restarted 2 times (launch.max_requeues)",
    )
    assert decide(launch, end("time_limit"), [*events, SUBMITTED, exited("time_limit")]).requeue


def test_elsewhere_leaves_out_every_node_that_was_at_fault() -> None:
    events = [SUBMITTED, exited("node_fail", "n3"), REQUEUED, SAVED, exited("node_fail", "n1")]
    assert decide(LaunchSpec(), end("node_fail"), events).exclude == ("n1", "n3")
    assert decide(LaunchSpec(), end("node_fail"), [*events, exited("node_fail", "n2,n3")]).exclude == ("n1", "n2", "n3")
    again = LaunchSpec.model_validate({"on_failure": {"node_fail": "requeue"}})
    assert decide(again, end("node_fail"), events).exclude == ()


@given(
    st.lists(st.sampled_from([SUBMITTED, REQUEUED, SAVED, *map(exited, CAUSES)]), max_size=300),
    st.sampled_from(sorted(CAUSES)),
)
def test_a_run_never_goes_round_for_ever(events: list[dict[str, Any]], cause: str) -> None:
    """However it is thrown about, at most max_requeues starts follow one submission, and delays are bounded."""
    decision = decide(LaunchSpec(max_requeues=7), end(cause), [*events, exited(cause)])
    starts = [number for number, event in enumerate(events) if event == SUBMITTED]
    requeues = events[starts[-1] if starts else 0 :].count(REQUEUED)
    assert not (decision.requeue and requeues >= 7)
    assert 0 <= decision.delay <= 30 * 16
