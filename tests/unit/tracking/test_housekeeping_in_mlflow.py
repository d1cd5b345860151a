"""What MLflow sees of labels and deletions: at once, or when it can be reached again."""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path

import pytest
from support.event_log import append_event
from support.faults import wait_until
from support.programs import run_instead

from orchestrator.api.housekeeping import deletion, emptying, labelling
from orchestrator.cli.main import main
from orchestrator.run_directory.rundir import RunDir
from orchestrator.run_directory.trash import trashed
from orchestrator.tracking.mlflow.cursor import read_cursor
from tests.unit.tracking.conftest import log_steps, make_run, once, only_run, stored_runs


@pytest.fixture
def ended(tmp_path: Path, store_in: Path, forked_sending: None) -> RunDir:
    """A run that has ended and was sent."""
    run = make_run(tmp_path)
    log_steps(run, range(1, 3))
    append_event(run, "exited", launch_id="l1", code=0, cause="completed", message="", iteration=2)
    assert once(run)[0] == 0
    return run


pytestmark = pytest.mark.usefixtures("forked_sending")


def stage(database: Path) -> list[str]:
    """Whether the MLflow runs of a store are active or deleted."""
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        return [each for (each,) in connection.execute("select lifecycle_stage from runs order by start_time")]


def sync(runs_dir: Path) -> int:
    return main(["sync", "--all", "--runs-dir", str(runs_dir)])


@pytest.fixture
def nothing_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where MLflow is away: a program that does nothing."""
    run_instead(monkeypatch, "orchestrator.version", "sending in the background")


@pytest.mark.usefixtures("nothing_in_the_background")
def test_labels_follow(ended: RunDir, store_in: Path) -> None:
    before = only_run(store_in).tags
    assert not [name for name in before if name in ("orchestrator.tags", "orchestrator.archived")]
    labelling.tag(ended, ["best", "paper"])
    labelling.note(ended, "of the paper")
    labelling.rename(ended, "champion")
    labelling.archive(ended)
    assert once(ended)[0] == 0
    stored = only_run(store_in)
    assert stored.name == "champion"
    assert stored.tags["orchestrator.tags"] == "best, paper"
    assert stored.tags["orchestrator.archived"] == "true"
    assert stored.tags["orchestrator.note"] == "of the paper"
    assert stored.tags["mlflow.note.content"].startswith(before["mlflow.note.content"].rstrip())
    assert stored.tags["mlflow.note.content"].endswith("of the paper\n")
    labelling.tag(ended, remove=["best", "paper"])
    labelling.note(ended, "")
    labelling.rename(ended, "tiny")
    labelling.archive(ended, undo=True)
    assert once(ended)[0] == 0
    stored = only_run(store_in)
    assert stored.name == f"tiny/{ended.run_id}"
    assert [stored.tags[f"orchestrator.{key}"] for key in ("tags", "note", "archived")] == ["", "", "false"]
    assert stored.tags["mlflow.note.content"] == before["mlflow.note.content"]


@pytest.mark.usefixtures("nothing_in_the_background")
def test_a_deletion_follows_and_its_undoing(
    ended: RunDir, store_in: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deletion.delete(deletion.runs_and_sweeps([ended], tmp_path), tmp_path)
    [entry] = trashed(tmp_path)
    assert entry.mlflow
    assert stage(store_in) == ["active"]
    capsys.readouterr()
    assert sync(tmp_path) == 0
    assert capsys.readouterr().out == f"tiny/{ended.run_id}: deleted in MLflow\n"
    assert stage(store_in) == ["deleted"]
    assert trashed(tmp_path)[0].mlflow == ()
    emptying.undo(trashed(tmp_path), tmp_path)
    assert sync(tmp_path) == 0
    assert stage(store_in) == ["active"]
    assert len(stored_runs(store_in)) == 1
    cursor = read_cursor(ended)
    assert cursor is not None
    with sqlite3.connect(store_in) as connection:  # as a person does in MLflow
        connection.execute("update runs set lifecycle_stage = 'deleted'")
    assert sync(tmp_path) == 1, "who deletes it there now means it"
    assert stage(store_in) == ["deleted"]


@pytest.mark.usefixtures("nothing_in_the_background")
def test_mlflow_is_told_after_the_files_are_gone(ended: RunDir, store_in: Path, tmp_path: Path) -> None:
    deletion.delete(deletion.runs_and_sweeps([ended], tmp_path), tmp_path)
    hidden = store_in.rename(store_in.with_suffix(".away"))
    store_in.mkdir()  # no database
    waiting = emptying.prune(emptying.to_prune(tmp_path), tmp_path)
    assert [entry.name for entry in waiting] == [f"tiny/{ended.run_id}"]
    assert not waiting[0].has_content
    began = time.monotonic()
    assert sync(tmp_path) == 1
    assert time.monotonic() - began < 60, "MLflow by itself tries again for 100 s"
    assert emptying.to_prune(tmp_path) == []
    with pytest.raises(Exception, match="in the trash"):
        emptying.deleted_as(ended.run_id, tmp_path)
    store_in.rmdir()
    hidden.rename(store_in)
    assert sync(tmp_path) == 0
    assert stage(store_in) == ["deleted"]
    assert emptying.prune([], tmp_path) == []
    assert list((tmp_path / ".trash").iterdir()) == []
    again = make_run(tmp_path)  # of the same spec, at the same place
    assert once(again)[0] == 0
    assert stage(store_in) == ["deleted", "active"]


def test_a_sweep_s_own_run_follows(tmp_path: Path) -> None:
    home = tmp_path / "sweeps" / "rates"
    home.mkdir(parents=True)
    (home / "mlflow.json").write_text(json.dumps({"default 1": "abc", "note default 1": "words", "http://x 2": "def"}))
    told = deletion.mlflow_of_sweep(home)
    assert told == [{"uri": None, "run_id": "abc"}, {"uri": "http://x", "run_id": "def"}]


def test_a_label_is_sent_in_the_background(ended: RunDir, store_in: Path) -> None:
    labelling.tag(ended, ["best"])
    wait_until(lambda: only_run(store_in).tags.get("orchestrator.tags") == "best", "the tag")
