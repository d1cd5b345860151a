"""The scheduler's client and `cluster init` on a real SLURM. Jobs are played side by side: SLURM takes its time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slurm.cluster import Cluster
from slurm.machine import wait_until
from support.depth import examples
from support.refused import refused

from orchestrator.cluster_profiles import load_profile
from orchestrator.errors import SchedulerError, UserError
from orchestrator.executors.slurm.client import cancel, job_states, submit
from orchestrator.executors.slurm.discovery import discover
from orchestrator.executors.slurm.requeue_command import requeue
from orchestrator.fields.nodelist import compact_nodelist, expand_nodelist
from orchestrator.launch.executor_protocol import JobState
from orchestrator.planning.checks.partition_limits import what_is_refused
from orchestrator.spec.loading import load_text

pytestmark = pytest.mark.timeout(600)

HOSTILE = "a|b\nc $(touch x) 'd' \"e\" ;f"
JOB = """\
name: small
model: {preset: gpt-tiny, vocab_size: 300}
batch: {micro_batch_size: 2, num_micro_batches: 2}
data: {random_tokens: true}
optimizer: {lr: 1e-3}
schedule: {train_iters: 20}
"""


@pytest.fixture
def scripts(tmp_path: Path) -> Scripts:
    return Scripts(tmp_path)


class Scripts:
    """Batch scripts of one line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def submit(self, line: str, *options: str) -> str:
        path = self.folder / f"{len(list(self.folder.iterdir()))}.sh"
        path.write_text(f"#!/bin/bash\n{line}\n")
        return submit(path, [f"--output={self.folder}/%A_%a.out", *options])


def state_of(job_id: str) -> JobState:
    return job_states([job_id])[job_id]


def wait_for(job_id: str, *states: str) -> JobState:
    """What was seen when it was in one of the states: a moment later it may be in another."""
    found: list[JobState] = []

    def is_there() -> bool:
        found.append(state_of(job_id))
        return found[-1].state in states

    wait_until(is_there, lambda: f"job {job_id} is {' or '.join(states)}, but {found[-1]}")
    return found[-1]


@pytest.mark.slow("SLURM looks every half minute who is over the time limit")
def test_states_of_jobs_that_end_in_every_way(cluster_without_accounting: Cluster, scripts: Scripts) -> None:
    before = time.time()
    over_time = scripts.submit("sleep 600", "--time=1")
    good = scripts.submit("true", f"--job-name={HOSTILE}")
    failed = scripts.submit("exit 3")
    killed = scripts.submit("kill -9 $$")
    running = scripts.submit("sleep 600", "--nodes=2")
    cancelled = scripts.submit("sleep 600")
    dropped = scripts.submit("true", "--begin=now+600")
    waiting = scripts.submit("true", f"--dependency=afterok:{running}")
    again = scripts.submit("sleep 600", "--job-name=again")
    array = scripts.submit("sleep 600", "--array=0-2%1")
    wait_for(cancelled, "RUNNING")
    wait_for(again, "RUNNING")
    # The shortest limit is a minute: for a job that runs it can be less.
    wait_for(over_time, "RUNNING")
    cluster_without_accounting.call("scontrol", "update", f"JobId={over_time}", "EndTime=now+5")
    cancel([cancelled, dropped])
    requeue(again)
    # SLURM starts it again after ten seconds.
    put_back = wait_for(again, "PENDING")
    assert (put_back.restarts, put_back.started) == (1, None)

    assert (wait_for(good, "COMPLETED").exit_code, wait_for(failed, "FAILED").exit_code) == (0, 3)
    assert wait_for(killed, "FAILED").exit_code == 137
    ended = state_of(good)
    assert len(ended.nodes) == 1
    assert ended.submitted is not None
    assert ended.started is not None
    assert ended.ended is not None
    assert before - 2 <= ended.submitted <= ended.started <= ended.ended <= time.time() + 2
    held = wait_for(running, "RUNNING")
    assert (len(held.nodes), held.ended, held.exit_code, held.is_over) == (2, None, None, False)
    assert wait_for(cancelled, "CANCELLED").is_over
    assert (wait_for(dropped, "CANCELLED").started, state_of(dropped).nodes) == (None, ())
    assert (wait_for(waiting, "PENDING").reason, state_of(waiting).started) == ("Dependency", None)
    tasks = job_states([array])
    assert set(tasks) == {f"{array}_{task}" for task in range(3)}
    wait_until(lambda: state_of(f"{array}_0").state == "RUNNING", "the first task runs")
    assert state_of(f"{array}_2").state == "PENDING"
    assert job_states(["99999", "99998_1"]) == {}
    assert wait_for(over_time, "TIMEOUT").is_over
    assert wait_for(again, "RUNNING").restarts == 1


def test_states_that_only_accounting_remembers(
    cluster: Cluster, scripts: Scripts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = scripts.submit("true")
    failed = scripts.submit("exit 3")
    again = scripts.submit('[ -n "$SLURM_RESTART_COUNT" ] && exit 4; sleep 600', "--job-name=again")
    array = scripts.submit("exit $SLURM_ARRAY_TASK_ID", "--array=0-1")
    running = scripts.submit("sleep 600")
    wait_for(again, "RUNNING")
    requeue(again)
    for job_id in (good, failed, f"{array}_0", f"{array}_1", again):
        wait_for(job_id, "COMPLETED", "FAILED")
    wait_for(running, "RUNNING")
    everything = [good, failed, again, f"{array}_0", f"{array}_1"]
    remembered = job_states(everything)

    # squeue forgets a job MinJobAge after its end; this one has forgotten all of them.
    squeue = tmp_path / "bin" / "squeue"
    squeue.parent.mkdir()
    squeue.write_text("#!/bin/sh\nexit 0\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{squeue.parent}:{os.environ['PATH']}")
    wait_until(lambda: set(job_states(everything)) == set(everything), "accounting has caught up")
    found = job_states([*everything, running])
    assert running not in found, "who runs is known to squeue"
    for job_id in everything:
        now, then = found[job_id], remembered[job_id]
        assert (now.state, now.exit_code, now.nodes, now.restarts, now.submitted, now.started, now.ended) == (
            *(then.state, then.exit_code, then.nodes, then.restarts, then.submitted, then.started, then.ended),
        )
    assert (found[again].restarts, found[again].exit_code) == (1, 4)

    cluster.stop_accounting()
    try:
        heard: list[str] = []
        assert job_states([good], heard.append) == {}
        assert len(heard) == 1
        assert "accounting does not answer" in heard[0]
    finally:
        cluster.start_accounting()


def test_what_slurm_refuses(cluster: Cluster, scripts: Scripts) -> None:
    refused = {
        "--partition=gpuu": r"Invalid partition name specified \(--partition=gpuu\).*launch\.partition",
        "--account=nobody": r"Invalid account.*\(--account=nobody\).*launch\.account",
        "--qos=nope": r"Invalid qos.*\(--qos=nope\).*launch\.qos",
        "--gres=gpu:9": r"\(--gres=gpu:9\).*launch\.gpus_per_node",
        "--mem=900G": r"\(--mem=900G\).*launch\.memory_per_node",
        "--constraint=x": r"Invalid feature specification \(--constraint=x\)",
        "--exclude=nowhere": r"Invalid node name specified \(--exclude=nowhere\).*`exclude`",
        "--frobnicate=1": r"unrecognized option '--frobnicate=1'.*`options`",
    }
    for option, message in refused.items():
        with pytest.raises(UserError, match=rf"^SLURM refuses the job: .*{message}") as caught:
            scripts.submit("true", option)
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=r"QOSMaxWall.*launch\.qos"):
        scripts.submit("true", "--qos=debug", "--time=60")
    # Unless EnforcePartLimits is set, what is more than the partition gives is taken and waits for ever.
    too_long = scripts.submit("true", "--time=9-00:00:00")
    wait_until(lambda: state_of(too_long).reason == "PartitionTimeLimit", "9 days are too long")


def test_a_controller_that_is_away(cluster: Cluster, scripts: Scripts) -> None:
    job_id = scripts.submit("sleep 600")
    wait_for(job_id, "RUNNING")
    cluster.stop_controller()
    try:
        for question in (lambda: job_states([job_id]), lambda: scripts.submit("true"), lambda: cancel([job_id])):
            with pytest.raises(SchedulerError, match=r"^slurmctld, SLURM's controller, does not answer") as caught:
                question()
            assert "\n" not in str(caught.value)
    finally:
        cluster.start_controller()
    assert state_of(job_id).state == "RUNNING", "nothing was lost"


def test_munge_that_is_down(cluster_without_accounting: Cluster, scripts: Scripts) -> None:
    cluster_without_accounting.stop_munge()
    for question in (lambda: job_states(["1"]), lambda: scripts.submit("true"), discover):
        with pytest.raises(
            SchedulerError, match=r"^SLURM refuses to talk to this machine \(Munge encode failed"
        ) as caught:
            question()
        assert "\n" not in str(caught.value)


def test_signals_reach_the_batch_shell_alone(cluster: Cluster, scripts: Scripts, tmp_path: Path) -> None:
    said = tmp_path / "said"
    job_id = scripts.submit(f"trap 'echo stop >{said}; exit 0' USR1; echo up >{said}; sleep 600 & wait")
    wait_until(lambda: said.exists() and said.read_text() == "up\n", "the job runs")
    cancel([job_id], signal=signal.Signals.SIGUSR1.name)
    assert wait_for(job_id, "COMPLETED").exit_code == 0
    assert said.read_text() == "stop\n"
    cancel([job_id, "99999"])
    assert state_of(job_id).state == "COMPLETED", "what is over stays so"


numbered = st.tuples(st.from_regex(r"[a-z]{1,4}", fullmatch=True), st.integers(0, 1200), st.integers(0, 5))


@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(numbered, min_size=1, max_size=40))
def test_node_lists_are_read_as_scontrol_reads_them(
    cluster_without_accounting: Cluster, nodes: list[tuple[str, int, int]]
) -> None:
    text = compact_nodelist([f"{prefix}{number:0{width}d}" for prefix, number, width in nodes])
    said = subprocess.run(["scontrol", "show", "hostnames", text], capture_output=True, text=True, check=True)
    assert expand_nodelist(text) == said.stdout.split()
    short = subprocess.run(["scontrol", "show", "hostlist", text], capture_output=True, text=True, check=True)
    assert sorted(expand_nodelist(short.stdout)) == sorted(said.stdout.split())


def test_a_profile_of_a_live_cluster(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-m", "orchestrator", "cluster", "init", "-o", "clusters/live.yaml", "--yes"]
    finished = subprocess.run(command, capture_output=True, text=True)
    assert (finished.returncode, finished.stderr) == (0, "")
    profile = load_profile("live")
    assert (profile.partition, set(profile.partitions)) == ("main", {"main", "low"})
    main = profile.partitions["main"]
    assert (main.nodes, main.gpus_per_node, main.cpus_per_node, main.memory_per_node) == (4, 2, 16, 64000)
    assert (main.time_limit, profile.time, profile.cpus_per_gpu) == (86400, 86400, 8)
    assert (profile.account, profile.gpu_request) == ("research", "gres")

    def job(*words: str) -> list[str]:
        loaded = load_text(JOB, overrides=[f"launch.{word}" for word in words]).job
        return [problem.paths[0] for problem in what_is_refused(loaded, profile)]

    # What the profile lets through the cluster takes, and what it does not the cluster would have refused.
    assert job("nodes=4", "gpus_per_node=2", "time=1d") == []
    path = tmp_path / "job.sh"
    path.write_text("#!/bin/sh\ntrue\n")
    fits = ["--nodes=4", "--gres=gpu:2", "--cpus-per-task=16", "--time=1-0", "--account=research", "--partition=main"]
    assert submit(path, [*fits, f"--output={tmp_path}/out"])
    assert job("nodes=5", "gpus_per_node=2", "time=25h") == ["launch.nodes", "launch.time"]
    for words, option in {("gpus_per_node=3",): "--gres=gpu:3", ("memory_per_node=64001",): "--mem=64001"}.items():
        assert len(job(*words)) >= 1
        with refused("refused_submission"):
            submit(path, [*fits, option])
