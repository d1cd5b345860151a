"""The state of a run, derived from what its directory holds."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.event_log import append_event

from orchestrator.launch.states.run_states import LatestMetrics, last_metrics, status_of
from orchestrator.process import Process
from orchestrator.review.summary import summarize
from orchestrator.run_directory.lease import Lease
from orchestrator.run_directory.rundir import RunDir, append_line
from orchestrator.spec.job import JobSpec

HERE = Process.current().to_record()
DEAD = {**HERE, "pid": 2**22 + 1}
ELSEWHERE = {**HERE, "host": "elsewhere", "boot": "other"}


@pytest.fixture
def run(make_job: Callable[..., JobSpec], make_run: Callable[[JobSpec], RunDir]) -> RunDir:
    return make_run(make_job())


def launched(run: RunDir, process: dict[str, Any], launch_id: str = "a") -> None:
    append_event(run, "launched", launch_id=launch_id, **process)


def exited(run: RunDir, cause: str, launch_id: str = "a") -> None:
    append_event(run, "exited", launch_id=launch_id, code=1, cause=cause, message="", iteration=3)


def test_created(run: RunDir) -> None:
    status = status_of(run)
    assert (status.state, status.cause, status.iteration, status.launches) == ("created", None, None, 0)


def test_running_while_the_launcher_lives(run: RunDir) -> None:
    launched(run, HERE)
    assert status_of(run).state == "running"
    run.stop_file.write_text("{}")
    assert status_of(run).state == "stopping"


def test_running_while_a_rank_holds_the_lease_although_the_launcher_is_dead(run: RunDir) -> None:
    launched(run, DEAD)
    lease = Lease.acquire(run, launch_id="a")
    assert status_of(run).state == "running"
    lease.release()
    assert status_of(run).state == "lost"


def test_launcher_and_ranks_are_gone_and_old_logs_do_not_say_why(run: RunDir) -> None:
    """What a log says may be of an earlier launch: without exit records nothing is known."""
    run.logs.mkdir()
    run.rank_log(0).write_text("MemoryError\n")
    launched(run, DEAD)
    assert (status_of(run).state, status_of(run).cause) == ("lost", "lost")
    record = run.exit_record("a", 1)
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"cause": "nan", "message": "the loss was NaN", "iteration": 7}))
    status = status_of(run)
    assert (status.state, status.cause, status.message, status.iteration) == ("failed", "nan", "the loss was NaN", 7)


def test_started_by_hand_without_a_launcher(run: RunDir) -> None:
    lease = Lease.acquire(run, launch_id="by-hand")
    assert status_of(run).state == "running"
    lease.release()
    assert status_of(run).state == "created"


@pytest.mark.parametrize(
    ("cause", "state"),
    [
        ("completed", "completed"),
        ("stopped", "stopped"),
        ("cancelled", "cancelled"),
        ("nan", "failed"),
        ("killed", "failed"),
        ("odd", "failed"),
    ],
)
def test_exited(run: RunDir, cause: str, state: str) -> None:
    launched(run, DEAD)
    exited(run, cause)
    status = status_of(run)
    assert (status.state, status.cause) == (state, cause)
    assert status.ended is not None


def test_each_end_in_a_sentence(run: RunDir) -> None:
    launched(run, DEAD)
    assert status_of(run).describe().startswith("lost: the launcher and its processes disappeared")
    exited(run, "cancelled")
    assert status_of(run).describe() == "cancelled"
    launched(run, DEAD, "b")
    exited(run, "stopped", "b")
    assert status_of(run).describe() == "stopped as asked, after saving"


def test_a_run_that_holds_imported_weights_is_no_run_that_was_not_started(run: RunDir) -> None:
    assert status_of(run).state == "created"
    append_event(run, "imported", source="gpt2", family="GPT-2")
    assert status_of(run).state == "imported"
    assert status_of(run).describe() == "imported: weights to start from, imported from gpt2"


def test_a_run_whose_optimizer_was_imported_too_is_one_to_go_on_with(run: RunDir) -> None:
    append_event(run, "imported", source="theirs", family="Megatron-LM", optimizer=True)
    assert status_of(run).describe() == "created"


def test_next_launch_counts(run: RunDir) -> None:
    launched(run, DEAD)
    exited(run, "nan")
    launched(run, HERE, "b")
    assert (status_of(run).state, status_of(run).launches) == ("running", 2)


def test_refused_launch_does_not_count(run: RunDir) -> None:
    launched(run, DEAD)
    exited(run, "completed")
    launched(run, DEAD, "b")
    exited(run, "held", "b")
    assert status_of(run).state == "completed"


def test_launcher_on_another_host_is_believed_until_its_lease_says_otherwise(run: RunDir) -> None:
    launched(run, ELSEWHERE)
    assert status_of(run).state == "running"
    lease = Lease.acquire(run, launch_id="a")
    assert status_of(run).state == "running"
    lease.release()
    assert status_of(run).state == "lost"


def test_launcher_on_another_host_that_never_took_the_lease(run: RunDir) -> None:
    append_line(run.events_file, {"time": time.time() - 3600, "event": "launched", "launch_id": "a", **ELSEWHERE})
    assert status_of(run).state == "lost"


def test_status_is_json_even_with_nan(run: RunDir) -> None:
    append_line(
        run.metrics_file, {"time": 1, "iteration": 4, "samples": 8, "tokens": 64, "values": {"train/loss": "nan"}}
    )
    text = json.dumps(status_of(run).to_json(), allow_nan=False)
    assert json.loads(text)["values"] == {"train/loss": "nan"}


def measured(iteration: int, now: float) -> dict[str, Any]:
    values = {"train/loss": 1.0, "throughput/step_seconds": 0.5}
    return {"time": now, "iteration": iteration, "samples": iteration, "tokens": iteration, "values": values}


def test_last_metrics_of_a_long_and_torn_file(run: RunDir) -> None:
    for iteration in range(1, 2000):
        append_line(run.metrics_file, measured(iteration, iteration))
    append_line(run.metrics_file, {**measured(1999, 1999), "values": {"validation/loss": 2.5}})
    with open(run.metrics_file, "ab") as file:
        file.write(b'{"time": 1, "itera')
    assert last_metrics(run) == LatestMetrics(
        1999,
        {"train/loss": 1.0, "throughput/step_seconds": 0.5, "validation/loss": 2.5},
        {"throughput/step_seconds": 0.0},
    )


def test_the_last_evaluation_is_many_steps_ago(run: RunDir) -> None:
    """As it mostly is: between two of them are hundreds of steps."""
    for iteration in range(1, 3001):
        append_line(run.metrics_file, measured(iteration, iteration))
        if iteration in (500, 1000):
            found = {"validation/loss": iteration / 100, "validation/code/loss": 3.0}
            append_line(run.metrics_file, {**measured(iteration, iteration), "values": found})
    latest = last_metrics(run)
    assert (latest.iteration, latest.values["validation/loss"]) == (3000, 10.0)
    assert (latest.values["validation/code/loss"], latest.values["train/loss"]) == (3.0, 1.0)


@pytest.mark.parametrize("torn", [b"", b"x" * 70_000, b"x" * 200_000 + b"\n", b"\n" * 70_000])
def test_a_log_that_was_never_evaluated_is_read_to_its_beginning(run: RunDir, torn: bytes) -> None:
    with open(run.metrics_file, "wb") as file:
        file.write(torn)
    assert last_metrics(run) == LatestMetrics(None, {}, {})
    append_line(run.metrics_file, measured(1, 1))


def test_a_speed_is_the_median_of_the_latest_steps(run: RunDir) -> None:
    """The last step alone is slow here, the first ones of the start are, and two were undone by a resume."""
    seconds = [9.0] * 60 + [0.4, 0.5, 0.6, 0.5] * 25
    for iteration, each in enumerate([*seconds, 7.0, 7.0], start=1):
        append_line(run.metrics_file, {**measured(iteration, iteration), "values": {"throughput/step_seconds": each}})
    for iteration in (161, 162):
        append_line(run.metrics_file, {**measured(iteration, iteration), "values": {"throughput/step_seconds": 4.0}})
    found = last_metrics(run)
    assert found.values == {"throughput/step_seconds": 0.5}
    assert found.spreads["throughput/step_seconds"] < 0.2
    assert status_of(run).values == found.values
    [summary] = summarize([run])
    assert (summary.values, summary.spreads) == (found.values, found.spreads)
