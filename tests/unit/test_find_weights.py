"""What `checkpoint.pretrained` means: a checkpoint, a run, or the newest run of a job that has one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.event_log import append_event
from support.refused import refused

from orchestrator.launch.runs import find_run
from orchestrator.run_directory.checkpoints.commit_markers import write_commit
from orchestrator.run_directory.checkpoints.pretrained import find_weights
from orchestrator.run_directory.rundir import RunDir


def make_run(path: Path, created: float, iterations: tuple[int, ...] = (10,)) -> RunDir:
    run = RunDir(path)
    path.mkdir(parents=True)
    (path / "resolved.json").write_text("{}")
    append_event(run, "created", time=created)
    for iteration in iterations:
        run.checkpoint(iteration).mkdir(parents=True)
        write_commit(run.checkpoint(iteration), iteration=iteration, consumed_samples=0, files={})
    return run


def test_paths_and_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = tmp_path / "runs"
    old, new = make_run(runs / "job" / "ffffffff", 1.0), make_run(runs / "job" / "00000000", 2.0)
    make_run(runs / "job" / "11111111", 3.0, iterations=())
    monkeypatch.chdir(tmp_path)
    checkpoint = old.checkpoint(10)
    assert find_weights(str(checkpoint), runs) == checkpoint
    assert find_weights("runs/job/ffffffff", Path("elsewhere")) == old.path
    assert find_weights("job/ffffffff", runs) == old.path
    assert find_weights("job", runs) == new.path
    (tmp_path / "copy").mkdir()
    monkeypatch.chdir(tmp_path / "copy")
    assert find_weights("runs/job/ffffffff", Path("elsewhere"), [tmp_path]) == old.path
    assert find_weights("../runs/job", Path("elsewhere"), [tmp_path / "nowhere"]).resolve() == new.path


def test_a_cell_of_a_sweep_is_no_jobs_latest_run(tmp_path: Path) -> None:
    """As where a command takes a job's name: a cell only where there is no other."""
    own, cell = make_run(tmp_path / "job" / "ffffffff", 1.0), make_run(tmp_path / "job" / "00000000", 2.0)
    cell.membership.write_text('{"sweep": "rates", "cell": "lr=1"}')
    assert find_weights("job", tmp_path) == own.path == find_run("job", tmp_path).path
    own.membership.write_text('{"sweep": "rates", "cell": "lr=2"}')
    assert find_weights("job", tmp_path) == cell.path == find_run("job", tmp_path).path
    own.membership.unlink()
    shutil.rmtree(own.checkpoints)
    with refused("no_checkpoint"):
        find_weights("job", tmp_path)


def test_what_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs" / "job" / "11111111", 3.0, iterations=())
    with refused("no_checkpoint"):
        find_weights("job", tmp_path / "runs")
    with refused("missing_pretrained") as caught:
        find_weights("jobb", tmp_path / "runs")
    assert f"{tmp_path / 'jobb'} and {tmp_path / 'runs' / 'jobb'}" in str(caught.value)
