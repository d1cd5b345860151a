"""What a tracker is told about a run, read from files alone."""

from __future__ import annotations

import json
import os
import posixpath
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.event_log import append_event
from support.refused import refused

from orchestrator.run_directory.lease import Lease
from orchestrator.run_directory.rundir import RunDir, append_line
from orchestrator.spec.job import JobSpec
from orchestrator.tracking.description import Ending, describe, description_signature, flatten, read_target, run_state
from orchestrator.tracking.mlflow.cursor import Cursor, read_cursor, write_cursor
from orchestrator.tracking.mlflow.failures import explain
from orchestrator.tracking.mlflow.limits import entity_name, truncated
from orchestrator.tracking.redaction import Redactor
from tests.unit.tracking.conftest import SPEC, make_run, write_spec

MODEL = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 300, "seq_length": 32}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return make_run(tmp_path)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], ("killed", "lost")),
        ([{"event": "finished"}], ("finished", "completed")),
        ([{"event": "exited", "code": 1, "cause": "nan"}], ("failed", "nan")),
        ([{"event": "exited", "code": 0, "cause": "stopped"}], ("killed", "stopped")),
        ([{"event": "exited", "code": 1, "cause": "killed"}], ("killed", "killed")),
        ([{"event": "exited", "code": 1, "cause": "unheard_of"}], ("failed", "unheard_of")),
        ([{"event": "exited", "code": 3, "cause": None}], ("failed", "bug")),
        # A start that found the run held says nothing about the run.
        ([{"event": "finished"}, {"event": "exited", "code": 2, "cause": "held"}], ("finished", "completed")),
        ([{"event": "exited", "code": 1, "cause": "nan"}, {"event": "started", "launch_id": "l2"}], ("killed", "lost")),
    ],
)
def test_the_state_follows_from_the_events(
    run: RunDir, events: list[dict[str, Any]], expected: tuple[str, str]
) -> None:
    for event in events:
        append_event(run, event["event"], **{key: value for key, value in event.items() if key != "event"})
    state, cause, ended = run_state(run, run.events())
    assert (state, cause) == expected
    assert (ended is None) == (cause == "lost")


def test_a_run_runs_while_its_lease_is_held_and_its_holder_has_not_ended(run: RunDir) -> None:
    append_event(run, "exited", code=1, cause="nan")
    lease = Lease.acquire(run, launch_id="l2")
    assert run_state(run, run.events())[0] == "running"
    assert run_state(run, run.events(), Ending(process=os.getpid()))[0] == "failed"
    lease.release()
    assert run_state(run, run.events())[0] == "failed"


@pytest.mark.parametrize(
    ("causes", "expected"),
    [
        (["completed", "completed"], "finished"),
        (["stopped", "stopped"], "killed"),
        (["stopped", "hang"], "failed"),
        (["killed", "bug"], "killed"),
        (["bug", "lease_lost"], "killed"),
    ],
)
def test_before_the_launcher_has_spoken_the_ranks_records_count(run: RunDir, causes: list[str], expected: str) -> None:
    for rank, cause in enumerate(causes):
        record = run.exit_record("l1", rank)
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps({"cause": cause, "message": "", "iteration": 3}))
    assert run_state(run, run.events())[0] == expected


def test_parameters_are_those_of_the_first_start_and_of_the_newest(run: RunDir) -> None:
    write_spec(run, {**SPEC, "optimizer": {"lr": 0.5}, "added": {"later": True}})
    description = describe(run)
    assert description.params["optimizer.lr"] == "0.001"
    assert description.params["added.later"] == "true"
    assert description.current_params["optimizer.lr"] == "0.5"


def test_the_commit_is_that_of_the_newest_launch(run: RunDir) -> None:
    assert describe(run).tags["orchestrator.code_commit"] == "c0ffee+changes"
    assert describe(run).tags["mlflow.source.git.commit"] == "c0ffee"
    append_event(run, "launched", launch_id="l2", host="node8", commit="beef")
    assert describe(run).tags["orchestrator.code_commit"] == "beef"
    assert describe(run).tags["orchestrator.host"] == "node8"
    (run.path / "events.jsonl").unlink()
    for content in ("{", '{"repositories": []}', '{"repositories": [3]}'):
        (run.path / "code.json").write_text(content)
        assert describe(run).tags["orchestrator.code_commit"] == ""


def test_goodput_is_told_at_each_end(run: RunDir) -> None:
    run.events_file.unlink()
    append_line(run.events_file, {"time": 100, "event": "launched", "launch_id": "l1"})
    step = {"time": 110, "iteration": 1, "samples": 1, "tokens": 1}
    append_line(run.metrics_file, {**step, "values": {"train/loss": 1.0, "throughput/step_seconds": 4.0}})
    append_line(run.events_file, {"time": 116, "event": "exited", "launch_id": "l1", "code": 0, "cause": "completed"})
    tags = describe(run).tags
    assert (tags["orchestrator.goodput"], tags["orchestrator.goodput.lost_steps"]) == ("0.2500", "0")
    assert tags["orchestrator.goodput.startup_seconds"] == "6.0000"
    lease = Lease.acquire(run, launch_id="l2")
    assert not any(name.startswith("orchestrator.goodput") for name in describe(run).tags)
    lease.release()


def test_checkpoints_are_listed_once_with_whether_they_are_kept(run: RunDir) -> None:
    for iteration in (20, 10, 20):
        append_event(run, "checkpoint_saved", iteration=iteration, seconds=1.0, bytes=5)
    run.checkpoint(20).mkdir(parents=True)
    (run.checkpoint(20) / "commit.json").write_text("{}")
    listed = json.loads(describe(run).files["checkpoints.json"])
    assert [(each["iteration"], each["kept"]) for each in listed] == [(10, False), (20, True)]


def test_the_signature_changes_with_what_is_told(run: RunDir) -> None:
    before = description_signature(run)
    assert description_signature(run) == before
    append_event(run, "finished", iteration=1)
    after = description_signature(run)
    assert after != before
    write_spec(run, SPEC)
    assert description_signature(run) != after


def test_the_config_hash_is_the_specs_own(run: RunDir) -> None:
    job = JobSpec.model_validate(
        {
            "name": "tiny",
            "model": {
                "num_layers": 2,
                "hidden_size": 64,
                "num_attention_heads": 4,
                "vocab_size": 300,
                "seq_length": 32,
            },
            "batch": {"micro_batch_size": 1, "global_batch_size": 1},
            "data": {"random_tokens": True},
            "optimizer": {"lr": 1e-3},
            "schedule": {"train_iters": 5},
        }
    )
    write_spec(run, job.model_dump(mode="json"))
    assert describe(run).tags["orchestrator.config_hash"] == job.config_hash


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with refused("not_a_run_directory", tmp_path, "resolved.json"):
        describe(RunDir(tmp_path))
    (tmp_path / "resolved.json").write_text("[]")
    with refused("unreadable_stored_spec", "resolved.json"):
        read_target(RunDir(tmp_path))


def test_the_newest_spec_says_where_to_send(run: RunDir) -> None:
    assert read_target(run).uri is None
    assert read_target(run).experiment == "tiny"
    write_spec(run, {**SPEC, "tracking": {"uri": "${env:TRACKER}", "experiment": "ours"}})
    assert (read_target(run).uri, read_target(run).experiment) == ("${env:TRACKER}", "ours")


def test_nested_values_become_dotted_names() -> None:
    nested = {"a": {"b": 1, "c": {"d": None}}, "e": [1, {"f": "x"}], "g": "text", "h": False}
    assert dict(flatten(nested, "p.")) == {
        "p.a.b": "1",
        "p.a.c.d": "null",
        "p.e": '[1,{"f":"x"}]',
        "p.g": "text",
        "p.h": "false",
    }


@given(st.text())
@example("../../x")
@example("..hidden")
@example("/abs//olute/./path/")
@example("new\n")
def test_names_become_what_mlflow_accepts(name: str) -> None:
    accepted = entity_name(name)
    assert re.fullmatch(r"[/\w.\- ]{1,250}", accepted)
    assert posixpath.normpath(accepted) == accepted
    assert not accepted.startswith(("..", "/"))
    assert accepted != "."
    assert entity_name(accepted) == accepted


@pytest.mark.parametrize("name", ["train/loss", "validation/wiki-103/loss", "optimizer.lr", "a b"])
def test_ordinary_names_stay(name: str) -> None:
    assert entity_name(name) == name


def test_a_cut_value_shows_that_it_was_cut() -> None:
    assert truncated("abcdef", 6) == "abcdef"
    assert truncated("abcdefg", 6) == "abcde…"


def test_what_the_environment_holds_stays_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER_NAME", "me")
    monkeypatch.setenv("PASS", "memorable")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "tok-123")
    redact = Redactor("https://${env:USER_NAME}:${env:PASS}@host/${env:UNSET}")
    # The longer value first: a shorter one within it must not leave a rest behind.
    assert redact("memorable and tok-123") == "${env:PASS} and ${env:MLFLOW_TRACKING_TOKEN}"
    assert redact("see https://a:b@host/path") == "see https://***@host/path"
    assert redact("see https://a:p@ss@host/path") == "see https://***@host/path"


def test_how_long_an_answer_was_waited_for_is_what_holds_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "7")
    said = explain(RuntimeError("Read timed out"), "http://host")
    assert said == "MLflow at http://host: it does not answer within 7 s"


def test_why_a_run_failed_is_said_without_its_secrets(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUB_TOKEN", "hf_0123456789")
    append_event(run, "exited", launch_id="l1", cause="bug", message="no access with hf_0123456789 at https://a:b@c/d")
    said = describe(run).tags["orchestrator.exit_message"]
    assert said == "no access with ${env:HUB_TOKEN} at https://***@c/d"


def test_the_cursor_survives_and_a_torn_one_counts_as_none(run: RunDir) -> None:
    assert read_cursor(run) is None
    cursor = Cursor("default", "1", "abc", 42, {"node-00000.jsonl": 7}, {"state": "x"})
    write_cursor(run, cursor)
    assert read_cursor(run) == cursor
    for content in (
        "",
        "{",
        "[]",
        '{"store": "default"}',
        '{"store":"s","experiment_id":"1","run_id":"a","offset":"x"}',
    ):
        (run.path / "mlflow.json").write_text(content)
        assert read_cursor(run) is None
