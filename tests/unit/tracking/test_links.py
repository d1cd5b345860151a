"""From a run to its pages in MLflow and in the dashboard."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from orchestrator.spec.sections.tracking import TrackingSpec
from orchestrator.tracking.description import describe
from orchestrator.tracking.mlflow.cursor import Cursor, write_cursor
from orchestrator.tracking.mlflow.links import DASHBOARD_VARIABLE, dashboard_url, mlflow_url
from tests.unit.tracking.conftest import make_run


@pytest.mark.parametrize(
    ("store", "page"),
    [
        ("https://mlflow.example.org/", "https://mlflow.example.org/#/experiments/7/runs/abc"),
        ("http://me:secret@host:5000/prefix", "http://host:5000/prefix/#/experiments/7/runs/abc"),
        ("http://me:s@cret@host:5000", "http://host:5000/#/experiments/7/runs/abc"),
        ("${env:MLFLOW_URL}", "http://tracker/#/experiments/7/runs/abc"),
        ("${env:NO_MLFLOW_HERE}", None),
        ("${env:SLACK_WEBHOOK}", None),
        ("http://x/${env:MLFLOW_URL}", None),
        ("default", None),
        ("sqlite:////shared/mlflow.db", None),
    ],
)
def test_a_run_has_a_page_where_its_store_is_a_server(
    store: str, page: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_URL", "http://tracker")
    monkeypatch.setenv("SLACK_WEBHOOK", "https://hooks.example/secret")
    run = make_run(tmp_path)
    assert mlflow_url(run) is None  # nothing was sent yet
    write_cursor(run, Cursor(store, "7", "abc"))
    assert mlflow_url(run) == page


def test_the_dashboard_is_said_by_the_spec_or_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = make_run(tmp_path, "00000001")
    assert dashboard_url(quiet, None) is None
    assert describe(quiet).tags["orchestrator.dashboard"] == ""
    monkeypatch.setenv(DASHBOARD_VARIABLE, "http://login1:8080")
    said = make_run(tmp_path, "00000002", tracking={"dashboard_url": "https://review.example.org/"})
    pages = {run.run_id: describe(run).tags for run in (quiet, said)}
    assert pages["00000001"]["orchestrator.dashboard"] == "http://login1:8080/runs/tiny/00000001"
    assert pages["00000002"]["orchestrator.dashboard"] == "https://review.example.org/runs/tiny/00000002"
    assert "(https://review.example.org/runs/tiny/00000002)" in pages["00000002"]["mlflow.note.content"]


@pytest.mark.parametrize(
    "address", ["review.example.org", "ftp://host", "http://me:secret@host", "http://", "http://a b"]
)
def test_an_address_of_pages_is_one(address: str) -> None:
    with pytest.raises(ValidationError, match=r"an address is like https://dashboard\.example"):
        TrackingSpec(dashboard_url=address)
