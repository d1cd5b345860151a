"""What a person does with runs on a cluster: submit, look, cancel, resume; what they are told when SLURM refuses."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from slurm.cluster import Cluster
from support.commands import Commands, Said
from support.event_log import append_event
from support.faults import PATIENCE, QUICK_TORCHRUN, CommandLine, wait_until
from support.light_forks import LightForks
from support.training import events, four_layer_job

from orchestrator.launch.states.run_states import RunStatus, status_of
from orchestrator.run_directory.rundir import RunDir

pytestmark = pytest.mark.timeout(600)

FAKE_RUNTIME = Path(__file__).parents[1] / "unit" / "launch"


@pytest.fixture
def orchestrator(
    tmp_path: Path, commands: Commands, light_forks: LightForks, monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    """The command line in a project whose cluster is `test`, with a template that starts the fake training program."""
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "test.yaml").write_text(f"name: test\ntemplate: {tmp_path / 'fake.sbatch.j2'}\n")
    (tmp_path / "fake.sbatch.j2").write_text(
        '{% extends "slurm.sbatch.j2" %}\n'
        "{% block launch %}{{ super() | replace('orchestrator.runtime', 'fake_runtime') | as_is }}{% endblock %}"
    )
    for name, value in light_forks.variables(FAKE_RUNTIME, QUICK_TORCHRUN).items():
        monkeypatch.setenv(name, value)
    return CommandLine(tmp_path, commands)


@pytest.fixture
def write_job(orchestrator: CommandLine) -> Callable[..., Path]:
    """write_job(name, **launch): a spec file of one process on one node."""

    def write(name: str = "tiny", **launch: Any) -> Path:
        return orchestrator.write(
            four_layer_job(name, launch={"cluster": "test", **launch}, checkpoint={"save_interval": 5})
        )

    return write


def status(orchestrator: CommandLine, run: RunDir) -> dict[str, Any]:
    said = orchestrator("status", run.run_id, "--json")
    assert said.code == 0, said.err
    return json.loads(said.out)


def wait_for_state(run: RunDir, *states: str) -> RunStatus:
    deadline = time.monotonic() + PATIENCE
    while (found := status_of(run)).state not in states:
        assert time.monotonic() < deadline, f"waited for {states}: {found.describe()}"
        time.sleep(0.5)
    return found


def test_a_dry_run_shows_the_script_and_creates_nothing(
    cluster: Cluster, orchestrator: CommandLine, write_job: Callable[..., Path]
) -> None:
    said = orchestrator("submit", write_job(time="10m"), "--dry-run")
    assert said.code == 0, said.err
    assert "#SBATCH --time=0-00:10:00\n" in said.out
    assert "asking test for: --nodes=1" in said.err
    assert not (orchestrator.folder / "runs").exists()
    assert cluster.call("squeue", "--noheader") == ""


def test_a_run_waits_attaches_is_cancelled_and_resumed(
    cluster: Cluster, orchestrator: CommandLine, write_job: Callable[..., Path], tmp_path: Path
) -> None:
    blocker = cluster.submit("sleep 600", "--nodes=4", "--exclusive", folder=tmp_path)
    cluster.wait_for(blocker, "RUNNING")
    go_on = tmp_path / "go_on"
    told = tmp_path / "told"
    tells = ["sh", "-c", 'echo "$ORCHESTRATOR_OCCASION $ORCHESTRATOR_JOB_ID" >>"$0"', str(told)]
    notifications = json.dumps({"when": ["stopped"], "command": tells})
    job = (write_job(env={"FAKE_HOLD": f"3:{go_on}"}), "--set", f"notifications={notifications}")
    said = orchestrator("submit", *job)
    assert said.code == 0, said.err
    run = orchestrator.run()
    job_id = events(run, "submitted")[0]["job_id"]
    assert f"as job {job_id} on test" in said.out
    found = status(orchestrator, run)
    assert (found["state"], found["job_id"]) == ("queued", job_id)

    again = orchestrator("submit", *job)
    assert again.code == 0
    assert "already under way (queued" in again.out
    assert len(events(run, "submitted")) == 1
    held = orchestrator("resume", run.run_id)
    assert held.code == 2
    assert "already under way" in held.err

    cancelled = orchestrator("cancel", run.run_id)
    assert cancelled.code == 0, cancelled.err
    assert status(orchestrator, run)["state"] == "cancelled"
    cluster.wait_for(int(job_id), "CANCELLED")
    cluster.call("scancel", str(blocker))
    wait_until(lambda: bool(events(run, "notified")), "somebody is told")
    assert told.read_text() == f"stopped {job_id}\n"

    resumed = orchestrator("resume", run.run_id)
    assert resumed.code == 0, resumed.err
    wait_until(run.metrics_file.exists, "the first step")
    assert status(orchestrator, run)["state"] == "running"
    stopped = orchestrator("cancel", run.run_id)
    assert stopped.code == 0, stopped.err
    found = status(orchestrator, run)
    assert (found["state"], found["cause"]) == ("stopped", "stopped")
    assert found["checkpoints"][-1] == found["iteration"]
    third = status_of(run).job
    assert third is not None
    cluster.wait_for(int(third.job_id), "COMPLETED")

    go_on.touch()
    assert orchestrator("resume", run.run_id).code == 0
    wait_for_state(run, "completed")
    logs = orchestrator("logs", run.run_id, "--rank", "0")
    assert "rank 0 of 1 in launch test-" in logs.out


def test_one_run_after_another(
    cluster: Cluster, orchestrator: CommandLine, write_job: Callable[..., Path], tmp_path: Path
) -> None:
    go_on = tmp_path / "go_on"
    first = orchestrator("submit", write_job("first", env={"FAKE_HOLD": f"3:{go_on}"}), "--json")
    assert first.code == 0, first.err
    second = orchestrator("submit", write_job("second"), "--after", "first", "--json")
    assert second.code == 0, second.err
    waiting, job_id = RunDir(Path(json.loads(second.out)["path"])), json.loads(second.out)["job_id"]
    assert "Dependency" in status_of(waiting).describe()
    go_on.touch()
    wait_for_state(waiting, "completed")
    assert int(job_id) > int(json.loads(first.out)["job_id"])
    assert status_of(RunDir(Path(json.loads(first.out)["path"]))).state == "completed"


def test_a_failure_is_classified_shown_and_not_repeated(
    cluster: Cluster, orchestrator: CommandLine, write_job: Callable[..., Path]
) -> None:
    said = orchestrator("submit", write_job(env={"FAKE_END": "raise@7"}))
    assert said.code == 0, said.err
    run = orchestrator.run()
    wait_for_state(run, "failed")
    shown = orchestrator("status", run.run_id)
    assert "failed: the training program failed (ValueError: the fake has a bug)" in shown.out
    assert "rank-00000.log: ValueError: the fake has a bug" in shown.out
    assert [event["reason"] for event in events(run, "gave_up")] == [
        "after bug a run is not restarted (launch.on_failure)"
    ]


def test_a_failure_is_repeated_as_often_as_asked_for(
    cluster: Cluster, orchestrator: CommandLine, write_job: Callable[..., Path]
) -> None:
    launch = {"on_failure": {"bug": "requeue"}, "max_requeues": 1, "requeue_delay": 1}
    said = orchestrator("submit", write_job(env={"FAKE_END": "raise@7"}, **launch))
    assert said.code == 0, said.err
    run = orchestrator.run()
    wait_for_state(run, "failed")
    assert [event["cause"] for event in events(run, "exited")] == ["bug", "bug"]
    assert [event["delay"] for event in events(run, "requeued")] == [1.0]
    assert events(run, "gave_up")[0]["reason"] == "it was restarted 1 times (launch.max_requeues)"


def test_listing_many_runs_asks_at_most_twice(
    cluster: Cluster, orchestrator: CommandLine, write_job: Callable[..., Path], tmp_path: Path
) -> None:
    said = orchestrator("submit", write_job())
    assert said.code == 0, said.err
    first = orchestrator.run()
    wait_for_state(first, "completed")
    for number in range(100):
        run = RunDir(first.path.parent / f"{number:08x}")
        run.path.mkdir()
        (run.path / "resolved.json").write_bytes((first.path / "resolved.json").read_bytes())
        append_event(run, "created", run_id=run.run_id)
        append_event(run, "submitted", job_id=str(100000 + number), cluster="test")
    counted = tmp_path / "counted"
    counted.mkdir()
    for name in ("squeue", "sacct", "scontrol", "sinfo"):
        (counted / name).write_text(
            f'#!/bin/sh\necho {name} >>{tmp_path}/calls\nPATH="${{PATH#*:}}" exec {name} "$@"\n'
        )
        (counted / name).chmod(0o755)
    orchestrator.env["PATH"] = f"{counted}:{os.environ['PATH']}"
    listed = orchestrator("list", "--json")
    assert listed.code == 0, listed.err
    states = [entry["state"] for entry in json.loads(listed.out)]
    assert len(states) == 101
    assert states.count("lost") == 100
    assert sorted((tmp_path / "calls").read_text().split()) == ["sacct", "squeue"]


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "partition": ({"partition": "nowhere"}, "nowhere"),
    "qos": ({"qos": "debug", "time": "1h"}, "debug"),
    "gpus": ({"gpus_per_node": 5}, "gpu"),
    "account": ({"account": "nobody"}, "nobody"),
}


def one_clear_line(said: Said) -> str:
    assert "Traceback" not in said.err
    first = next(line for line in said.err.splitlines() if not line.startswith(("warning: ", " ")))
    assert first.startswith("error: ")
    return first


@pytest.mark.parametrize("what", REFUSALS)
def test_what_slurm_refuses_is_said_in_one_line_and_loses_nothing(
    what: str, cluster: Cluster, orchestrator: CommandLine
) -> None:
    launch, named = REFUSALS[what]
    parallelism = {"data_parallel_size": launch.get("gpus_per_node", 1)}
    batch = {"global_batch_size": 2 * launch.get("gpus_per_node", 1)}
    job = four_layer_job("tiny", launch={"cluster": "test", **launch}, parallelism=parallelism, batch=batch)
    said = orchestrator("submit", orchestrator.write(job))
    assert said.code == 2, said.out + said.err
    assert named in one_clear_line(said)
    assert not list((orchestrator.folder / "runs").glob("*")), "nothing is left behind"
    assert cluster.call("squeue", "--noheader") == ""


def test_nobody_answers(
    cluster_without_accounting: Cluster, orchestrator: CommandLine, write_job: Callable[..., Path], tmp_path: Path
) -> None:
    cluster, go_on = cluster_without_accounting, tmp_path / "go_on"
    job = write_job(env={"FAKE_HOLD": f"5:{go_on}"})
    said = orchestrator("submit", job)
    assert said.code == 0, said.err
    run = orchestrator.run()
    # An srun that is yet to begin would give up: its controller has two seconds to answer while it is stopped.
    wait_until(run.rank_log(0).exists, "the start")
    cluster.stop_controller()
    refused = orchestrator("submit", job, "--new")
    assert refused.code == 1
    assert "slurmctld, SLURM's controller, does not answer" in one_clear_line(refused)
    shown = orchestrator("status", run.run_id)
    assert shown.code == 0
    assert "according to the run directory" in shown.out
    cluster.start_controller()
    cluster.stop_munge()
    refused = orchestrator("submit", job, "--new")
    assert refused.code == 1
    assert "munge" in one_clear_line(refused)
    cluster.start_munge()
    go_on.touch()
    # SLURM itself may have put it back into the queue, if it had not got to know of the start.
    assert wait_for_state(run, "completed").iteration == 20
