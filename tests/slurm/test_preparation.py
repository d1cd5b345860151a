"""A run whose data sets are not there: a job without GPUs makes them from text, and the training waits for it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from slurm.cluster import Cluster
from support.commands import Commands, Said
from support.event_log import lines_of
from support.faults import PATIENCE, QUICK_TORCHRUN, CommandLine
from support.light_forks import LightForks
from support.training import events, four_layer_job

from orchestrator.data.indexed_dataset.header import read_index
from orchestrator.launch.states.run_states import RunStatus, status_of
from orchestrator.run_directory.rundir import RunDir

pytestmark = pytest.mark.timeout(600)

FAKE_RUNTIME = Path(__file__).parents[1] / "unit" / "launch"
TEMPLATE = """\
{% extends "slurm.sbatch.j2" %}
{% block launch %}{{ super() | replace('orchestrator.runtime', 'fake_runtime') | as_is }}{% endblock %}
"""


@pytest.fixture
def orchestrator(
    tmp_path: Path, commands: Commands, light_forks: LightForks, monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    """The command line in a project with text and the cluster `test`, where a fake program trains."""
    (tmp_path / "clusters").mkdir()
    template = tmp_path / "fake.sbatch.j2"
    template.write_text(TEMPLATE)
    (tmp_path / "clusters" / "test.yaml").write_text(f"name: test\ndata_partition: low\ntemplate: {template}\n")
    (tmp_path / "raw").mkdir()
    books = [{"text": "One book. " * 20}, {"text": "Another one. " * 20}]
    (tmp_path / "raw" / "books.jsonl").write_text("".join(json.dumps(book) + "\n" for book in books))
    for name, value in light_forks.variables(FAKE_RUNTIME, QUICK_TORCHRUN).items():
        monkeypatch.setenv(name, value)
    return CommandLine(tmp_path, commands)


@pytest.fixture
def submit(orchestrator: CommandLine) -> Callable[..., Said]:
    """submit(text): a run of one process on a data set that is made from that text, on a machine of its own."""

    def start(text: str = "raw/books.jsonl", *options: str) -> Said:
        blend = [{"path": "data/books", "text": text}]
        data = {"random_tokens": False, "blend": blend, "split": "1,0,0"}
        job = four_layer_job("tiny", data=data, model={"vocab_size": 261}, launch={"cluster": "test"})
        return orchestrator("submit", orchestrator.write(job), *options)

    return start


def wait_for_state(run: RunDir, *states: str) -> RunStatus:
    deadline = time.monotonic() + PATIENCE
    while (found := status_of(run)).state not in states:
        assert time.monotonic() < deadline, f"waited for {states}: {found.describe()}"
        time.sleep(0.5)
    return found


def ids(run: RunDir) -> tuple[str, str]:
    """Of the latest data job, and of the training that waits for it."""
    data, training = events(run, "data_submitted")[-1], events(run, "submitted")[-1]
    assert training["data_job_id"] == data["job_id"]
    return data["job_id"], training["job_id"]


def test_the_data_is_made_by_a_job_of_its_own_before_the_training(
    cluster: Cluster, orchestrator: CommandLine, submit: Callable[..., Said], tmp_path: Path
) -> None:
    blocker = cluster.submit("sleep 600", "--nodes=4", "--exclusive", folder=tmp_path)
    cluster.wait_for(blocker, "RUNNING")
    said = submit()
    assert said.code == 0, said.err
    assert "1 source will be made from text first: data/books\n" in said.out
    run = orchestrator.run()
    data, training = ids(run)
    waiting = orchestrator("status", run.run_id).out
    assert f"queued: job {training} on test, waits for its data: job {data} is pending" in waiting
    asked = cluster.job(int(data))
    assert asked["Partition"] == "low"
    assert "gpu" not in asked["TRES" if "TRES" in asked else "ReqTRES"]

    cluster.call("scancel", str(blocker))
    assert wait_for_state(run, "completed").launches == 1
    assert read_index(tmp_path / "data" / "books").documents == 2
    kinds = [event["event"] for event in lines_of(run)]
    assert kinds.index("data_submitted") < kinds.index("data_prepared") < kinds.index("launched")
    assert events(run, "data_prepared")[0]["job_id"] == data
    assert "[data] wrote data/books: 2 documents" in orchestrator("logs", run.run_id).out
    assert cluster.job(int(data))["JobState"] == "COMPLETED"


def test_a_run_whose_data_cannot_be_made_says_why_and_waits_no_longer(
    cluster: Cluster, orchestrator: CommandLine, submit: Callable[..., Said], tmp_path: Path
) -> None:
    text = tmp_path / "raw" / "broken.jsonl"
    text.write_text('{"text": "whole"}\n{"text": "cut o\n')
    assert submit("raw/broken.jsonl").code == 0
    run = orchestrator.run()
    data, training = ids(run)
    status = wait_for_state(run, "failed")
    assert status.cause == "data"
    assert status.describe().startswith(f"failed: its data could not be made from text (job {data}: raw/broken.jsonl:2")
    assert status.describe().endswith("see logs/data.log)")
    assert any("raw/broken.jsonl:2" in line for line in status.evidence)
    cluster.wait_for(int(training), "CANCELLED")  # and does not wait for ever

    text.write_text('{"text": "whole"}\n{"text": "mended"}\n')
    assert orchestrator("resume", run.run_id).code == 0
    assert ids(run) != (data, training)
    assert wait_for_state(run, "completed").launches == 1


def test_a_data_job_that_is_killed_is_the_runs_end_too(
    cluster_without_accounting: Cluster, orchestrator: CommandLine, submit: Callable[..., Said], tmp_path: Path
) -> None:
    cluster = cluster_without_accounting
    blocker = cluster.submit("sleep 600", "--nodes=4", "--exclusive", folder=tmp_path)
    cluster.wait_for(blocker, "RUNNING")
    submit()
    run = orchestrator.run()
    data, training = ids(run)
    cluster.call("scancel", data)
    status = wait_for_state(run, "failed")
    assert f"job {data}: SLURM says CANCELLED" in status.describe()
    cluster.wait_for(int(training), "CANCELLED")


def test_cancel_takes_both_jobs_out_of_the_queue(
    cluster: Cluster, orchestrator: CommandLine, submit: Callable[..., Said], tmp_path: Path
) -> None:
    blocker = cluster.submit("sleep 600", "--nodes=4", "--exclusive", folder=tmp_path)
    cluster.wait_for(blocker, "RUNNING")
    submit()
    run = orchestrator.run()
    assert "stopped" in status_of(run).state or orchestrator("cancel", run.run_id).code == 0
    for job_id in ids(run):
        cluster.wait_for(int(job_id), "CANCELLED")


def test_a_refused_training_leaves_neither_data_job_nor_run(
    cluster: Cluster, orchestrator: CommandLine, submit: Callable[..., Said]
) -> None:
    said = submit("raw/books.jsonl", "--set", "launch.gpus_per_node=4", "--set", "parallelism.data_parallel_size=4")
    assert said.code == 2, said.out
    assert not list((orchestrator.folder / "runs").glob("*/*"))
    deadline = time.monotonic() + PATIENCE
    while cluster.call("squeue", "--noheader"):
        assert time.monotonic() < deadline, "the data job is in the queue still"
        time.sleep(0.5)


def test_a_refused_data_job_leaves_no_run(
    cluster: Cluster, orchestrator: CommandLine, submit: Callable[..., Said]
) -> None:
    said = submit("raw/books.jsonl", "--set", "launch.qos=debug", "--set", "launch.time=20h")
    assert said.code == 2, said.out
    assert not list((orchestrator.folder / "runs").glob("*/*"))
    assert cluster.call("squeue", "--noheader") == ""


def test_a_dry_run_shows_both_scripts(cluster: Cluster, submit: Callable[..., Any], tmp_path: Path) -> None:
    said = submit("raw/books.jsonl", "--dry-run", "--json")
    shown = json.loads(said.out)
    assert "orchestrator.data prepare" in shown["data_script"]
    assert "#SBATCH --dependency=afterok:DATA_JOB" in shown["script"]
    assert not (tmp_path / "runs").exists()
    assert cluster.call("squeue", "--noheader") == ""


def test_two_runs_that_lack_the_same_data_make_it_once(
    cluster: Cluster, orchestrator: CommandLine, submit: Callable[..., Said]
) -> None:
    assert submit("raw/books.jsonl").code == 0
    first = orchestrator.run()
    assert submit("raw/books.jsonl", "--new").code == 0
    second = orchestrator.run()
    assert first.path != second.path
    for run in (first, second):
        wait_for_state(run, "completed")
    made = [event["made"] for run in (first, second) for event in events(run, "data_prepared")]
    assert sorted(made) in ([["data/books"]], [[], ["data/books"]])  # the second may have found it there
