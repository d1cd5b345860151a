"""A job of several machines: started on the first, which says what to start on the others."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.event_log import lines_of
from support.faults import Ranks
from support.ranks import free_port
from support.refused import refused
from support.stopping import stopped_once_launched

from orchestrator.launch.local.launcher import Severity, Watcher, launch
from orchestrator.launch.runs import all_runs
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from tests.unit.launch.conftest import fork_torchrun, start_nothing

Run = Callable[[JobSpec], RunDir]
MakeJob = Callable[..., JobSpec]
Orchestrator = Callable[..., tuple[int, str, str]]


@pytest.fixture
def real_torchrun(fake_runtime: str, ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that are started by torchrun itself: it is what brings the machines together."""
    fork_torchrun(ranks, monkeypatch)


@pytest.fixture
def first_of_two(make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job of two machines, to be started on the first of them."""
    monkeypatch.setenv("MASTER_ADDR", "node1")
    monkeypatch.setenv("NODE_RANK", "0")
    (tmp_path / "my project").mkdir()
    monkeypatch.chdir(tmp_path / "my project")
    path = tmp_path / "job.yaml"
    path.write_text(make_job(launch={"nodes": 2, "gpus_per_node": 1}).model_dump_json(exclude_unset=True))
    return path


def command_on_the_second(runs_dir: Path, launch_id: str) -> str:
    (run,) = all_runs(runs_dir)
    variables = f"MASTER_ADDR=node1 NODE_RANK=1 ORCHESTRATOR_LAUNCH_ID={launch_id}"
    return f"cd '{Path.cwd()}' && {variables} bash {run.launch_script}"


@pytest.mark.parametrize("as_json", [False, True])
def test_a_start_in_the_background_says_what_to_start_on_the_others(
    orchestrator: Orchestrator, first_of_two: Path, runs_dir: Path, monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    start_nothing(monkeypatch, "launched-now")
    code, out, err = orchestrator("run", first_of_two, "--detach", *(["--json"] if as_json else []))
    assert code == 0
    assert "tensor-parallel groups of 2 span machines of 1 GPU" in err
    said = json.loads(out)["command_elsewhere"] if as_json else out.splitlines()[-1].strip()
    assert said == command_on_the_second(runs_dir, "launched-now")


@pytest.mark.parametrize("as_json", [False, True])
def test_a_start_in_the_foreground_says_what_to_start_on_the_others(
    orchestrator: Orchestrator, first_of_two: Path, runs_dir: Path, as_json: bool
) -> None:
    """With --json on standard error, where it can be read before the object at the end."""
    with stopped_once_launched(runs_dir, at_once=True):
        code, out, err = orchestrator("run", first_of_two, *(["--json"] if as_json else []))
    assert code == 1
    (run,) = all_runs(runs_dir)
    (launch_id,) = (event["launch_id"] for event in lines_of(run) if event["event"] == "launched")
    said = (err if as_json else out).splitlines()
    first = said.index("waiting for the other machines; start this on each, with its own NODE_RANK:")
    assert said[first + 1].strip() == command_on_the_second(runs_dir, launch_id)
    # Ranks that see the request first stop by themselves.
    assert not as_json or json.loads(out)["state"] in ("cancelled", "stopped")


def test_several_machines_without_addresses(make_job: MakeJob, make_run: Run) -> None:
    job = make_job(launch={"nodes": 2, "gpus_per_node": 1})
    with refused("several_machines", "MASTER_ADDR", "NODE_RANK"):
        launch(make_run(job), job)


@pytest.mark.usefixtures("real_torchrun")
def test_the_others_are_started_as_the_first_says(
    make_job: MakeJob, make_run: Run, fake_runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two "machines" are two launch scripts here; the second is started as the first says. The numbers of machines
    order the ranks: rank 0 holds the lease and is on the machine of the launcher, NODE_RANK 0.
    """
    job = make_job(launch={"nodes": 2, "gpus_per_node": 1})
    run = make_run(job)
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "NODE_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    others: list[subprocess.Popen[bytes]] = []

    class StartTheOther(Watcher):
        def say(self, message: str, severity: Severity | None = None) -> None:
            command = message.splitlines()[-1].strip()
            elsewhere = {name: value for name, value in os.environ.items() if not name.startswith("MASTER_")}
            with open(run.logs / "other.log", "wb") as log:
                others.append(subprocess.Popen(["bash", "-c", command], stdout=log, stderr=log, env=elsewhere, cwd="/"))

    end = launch(run, job, module=fake_runtime, watcher=StartTheOther())
    assert [other.wait(120) for other in others] == [0]
    assert end.cause == "completed"
    (launch_id,) = (event["launch_id"] for event in lines_of(run) if event["event"] == "launched")
    for rank in (0, 1):
        assert run.rank_log(rank).read_text() == f"rank {rank} of 2 in launch {launch_id} on machine {rank}\n"
