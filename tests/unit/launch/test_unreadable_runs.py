"""A run that cannot be read, as another person's, hides no other."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.refused import refused

from orchestrator.files import stored_files
from orchestrator.launch.runs import all_runs, create_run, find_run
from orchestrator.launch.states.run_states import readable_statuses
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec

MakeJob = Callable[..., JobSpec]
Orchestrator = Callable[..., tuple[int, str, str]]


@pytest.fixture
def mine(make_job: MakeJob, runs_dir: Path) -> RunDir:
    return create_run(make_job(), "", runs_dir)


@pytest.fixture
def other(mine: RunDir, runs_dir: Path) -> RunDir:
    """A newer run of the same job, whose event log is none."""
    run = RunDir(mine.path.with_name(f"{mine.run_id}-2"))
    run.events_file.mkdir(parents=True)
    (run.path / "resolved.json").write_bytes((mine.path / "resolved.json").read_bytes())
    return run


def test_list_shows_it_and_the_others(orchestrator: Orchestrator, mine: RunDir, other: RunDir) -> None:
    code, out, _ = orchestrator("list")
    rows = [line.split()[:4] for line in out.splitlines()[1:]]
    assert (code, rows) == (
        0,
        [["tiny", other.run_id, "unreadable", "(Is"], ["tiny", mine.run_id, "created", "0/20"]],
    )
    code, out, _ = orchestrator("list", "--json")
    records = json.loads(out)
    assert (code, [record["state"] for record in records]) == (0, ["unreadable", "created"])
    assert records[0]["message"] == f"{other.events_file}: Is a directory"


def test_only_a_command_that_names_it_fails(orchestrator: Orchestrator, mine: RunDir, other: RunDir) -> None:
    assert orchestrator("status", mine.path)[0] == 0
    code, out, _ = orchestrator("status", "tiny")
    assert (code, out.splitlines()[0]) == (0, f"run tiny/{mine.run_id}")
    code, out, err = orchestrator("status", other.run_id)
    assert (code, out) == (2, "")
    assert err == (
        f"error: run tiny/{other.run_id} cannot be read: {other.events_file}: Is a directory; put that right\n"
    )


def test_files_of_another_person(mine: RunDir, runs_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for everybody but root, whom nothing is refused."""
    theirs = create_run(JobSpec.model_validate_json(mine.resolved().read_bytes()), "", runs_dir)

    opened = stored_files._open

    def refuses(path: Path, folder: Path, flags: int) -> int:
        if path == theirs.events_file:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, folder, flags)

    monkeypatch.setattr(stored_files, "_open", refuses)
    assert all_runs(runs_dir) == [theirs, mine]
    assert find_run("tiny", runs_dir) == mine
    statuses, troubles = readable_statuses(all_runs(runs_dir))
    assert ([status.run for status in statuses], list(troubles)) == ([mine], [theirs])
    with refused("unreadable_run"):
        find_run(theirs.run_id, runs_dir)
