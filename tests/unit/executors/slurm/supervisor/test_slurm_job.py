"""What SLURM tells a job about itself, and where its nodes meet."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.refused import refused

from orchestrator.executors.slurm.supervisor.node import rendezvous
from orchestrator.executors.slurm.supervisor.slurm_job import SlurmJob
from orchestrator.run_directory.lease import supersedes

ENVIRONMENT = {
    "SLURM_JOB_ID": "4711",
    "SLURM_CLUSTER_NAME": "lab",
    "SLURM_JOB_NODELIST": "gpu[007-009]",
    "SLURM_JOB_START_TIME": "1000",
}


def test_a_first_start() -> None:
    job = SlurmJob.of(ENVIRONMENT)
    assert (job.launch_id, job.nodes) == ("lab-4711.0", ("gpu007", "gpu008", "gpu009"))
    assert job.seconds_left(1000) is None


def test_a_restart_supersedes_the_start_before_and_listens_elsewhere() -> None:
    first, second = SlurmJob.of(ENVIRONMENT), SlurmJob.of({**ENVIRONMENT, "SLURM_RESTART_COUNT": "1"})
    assert supersedes(second.launch_id, first.launch_id)
    assert not supersedes(first.launch_id, second.launch_id)
    assert first.port != second.port


@pytest.mark.parametrize(("ends", "limit", "left"), [("1600", None, 100), (None, 700, 200), ("1600", 700, 100)])
def test_when_it_ends_by_slurms_word_or_by_the_limit_asked_for(
    ends: str | None, limit: float | None, left: float
) -> None:
    environment = {**ENVIRONMENT, **({"SLURM_JOB_END_TIME": ends} if ends else {})}
    assert SlurmJob.of(environment, time_limit=limit).seconds_left(1500) == left


def test_outside_a_job() -> None:
    with refused("not_in_a_slurm_job", "orchestrator submit"):
        SlurmJob.of({})


def test_all_nodes_meet_at_the_first() -> None:
    job = SlurmJob.of(ENVIRONMENT)
    first, third = rendezvous(job, 0), rendezvous(job, 2)
    assert first["PET_RDZV_ENDPOINT"] == third["PET_RDZV_ENDPOINT"] == f"gpu007:{job.port}"
    assert (first["PET_RDZV_CONF"], third["PET_RDZV_CONF"]) == ("is_host=1", "is_host=0")
    assert (third["NODE_NAME"], third["NODE_RANK"]) == ("gpu009", "2")
    assert 1024 < job.port < 32768


def test_a_node_begins_without_what_knows_jobs() -> None:
    program = "import sys, orchestrator.executors.slurm.supervisor.node; print([*sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "orchestrator.executors.slurm.supervisor.slurm_job" in loaded
    assert "orchestrator.spec" not in loaded
