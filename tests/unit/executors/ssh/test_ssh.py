"""Hosts that a job names, what a launch says of them, and what goes over the connection."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.problems import problems_of
from support.refused import refused
from support.training import layout, tiny_job

from orchestrator.errors import UserError
from orchestrator.executors.ssh.host import Launcher
from orchestrator.executors.ssh.messages import Ready, line_of, read_message, read_ready, ready_line
from orchestrator.launch.hosts import hosts_of
from orchestrator.planning.layout.elastic import node_counts, on_nodes
from orchestrator.run_directory.exits.classification import LogMarks, classify
from orchestrator.run_directory.exits.host_failures import HostFailure, read_host_failure, write_host_failure
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_text
from orchestrator.spec.sections.launch import LaunchSpec


def launch(*hosts: str, **fields: object) -> LaunchSpec:
    return LaunchSpec.model_validate({"executor": "ssh", "hosts": list(hosts), **fields})


def test_lists_of_hosts_and_each_once() -> None:
    assert hosts_of(launch("a", "node[01-03]", "me@b", "a")) == ["a", "node01", "node02", "node03", "me@b"]


def test_a_file_of_hosts(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# all\nn1 slots=8\n\n  n2  # the second\nn[3-4]\n")
    assert hosts_of(launch("n0", hosts_file=str(file))) == ["n0", "n1", "n2", "n3", "n4"]


@pytest.mark.parametrize(
    "content", [b"n1\n-oProxyCommand=x\n", b"n1\n$(x)\n", b"\xff\xfe", b"n1\n" * (1 << 19), b"None\n"]
)
def test_a_file_that_is_none(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_bytes(content)
    with pytest.raises(UserError):
        hosts_of(launch(hosts_file=str(tmp_path / "hosts")))


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "absent", "."):
        with pytest.raises(UserError):
            hosts_of(launch(hosts_file=str(tmp_path / name)))


def test_too_few_hosts() -> None:
    with refused("too_few_hosts", "launch.nodes: 3"):
        hosts_of(launch("n[1-2]", nodes=3))


@pytest.mark.parametrize("host", ["-oProxyCommand=touch x", "a b", "a;b", "None", "$(x)", "n[3-1]", ""])
def test_what_is_no_host(host: str) -> None:
    job = json.loads(tiny_job("hosts").model_dump_json(exclude_unset=True))
    job["launch"] = {"executor": "ssh", "hosts": [host]}
    problems = problems_of(lambda: load_text(json.dumps(job)))
    assert [problem.paths[0] for problem in problems] == ["launch.hosts[0]"]


def test_hosts_are_for_ssh_and_ssh_needs_some() -> None:
    job = json.loads(tiny_job("hosts").model_dump_json(exclude_unset=True))
    for section in ({"executor": "ssh"}, {"hosts": ["a"]}, {"hosts_file": "a", "executor": "slurm"}):
        found = problems_of(lambda launch=section: load_text(json.dumps({**job, "launch": launch})))
        assert [problem.code for problem in found] == ["hosts_of_ssh"]


@given(st.binary(max_size=200))
def test_any_line_is_a_message_or_none(line: bytes) -> None:
    found = read_message(line)
    if found is not None:
        assert read_ready(found[1]) is None or isinstance(read_ready(found[1]), Ready)


def test_messages_come_back_as_they_were() -> None:
    ready = Ready("10.0.0.1", 4000, ("n1", "n1.cluster"))
    kind, said = read_message(ready_line(ready)) or ("", None)
    assert (kind, read_ready(said)) == ("ready", ready)
    assert read_message(b"Welcome to n1\n") is None


def test_messages_that_arrive_together_are_all_heard() -> None:
    here, there = os.pipe()
    os.write(there, line_of("launch", "1") + b"\n" + line_of("start", {}) + line_of("stop", 1.5))
    os.close(there)
    launcher = Launcher(here)
    assert launcher.wait_for("launch") == "1"
    assert launcher.wait_for("start") == {}
    assert launcher.listen(0.0) == ("stop", 1.5)
    assert launcher.listen(0.0) is None
    assert launcher.is_gone
    os.close(here)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path)
    run.logs.mkdir()
    return run


def test_lost_hosts_are_the_cause_of_their_launch_alone(run: RunDir) -> None:
    marks = LogMarks.of(run)
    run.launcher_log.write_text("=== lost n7: a rank may print this\nValueError: 3\n")
    assert classify(run, "l1", 1, marks).cause == "bug"
    write_host_failure(run, HostFailure("l1", ("n1", "n2"), "Timeout,\n  server n1 not responding."))
    end = classify(run, "l1", 255, marks)
    assert (end.cause, end.node) == ("node_fail", "n1,n2")
    assert "\n" not in end.message
    assert classify(run, "l2", 1, marks).cause == "bug"
    write_host_failure(run, HostFailure("l2", (), "1 of 2 hosts can start this job (n2: Connection refused)"))
    assert classify(run, "l2", 1, marks).cause == "user_error"


@pytest.mark.parametrize("content", ["", "[]", "null", '{"launch_id": "l1", "hosts": 3, "why": null}', "{" * 100_000])
def test_any_file_of_failures_can_be_read(content: str, run: RunDir) -> None:
    (run.logs / "hosts.json").write_text(content)
    found = read_host_failure(run, "l1")
    assert found is None or found.hosts == ()


def elastic_job(dp: int = 4, tp: int = 1, **batch: Any) -> JobSpec:
    return tiny_job(
        "elastic",
        parallelism=layout(tp=tp, dp=dp),
        launch={"executor": "ssh", "hosts": ["h[1-4]"], "nodes": 4, "min_nodes": 1},
        batch={"micro_batch_size": 1, "global_batch_size": 8, **batch},
    )


def test_a_job_on_fewer_nodes_has_fewer_replicas_and_the_same_global_batch() -> None:
    job = elastic_job(global_batch_size=None, num_micro_batches=2)
    assert node_counts(job) == [4, 2, 1]  # 8 sequences are not those of 3 replicas
    fewer = on_nodes(job, 2)
    assert (fewer.world_size, fewer.data_parallel_size, fewer.num_micro_batches) == (2, 2, 4)
    assert fewer.global_batch_size == job.global_batch_size
    assert on_nodes(job, 4) == job


def test_a_job_on_fewer_nodes_has_whole_replicas() -> None:
    assert node_counts(elastic_job(dp=2, tp=2)) == [4, 2]


def test_a_layout_that_does_not_allow_fewer_nodes() -> None:
    with refused("min_nodes_not_possible", "3", "4"):
        node_counts(elastic_job(dp=1, tp=4))


def test_fewest_nodes_are_for_ssh_and_at_most_the_nodes() -> None:
    job = json.loads(tiny_job("hosts").model_dump_json(exclude_unset=True))
    too_many = {"executor": "ssh", "hosts": ["a"], "min_nodes": 2}
    for section, code in (({"min_nodes": 1}, "hosts_of_ssh"), (too_many, "fewest_nodes")):
        found = problems_of(lambda launch=section: load_text(json.dumps({**job, "launch": launch})))
        assert [problem.code for problem in found] == [code]
