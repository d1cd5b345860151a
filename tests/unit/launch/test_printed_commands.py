"""Commands that the product prints work as they stand, also for a run where no command would look by itself."""

import re
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.event_log import append_event, lines_of

import orchestrator as package
from orchestrator.api.starts.run_sentences import on_its_way, unsent_words
from orchestrator.cli.runs.sweeps.tables import what_is_retried
from orchestrator.launch.notifications.notice import notice_of
from orchestrator.launch.runs import all_runs, find_run
from orchestrator.launch.states.run_states import status_of
from orchestrator.process import Process
from orchestrator.review.overview import overview_of
from orchestrator.review.summary import summarize
from orchestrator.run_directory.lease import Lease
from orchestrator.run_directory.rundir import default_runs_dir
from orchestrator.spec.job import JobSpec
from orchestrator.sweeps.ledger import Entry, SweepPlan, find_sweep, sweep_dir
from orchestrator.sweeps.states import cell_statuses
from tests.unit.launch.conftest import start_nothing

MakeJob = Callable[..., JobSpec]
Orchestrator = Callable[..., tuple[int, str, str]]

_BY_NAME_ALONE = re.compile(r"orchestrator [a-z ]+\{+ ?[\w.]*(?:run_id|sweep\.name) ?\}")


def commands_in(text: str) -> list[tuple[str, Path]]:
    """What each command of a text names, and the folder in which it would look for that."""
    named = []
    for part in text.split("orchestrator ")[1:]:
        match = re.match(r"(?:sweep |checkpoint )?[a-z]+ ((?:'[^']*'|[^'`\n;,)])*)", part)
        name, *options = shlex.split(match.group(1) if match else part)
        if not part.startswith("run "):  # which takes a spec, and names no run
            folder = Path(options[options.index("--runs-dir") + 1]) if "--runs-dir" in options else default_runs_dir()
            named.append((name, folder))
    return named


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    return tmp_path / "else where"


def test_commands_name_the_folder_of_a_run_that_is_elsewhere(
    orchestrator: Orchestrator,
    job_file: Path,
    elsewhere: Path,
    job: JobSpec,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAKE_END", "raise@12")
    there = ("--runs-dir", elsewhere)
    texts = [orchestrator("run", job_file, *there)[2], orchestrator("status", "tiny", *there)[1]]
    [run] = all_runs(elsewhere)
    launch_id = str(lines_of(run)[-1].get("launch_id"))
    texts += [
        overview_of(summarize([run])[0], ()).advice or "",
        notice_of(run, job, launch_id, "failed").facts["advice"],
        unsent_words(run, 12),
        on_its_way(status_of(run)),
    ]
    with monkeypatch.context() as patched:
        start_nothing(patched, launch_id)
        texts.append(orchestrator("resume", "tiny", "--detach", *there)[1])
    lease = Lease.acquire(run, launch_id="x")
    texts.append(orchestrator("resume", "tiny", *there)[2])
    lease.release()
    with subprocess.Popen(["sleep", "600"]) as launcher:
        process = replace(Process.current(), pid=launcher.pid, started=None)
        append_event(run, "launched", launch_id="x", **process.to_record())
        texts.append(orchestrator("resume", "tiny", *there)[2])
        launcher.kill()
    assert "is held by" in texts[-2]
    assert "is being started by" in texts[-1]
    monkeypatch.delenv("FAKE_END")
    assert orchestrator("resume", "tiny", *there)[0] == 0
    texts.append(orchestrator("resume", "tiny", *there)[1])
    assert "has completed already" in texts[-1]
    for text in texts:
        named = commands_in(text)
        assert named, text
        for name, folder in named:
            assert find_run(name, folder).path == run.path, text


def test_commands_name_the_folder_of_a_sweep_that_is_elsewhere(elsewhere: Path) -> None:
    sweep = sweep_dir("rates", elsewhere)
    sweep.plan(SweepPlan(1, None, "min", [Entry("1", "lr=1", {}, "rates/1")], [], 0, 0), "")
    (elsewhere / "rates" / "1").mkdir(parents=True)
    [(name, folder)] = commands_in(what_is_retried(sweep, cell_statuses(sweep, sweep.planned())))
    assert find_sweep(name, folder) == sweep


def test_no_command_is_printed_with_a_name_alone() -> None:
    """A run's id finds it in the default folder only: `in_command` says where it is."""
    folder = Path(package.__file__).parent
    sources = [path for kind in ("*.py", "*.html") for path in folder.rglob(kind)]
    found = [f"{path.name}: {each}" for path in sources for each in _BY_NAME_ALONE.findall(path.read_text())]
    assert len(sources) > 100
    assert not found
