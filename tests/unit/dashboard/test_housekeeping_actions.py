"""Tags, notes, names, archiving and deleting on the dashboard, by the commands that a person would type."""

from __future__ import annotations

from pathlib import Path

import pytest
from baseline.packing import kept, unpack
from fastapi.testclient import TestClient
from support.light_forks import LightForks
from support.odd_files import whole_run

from orchestrator.api.housekeeping.deletion import doomed_with
from orchestrator.api.housekeeping.labelling import rename
from orchestrator.dashboard.app import create_app
from orchestrator.dashboard.security import form_mark
from orchestrator.dashboard.settings import Settings
from orchestrator.quantities import disk_size
from orchestrator.review.filters.listing import summaries_in
from orchestrator.run_directory.labels import read_labels
from orchestrator.run_directory.lease import Lease
from orchestrator.run_directory.rundir import RunDir
from orchestrator.run_directory.trash import trashed
from orchestrator.sweeps.ledger import all_sweeps


@pytest.fixture
def _commands_are_forked(light_forks: LightForks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what the page starts; in a browser (tests/browser/test_actions.py) they are started."""
    for name, value in {**light_forks.variables(), "FORKED_TOO": "orchestrator"}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = whole_run("finished", tmp_path / "runs")
    (made.path / "mlflow.json").unlink()  # what it knows is told, by a process that nobody here waits for
    return made


@pytest.mark.usefixtures("_commands_are_forked")
def test_labels_and_deleting_on_the_page_of_a_run(run: RunDir) -> None:
    runs_dir = run.path.parent.parent
    settings = Settings(runs_dir, allows_actions=True)
    client = TestClient(create_app(settings))
    page = f"/runs/{run.name}/{run.run_id}"

    def send(action: str, typed: str = "") -> str:
        fields = {"mark": form_mark(settings), "typed": typed}
        return client.post(f"{page}/actions/{action}", data=fields, follow_redirects=True).text

    shown = client.get(page).text
    for action in ("tag", "note", "rename", "archive", "delete"):
        assert f'href="{page}/actions/{action}"' in shown
    assert f"{page}/actions/unarchive" not in shown
    assert "best" in send("tag", "best paper")
    asked = client.get(f"{page}/actions/tag").text
    assert 'name="typed"' in asked
    assert 'value="best paper"' in asked
    send("tag", "paper")
    assert read_labels(run.path).tags == ("paper",)
    send("note", "--yes\r\nsecond line")
    assert read_labels(run.path).note == "--yes\nsecond line"
    assert "<textarea" in client.get(f"{page}/actions/note").text
    assert "It failed." in send("rename", "../x")
    assert "is archived" in send("archive")
    assert client.post(f"{page}/actions/archive", data={"mark": form_mark(settings)}).status_code == 409
    assert f'href="{page}/actions/unarchive"' in client.get(page).text
    assert client.post(f"{page}/actions/delete", data={"mark": "wrong"}).status_code == 403
    lease = Lease.acquire(run, launch_id="x")
    assert client.get(f"{page}/actions/delete").status_code == 409, "it is live"
    lease.release()
    assert "1 run deleted" in send("delete")
    assert [entry.place for entry in trashed(runs_dir)] == [f"{run.name}/{run.run_id}"]
    assert client.get(page).status_code == 404


def test_what_a_deletion_would_take_is_said_before(tmp_path: Path) -> None:
    unpack(kept("sweep"), tmp_path)
    runs_dir = tmp_path / "runs"
    [sweep] = all_sweeps(runs_dir)
    entries = sweep.planned().cells
    run = sweep.run(entries[0])
    rename(run, "shown")
    client = TestClient(create_app(Settings(runs_dir, allows_actions=True)))
    asked = client.get(f"/runs/{run.name}/{run.run_id}/actions/delete").text
    summary = next(each for each in summaries_in(runs_dir) if each.run == run)
    assert f"<strong>shown/{run.run_id}</strong>" in asked
    assert disk_size(summary.disk_bytes or 0) in asked
    assert f"{sweep.name} stays, without 1 of its cells" in asked
    assert f"<h1>shown <small>{run.run_id}</small>" in client.get(f"/runs/{run.name}/{run.run_id}").text
    asked = client.get(f"/sweeps/{sweep.name}/actions/delete").text
    together = doomed_with([sweep], runs_dir)
    assert len(together) == len(entries) + 1
    assert disk_size(sum(each.bytes for each in together)) in asked
    assert "stays, without" not in asked


def test_a_page_that_only_shows_offers_none_of_it(run: RunDir) -> None:
    client = TestClient(create_app(Settings(run.path.parent.parent)))
    page = f"/runs/{run.name}/{run.run_id}"
    assert "/actions/" not in client.get(page).text
    for action in ("tag", "delete"):
        assert client.get(f"{page}/actions/{action}").status_code == 403
        assert client.post(f"{page}/actions/{action}").status_code == 403
    assert client.get("/sweeps/x/actions/delete").status_code == 403
