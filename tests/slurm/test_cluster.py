"""The cluster is what the tests on it take for granted: a real SLURM whose faults have their usual consequences.

SLURM takes its time over each of them, so a test plays several side by side, on nodes of their own.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from slurm.cluster import Cluster
from slurm.machine import wait_until

pytestmark = pytest.mark.timeout(600)


def output(folder: Path, job_id: int) -> list[str]:
    """The lines that a job's script has written so far."""
    file = folder / f"slurm-{job_id}.out"
    lines = file.read_text().splitlines() if file.exists() else []
    return [line for line in lines if not line.startswith("slurmstepd")]


def test_nodes_are_hosts_of_their_own_that_find_each_other_by_name(cluster: Cluster) -> None:
    assert cluster.node_states() == {"n1": "idle", "n2": "idle", "n3": "idle", "n4": "idle"}
    look_up = "import socket; print(socket.gethostname(), *map(socket.gethostbyname, ['n1', 'n2']))"
    lines = cluster.call("srun", "--nodes=4", "python3", "-c", look_up).splitlines()
    hosts = {line.split()[0]: tuple(line.split()[1:]) for line in lines}
    assert sorted(hosts) == cluster.nodes
    assert len(set(hosts.values())) == 1, "every node sees the same addresses"
    assert len(set(hosts["n1"])) == 2, "and each has one of its own"


def test_a_job_sees_the_gpus_that_it_asked_for(cluster: Cluster) -> None:
    show = 'echo "$CUDA_VISIBLE_DEVICES $SLURM_GPUS_ON_NODE"'
    assert cluster.call("srun", "--gres=gpu:2", "sh", "-c", show) == "0,1 2"
    assert cluster.call("srun", "--gres=gpu:h200:1", "sh", "-c", show) == "0 1"
    assert cluster.call("srun", "sh", "-c", show) == ""
    refused = subprocess.run(["srun", "--gres=gpu:3", "true"], capture_output=True, text=True)
    assert "Requested node configuration is not available" in refused.stderr


@pytest.mark.slow("SLURM takes ten seconds to preempt a job, and ten to start it again")
def test_a_job_that_is_requeued_or_preempted_is_told_and_starts_again(cluster: Cluster, tmp_path: Path) -> None:
    script = (
        'trap "echo TERM; exit" TERM; trap "echo USR1" USR1; echo ${SLURM_RESTART_COUNT:-0}; sleep 600 & wait; wait'
    )

    def submit(node: str, *options: str) -> int:
        job = cluster.submit(
            script, f"--nodelist={node}", "--exclusive", "--open-mode=append", *options, folder=tmp_path
        )
        wait_until(lambda: output(tmp_path, job) == ["0"], f"job {job} has started")
        return job

    requeued = submit("n1")
    preempted = submit("n2", "--partition=low", "--signal=B:USR1@10")

    cluster.call("scontrol", "requeue", str(requeued))
    urgent = cluster.submit("sleep 1", "--nodelist=n2", "--exclusive", folder=tmp_path)
    cluster.wait_for(requeued, "RUNNING", restarts=1)
    cluster.wait_for(urgent, "COMPLETED")
    cluster.wait_for(preempted, "RUNNING", restarts=1)
    wait_until(lambda: output(tmp_path, requeued)[-1] == "1", "the requeued job runs again")
    wait_until(lambda: output(tmp_path, preempted)[-1] == "1", "the preempted job runs again")
    assert output(tmp_path, requeued) == ["0", "TERM", "1"]
    assert output(tmp_path, preempted) == ["0", "USR1", "TERM", "1"]


@pytest.mark.slow("SLURM takes half a minute to give a node up")
def test_a_job_leaves_a_lost_node_and_yet_goes_on_there(cluster: Cluster, tmp_path: Path) -> None:
    beat = f'srun sh -c "at=\\$(hostname); while sleep 0.2; do echo >>{tmp_path}/$SLURM_JOB_ID-\\$at; done"'

    def beats(job_id: int, node: str) -> int:
        file = tmp_path / f"{job_id}-{node}"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def goes_on(job_id: int, node: str) -> None:
        before = beats(job_id, node)
        wait_until(lambda: beats(job_id, node) > before + 3, f"job {job_id} beats on {node}")

    silent = cluster.submit(beat, "--exclude=n3,n4", folder=tmp_path)
    cut_off = cluster.submit(beat, "--exclude=n1,n2", folder=tmp_path)
    goes_on(silent, "n1")
    goes_on(cut_off, "n3")
    # Beside it, since SLURM looks only every half minute whether a signal is due. A minute is the shortest limit.
    limited = cluster.submit(
        'trap "echo USR1" USR1; sleep 600 & wait', "--nodelist=n4", "--time=1", "--signal=B:USR1@60", folder=tmp_path
    )
    cluster.kill_slurmd("n1")
    cluster.cut("n3")
    for job, lost, other in ((silent, "n1", "n2"), (cut_off, "n3", "n4")):
        assert cluster.wait_for(job, "RUNNING", restarts=1)["NodeList"] == other
        goes_on(job, other)
        goes_on(job, lost)
    assert cluster.node_states() == {"n1": "down*", "n2": "mixed", "n3": "down*", "n4": "mixed"}
    ends = ["sacct", "--duplicates", "--format=State", f"--jobs={silent}"]
    wait_until(lambda: "NODE_FAIL" in cluster.call(*ends), "accounting knows why the job was started again")

    wait_until(lambda: output(tmp_path, limited) == ["USR1"], "the job is told of its time limit")

    cluster.kill_node("n2")
    before = beats(silent, "n2")
    goes_on(cut_off, "n3")
    assert beats(silent, "n2") == before
    cluster.restore()
    assert set(cluster.node_states().values()) == {"idle"}
    before = beats(cut_off, "n3")
    cluster.call("srun", "--nodelist=n3", "sleep", "0.5")
    assert beats(cut_off, "n3") == before


def test_jobs_outlive_a_controller_that_is_away(cluster: Cluster, tmp_path: Path) -> None:
    job = cluster.submit("sleep 600", folder=tmp_path)
    cluster.wait_for(job, "RUNNING")
    cluster.stop_controller()
    refused = subprocess.run(["squeue"], capture_output=True, text=True)
    assert "Unable to contact slurm controller" in refused.stderr
    cluster.start_controller()
    assert cluster.job_state(job) == "RUNNING"


def test_no_command_works_without_munge(cluster_without_accounting: Cluster) -> None:
    cluster_without_accounting.stop_munge()
    refused = subprocess.run(["squeue"], capture_output=True, text=True)
    assert refused.returncode != 0
    assert "munge" in refused.stderr.lower()


def test_accounting_refuses_what_a_qos_does_not_allow(cluster: Cluster, tmp_path: Path) -> None:
    job = cluster.submit("true", "--qos=debug", "--time=10", folder=tmp_path)
    shown = ["sacct", "--noheader", "--parsable2", "--allocations", "--format=State,Account,QOS", f"--jobs={job}"]
    wait_until(lambda: cluster.call(*shown) == "COMPLETED|research|debug", "sacct says how the job ended")
    sbatch = ["sbatch", "--qos=debug", "--time=60", str(tmp_path / "job.sh")]
    refused = subprocess.run(sbatch, capture_output=True, text=True)
    assert "QOSMaxWallDurationPerJobLimit" in refused.stderr


def test_a_cluster_without_accounting_beside_one_with(cluster: Cluster, cluster_without_accounting: Cluster) -> None:
    assert cluster_without_accounting.call("squeue", "--noheader") == ""
    refused = subprocess.run(["sacct"], capture_output=True, text=True)
    assert "accounting storage is disabled" in refused.stderr
    assert cluster.call("sacct", "--noheader", "--jobs=1") is not None
