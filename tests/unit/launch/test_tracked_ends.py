"""What MLflow is told of runs whose followers were ended with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.event_log import append_event
from support.refusals import before

from orchestrator.launch.runs import all_runs, create_run
from orchestrator.review.overview import overview_of
from orchestrator.review.summary import summarize
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from orchestrator.tracking.mlflow.cursor import Cursor, write_cursor


def test_metrics_that_were_not_sent_are_told_of(
    make_job: Callable[..., JobSpec], orchestrator: Callable[..., tuple[int, str, str]], tmp_path: Path, runs_dir: Path
) -> None:
    """The fake program sends nothing, as one whose server is gone."""
    job = make_job(tracking={"mlflow": True, "uri": "http://127.0.0.1:9"})
    (tmp_path / "job.yaml").write_text(job.model_dump_json(exclude_unset=True))
    code, _, err = orchestrator("run", tmp_path / "job.yaml")
    [run] = all_runs(runs_dir)
    unsent = f"{run.metrics_file.stat().st_size:,} bytes of metrics to MLflow"
    assert code == 0
    assert err == (
        f"warning: not sent: {unsent}: {run.logs}/mlflow.log says why, orchestrator sync {run.run_id} sends them\n"
    )
    assert " completed, metrics unsent " in orchestrator("list")[1]
    assert f"not sent     {unsent}" in orchestrator("status", "tiny")[1]
    assert overview_of(summarize([run])[0], ()).unsent == run.metrics_file.stat().st_size
    write_cursor(run, Cursor("store", "1", "2", run.metrics_file.stat().st_size))
    assert "unsent" not in orchestrator("list")[1]


def test_status_reads_the_event_log_once(
    make_job: Callable[..., JobSpec],
    orchestrator: Callable[..., tuple[int, str, str]],
    runs_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = create_run(make_job(), "", runs_dir)
    append_event(run, "launched", launch_id="one", pid=1, host="elsewhere")
    append_event(run, "exited", launch_id="one", code=1, cause="nan", message="", iteration=3)
    reads: list[RunDir] = []
    before(monkeypatch, "orchestrator.run_directory.rundir.RunDir.events", reads.append)
    assert orchestrator("status", run.path)[0] == 0
    assert len(reads) == 1
