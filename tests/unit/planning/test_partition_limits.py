"""What a cluster cannot give a job."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.problems import codes

from orchestrator.planning.checks.partition_limits import what_is_refused
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_text

JOB = """\
name: small
model: {num_layers: 4, hidden_size: 128, num_attention_heads: 4, seq_length: 128, vocab_size: 300}
parallelism: {tensor_model_parallel_size: 2}
batch: {micro_batch_size: 2, num_micro_batches: 2}
data: {random_tokens: true}
optimizer: {lr: 1e-3}
schedule: {train_iters: 100}
"""
PARTITIONS = {
    "gpu": {"nodes": 16, "gpus_per_node": 4, "cpus_per_node": 96, "memory_per_node": 1000000, "time_limit": "1d"},
    "cpu": {"nodes": 4, "gpus_per_node": 0, "cpus_per_node": 64, "memory_per_node": 256000, "time_limit": "2h"},
    "big": {"nodes": 64, "gpus_per_node": 8, "cpus_per_node": 128, "memory_per_node": 2000000, "time_limit": "7d"},
    "new": {},
}
KNOWN = {name: limits for name, limits in PARTITIONS.items() if limits}


def job(**launch: object) -> JobSpec:
    device = launch.pop("device", "auto")
    overrides = [f"launch.{key}={value}" for key, value in launch.items()]
    return load_text(JOB, overrides=[*overrides, f"runtime.device={device}"]).job


def cluster(**profile: object) -> ClusterSpec:
    return ClusterSpec.model_validate({"name": "alps", "partition": "gpu", "partitions": PARTITIONS, **profile})


def test_what_fits_is_not_refused() -> None:
    fitting = job(nodes=16, gpus_per_node=4, time="1d", memory_per_node="1000000M")
    assert what_is_refused(fitting, cluster(cpus_per_gpu=24)) == []


REFUSED: list[tuple[dict[str, object], dict[str, object], str]] = [
    ({"nodes": 17, "gpus_per_node": 4}, {}, "too_many_nodes launch.nodes"),
    ({"nodes": 2, "gpus_per_node": 8}, {}, "too_many_gpus launch.gpus_per_node"),
    ({"nodes": 1, "gpus_per_node": 10}, {}, "too_many_gpus launch.gpus_per_node"),
    ({"partition": "cpu"}, {}, "too_many_gpus launch.gpus_per_node"),
    ({"gpus_per_node": 4}, {"cpus_per_gpu": 32}, "too_many_cpus launch.gpus_per_node"),
    ({"memory_per_node": "1T"}, {}, "too_much_memory launch.memory_per_node"),
    ({}, {"memory_per_node": "3T"}, "too_much_memory launch.memory_per_node"),
    ({"time": "36h"}, {}, "time_above_limit launch.time"),
    ({"partition": "cpu,gpu", "time": "36h"}, {}, "time_above_limit launch.time"),
    ({"partition": "gpuu"}, {}, "unknown_partition launch.partition"),
    ({"time": "90s"}, {}, "stop_margin_above_time launch.stop_margin"),
    ({"nodes": 65, "gpus_per_node": 8}, {"partition": None, "partitions": KNOWN}, "too_many_nodes launch.nodes"),
]
"""A job's `launch`, the cluster's profile, and what is refused."""


@pytest.mark.parametrize(("launch", "profile", "expected"), REFUSED)
def test_what_is_refused(launch: dict[str, object], profile: dict[str, object], expected: str) -> None:
    assert codes(what_is_refused(job(**launch), cluster(**profile))) == [expected]


def test_everything_at_once() -> None:
    wrong = job(nodes=17, gpus_per_node=8, time="2d", memory_per_node="2T")
    found = {problem.paths[0] for problem in what_is_refused(wrong, cluster())}
    assert found == {"launch.nodes", "launch.gpus_per_node", "launch.time", "launch.memory_per_node"}


def test_what_is_not_known_is_not_checked() -> None:
    huge = {"nodes": 1000, "gpus_per_node": 64, "time": "90d", "memory_per_node": "900T"}
    assert what_is_refused(job(**huge), cluster(partition="new")) == []
    assert what_is_refused(job(**huge, partition="anything"), cluster(partition=None, partitions={})) == []


def test_without_a_partition_any_may_be_the_one() -> None:
    assert what_is_refused(job(nodes=64, gpus_per_node=8), cluster(partition=None, partitions=KNOWN)) == []


def test_a_job_on_cpus_needs_no_gpu() -> None:
    assert what_is_refused(job(partition="cpu", device="cpu", time="2h"), cluster()) == []


sizes = st.one_of(st.none(), st.integers(1, 200))


@given(nodes=st.integers(1, 100), gpus=st.integers(1, 16), most=st.fixed_dictionaries({"nodes": sizes, "gpus": sizes}))
def test_refused_is_what_is_more_than_there_is(nodes: int, gpus: int, most: dict[str, int | None]) -> None:
    partitions = {"only": {"nodes": most["nodes"], "gpus_per_node": most["gpus"]}}
    asked = job(nodes=nodes, gpus_per_node=gpus * 2)
    refused = {problem.paths[0] for problem in what_is_refused(asked, cluster(partition="only", partitions=partitions))}
    assert ("launch.nodes" in refused) == (most["nodes"] is not None and nodes > most["nodes"])
    assert ("launch.gpus_per_node" in refused) == (most["gpus"] is not None and gpus * 2 > most["gpus"])
