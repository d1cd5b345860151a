"""What the pods of a JobSet run, as processes here: one launch of the run between them, and one exit code of all."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.faults import Ranks
from support.gate import Gate
from support.light_forks import ForkedProgram, LightForks
from support.ranks import free_port
from support.stopping import request_stop

from orchestrator.executors.kubernetes.pod import START_AGAIN
from orchestrator.launch.processes.launch_processes import end_processes, ranks_of
from orchestrator.launch.runs import all_runs
from orchestrator.launch.states.run_states import status_of
from orchestrator.run_directory.lease import Lease
from orchestrator.run_directory.rundir import RunDir, write_atomically
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import dump_resolved
from tests.unit.launch.conftest import fork_torchrun
from tests.unit.launch.test_local import events, expected_losses, losses

MakeJob = Callable[..., JobSpec]
Until = Callable[..., None]


class Pods:
    """The pods of JobSets that share a volume, and what they said."""

    def __init__(self, forks: LightForks, runs_dir: Path, module: str) -> None:
        self.forks = forks
        self.runs_dir = runs_dir
        self.module = module
        self.started: list[tuple[ForkedProgram, str]] = []

    def start(
        self, job: JobSpec, index: int = 0, restarts: int = 0, uid: str = "uid-1", port: int = 0
    ) -> ForkedProgram:
        spec = self.runs_dir.parent / "spec"
        spec.mkdir(exist_ok=True)
        write_atomically(spec / "job.yaml", "name: tiny\n")  # a pod that was started before may read it this moment
        write_atomically(spec / "resolved.json", dump_resolved(job))
        incarnation = f"{uid}.{restarts}"
        variables = {
            "ORCHESTRATOR_INCARNATION": incarnation,
            "NODE_RANK": str(index),
            **({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)} if port else {}),
        }
        program = ["orchestrator.executors.kubernetes.pod", spec, self.runs_dir, "--module", self.module]
        with open(self.runs_dir.parent / f"pod-{index}.log", "ab") as output:
            pod = self.forks.start(*program, env={**os.environ, **variables}, output=output)
        self.started.append((pod, incarnation))
        return pod

    @property
    def run(self) -> RunDir:
        [run] = all_runs(self.runs_dir)
        return run

    def said(self, index: int = 0) -> str:
        return (self.runs_dir.parent / f"pod-{index}.log").read_text()

    def end(self) -> None:
        for pod, incarnation in self.started:
            pod.close()
            end_processes(incarnation)


@pytest.fixture
def pods(light_forks: LightForks, runs_dir: Path, fake_runtime: str) -> Iterator[Pods]:
    made = Pods(light_forks, runs_dir, fake_runtime)
    yield made
    made.end()


def reached(pods: Pods, step_of: Callable[[RunDir], int], step: int) -> bool:
    return bool(all_runs(pods.runs_dir)) and step_of(pods.run) == step


def test_a_pod_trains_the_job_and_another_set_has_nothing_left_to_do(pods: Pods, make_job: MakeJob) -> None:
    job = make_job()
    assert pods.start(job).wait(120) == 0
    run = pods.run
    assert run.job_yaml.read_text() == "name: tiny\n"
    assert losses(run) == expected_losses(20)
    assert events(run, "launched")[0]["launch_id"] == "uid-1.0"
    assert status_of(run).state == "completed"
    assert pods.start(job, uid="uid-2").wait(120) == 0
    assert len(events(run, "launched")) == 1
    assert f"{run.path} has completed already" in pods.said()


@pytest.mark.parametrize("index", [0, 1])
def test_two_pods_that_are_told_to_end_save_and_the_next_ones_go_on(
    pods: Pods,
    make_job: MakeJob,
    until: Until,
    step_of: Callable[[RunDir], int],
    gate: Gate,
    index: int,
) -> None:
    """As when a node is drained: SIGTERM reaches one pod, and all that run ask for another start."""
    job = make_job(launch={"nodes": 2, "gpus_per_node": 1, "env": gate.after(7)})
    port = free_port()
    both = [pods.start(job, each, port=port) for each in (0, 1)]
    until(lambda: reached(pods, step_of, 7))
    both[index].send_signal(signal.SIGTERM)
    assert [pod.wait(120) for pod in both] == [START_AGAIN, START_AGAIN]
    run = pods.run
    assert [event["cause"] for event in events(run, "exited")] == ["preempted"]
    assert re.match(r"SIGTERM.*; saved", events(run, "exited")[0]["message"])
    gate.open()
    port = free_port()
    both = [pods.start(job, each, restarts=1, port=port) for each in (0, 1)]
    assert [pod.wait(120) for pod in both] == [0, 0]
    assert [event["iteration"] for event in events(run, "resumed")] == [7]
    assert losses(run) == expected_losses(20)


def test_all_pods_end_as_the_first_says(
    pods: Pods, make_job: MakeJob, ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cause that comes back on every machine ends the set: none of its pods asks for another start."""
    fork_torchrun(ranks, monkeypatch)  # torchrun itself brings the pods together
    job = make_job(launch={"nodes": 2, "gpus_per_node": 1, "env": {"FAKE_END": "nan@3"}})
    port = free_port()
    both = [pods.start(job, each, port=port) for each in (1, 0)]
    assert [pod.wait(120) for pod in both] == [1, 1]
    assert [event["cause"] for event in events(pods.run, "exited")] == ["nan"]
    assert events(pods.run, "requeued") == []
    assert "after nan a run is not restarted (launch.on_failure)" in pods.said()


def test_a_killed_rank_asks_for_another_start_as_often_as_the_job_allows(
    pods: Pods, make_job: MakeJob, until: Until, step_of: Callable[[RunDir], int], gate: Gate
) -> None:
    job = make_job(launch={"env": gate.after(7), "max_requeues": 1})
    codes = []
    for restarts in (0, 1):
        pod = pods.start(job, restarts=restarts)
        until(lambda: reached(pods, step_of, 7) and ranks_of(pods.started[-1][1]).get(1))
        os.kill(ranks_of(pods.started[-1][1])[1], signal.SIGKILL)
        codes.append(pod.wait(120))
    assert codes == [START_AGAIN, 1]
    assert "it was restarted 1 times (launch.max_requeues)" in pods.said()
    gate.open()
    assert pods.start(job, uid="uid-2").wait(120) == 0  # another JobSet begins to count anew
    assert losses(pods.run) == expected_losses(20)


def test_a_start_that_saved_nothing_begins_again(
    pods: Pods, make_job: MakeJob, until: Until, step_of: Callable[[RunDir], int], gate: Gate
) -> None:
    job = make_job(launch={"env": gate.after(3)})
    pod = pods.start(job)
    until(lambda: reached(pods, step_of, 3))
    pod.send_signal(signal.SIGSTOP)  # all end at once, as where a container takes too much memory: nobody says why
    end_processes("uid-1.0")
    pod.kill()
    pod.wait()
    gate.open()
    assert pods.start(job, restarts=1).wait(120) == 0
    assert events(pods.run, "resumed") == []
    assert losses(pods.run) == expected_losses(20)


def test_a_stop_that_a_person_asks_for_is_no_failure(
    pods: Pods, make_job: MakeJob, until: Until, step_of: Callable[[RunDir], int], gate: Gate
) -> None:
    job = make_job(launch={"env": gate.after(3)})
    pod = pods.start(job)
    until(lambda: reached(pods, step_of, 3))
    request_stop(pods.run, "ada")
    assert pod.wait(120) == 0
    assert status_of(pods.run).state == "stopped"
    request_stop(pods.run, "ada")  # heard by nobody, since the set was about to start again
    assert pods.start(job, restarts=1).wait(120) == 0
    assert len(events(pods.run, "launched")) == 1
    assert [event["by"] for event in events(pods.run, "withdrawn")] == ["ada"]
    gate.open()
    assert pods.start(job, uid="uid-2").wait(120) == 0
    assert status_of(pods.run).state == "completed"


def test_a_later_start_of_the_set_takes_over_from_an_earlier_one(pods: Pods, make_job: MakeJob) -> None:
    """Of pods on a node that is cut off nobody knows whether they have ended."""
    job = make_job()
    run = RunDir(pods.runs_dir / job.name / job.config_hash[:8])
    run.path.mkdir(parents=True)
    (run.path / "resolved.json").write_text(dump_resolved(job))
    Lease.acquire(run, launch_id="uid-1.3")
    assert pods.start(job, restarts=4).wait(120) == 0
    assert status_of(run).state == "completed"


def test_a_job_that_cannot_start_is_said_once(pods: Pods, make_job: MakeJob) -> None:
    job = make_job(launch={"env": {"TOKEN": "${env:NOT_THERE_AT_ALL}"}})
    assert pods.start(job).wait(120) == 2
    assert "error: launch.env.TOKEN: ${env:NOT_THERE_AT_ALL} is used here" in pods.said()
