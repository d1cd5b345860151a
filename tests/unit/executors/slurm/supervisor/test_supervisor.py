"""One incarnation with stand-ins for srun and SLURM's commands: what it writes down, and what it asks for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.clock import own_clock
from support.event_log import append_event
from support.fake_slurm import FakeSlurm
from support.light_forks import LightForks
from support.limits import set_limits
from support.refusals import before
from support.training import events, make_run, tiny_job

from orchestrator.cli.main import main
from orchestrator.executors.slurm import requeue_command
from orchestrator.executors.slurm.supervisor.slurm_job import SlurmJob
from orchestrator.executors.slurm.supervisor.supervisor import Commands, supervise
from orchestrator.launch.processes.stop_request import request_stop
from orchestrator.launch.states.run_states import status_of
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import dump_resolved

SQUEUE = "{id}|RUNNING|{restarts}|0|1000|1000|2000|n1|None|\n"


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    fake = FakeSlurm(tmp_path / "slurm")
    fake.says("squeue", SQUEUE.format(id=7, restarts=0))
    fake.says("sacct", err="sacct: error: Slurm accounting storage is disabled", code=1)
    fake.says("scontrol")
    monkeypatch.setenv("PATH", f"{fake.bin}:{os.environ['PATH']}")
    return fake


@pytest.fixture
def run(tmp_path: Path, light_forks: LightForks, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """Of a job whose programs are forked."""
    for name, value in light_forks.variables().items():
        monkeypatch.setenv(name, value)
    run = make_run(tmp_path / "runs", tiny_job("tiny"))
    run.logs.mkdir()
    run.launcher_log.touch()
    append_event(run, "submitted", job_id="7", cluster="lab")
    return run


def incarnation(restarts: int = 0, ends_in: float = 10_000) -> SlurmJob:
    return SlurmJob("7", restarts, "lab", ("n1", "n2"), time.time(), time.time() + ends_in)


def start(
    run: RunDir,
    script: str,
    *,
    job: SlurmJob | None = None,
    notifications: dict[str, Any] | None = None,
    **launch: Any,
) -> int:
    """Supervise a shell script in place of srun; what it prints goes where the batch script's output goes."""
    program = f"exec >>{run.launcher_log} 2>&1\n{script}"
    commands = Commands(["bash", "-c", program], [sys.executable], health_check=False, from_scratch=False)
    spec: JobSpec = tiny_job("tiny", launch=launch, notifications=notifications or {})
    if notifications:
        (run.path / "resolved.2.json").write_text(dump_resolved(spec))
    return supervise(run, spec, job or incarnation(), commands)


def word(run: RunDir, cause: str, launch_id: str = "lab-7.0") -> str:
    """Shell text by which rank 0 says how it ended."""
    path = run.exit_record(launch_id, 0)
    record = json.dumps({"cause": cause, "message": "", "iteration": 9})
    return f"mkdir -p {path.parent}; echo '{record}' >{path}"


def test_a_training_that_completes(run: RunDir, slurm: FakeSlurm) -> None:
    assert start(run, word(run, "completed")) == 0
    [launched], [exited] = events(run, "launched"), events(run, "exited")
    assert (launched["launch_id"], launched["nodes"], launched["restart"]) == ("lab-7.0", ["n1", "n2"], 0)
    assert (exited["cause"], exited["iteration"]) == ("completed", 9)
    assert slurm.calls("scontrol") == []


@pytest.mark.parametrize(("ends_in", "cause"), [(60, "time_limit"), (10_000, "preempted")])
def test_slurms_notice(run: RunDir, slurm: FakeSlurm, ends_in: float, cause: str) -> None:
    script = f"kill -USR1 $PPID; until [ -e {run.stop_file} ]; do sleep 0.05; done; {word(run, 'stopped')}"
    assert start(run, script, job=incarnation(ends_in=ends_in)) == 1
    assert [event["cause"] for event in events(run, "exited")] == [cause]
    assert [(event["by"], event["delay"]) for event in events(run, "requeued")] == [("orchestrator", 0.0)]
    assert slurm.calls("scontrol") == [["requeue", "7"]]
    assert not run.stop_file.exists()


def test_a_person_asks_for_a_stop(run: RunDir, slurm: FakeSlurm) -> None:
    assert start(run, f"echo '{{}}' >{run.stop_file}; {word(run, 'stopped')}") == 0
    assert [event["cause"] for event in events(run, "exited")] == ["stopped"]
    assert slurm.calls("scontrol") == []


def test_a_person_asks_for_a_stop_before_slurms_notice(run: RunDir, slurm: FakeSlurm) -> None:
    """What was asked for first counts: the job does not come back."""
    heard = "sleep 1"  # for the notice
    script = f"echo '{{}}' >{run.stop_file}; kill -USR1 $PPID; {heard}; {word(run, 'stopped')}"
    assert start(run, script, job=incarnation(ends_in=60)) == 0
    assert [event["cause"] for event in events(run, "exited")] == ["stopped"]
    assert slurm.calls("scontrol") == []


def test_a_person_asks_for_a_stop_and_it_fails(run: RunDir, slurm: FakeSlurm) -> None:
    assert start(run, f"echo '{{}}' >{run.stop_file}; exit 1", on_failure={"bug": "requeue"}) == 1
    assert [event["cause"] for event in events(run, "exited")] == ["bug"]
    assert [event["job_id"] for event in events(run, "withdrawn")] == ["7"]
    assert (slurm.calls("scontrol"), events(run, "requeued")) == ([], [])
    assert (status_of(run).state, status_of(run).cause) == ("cancelled", "cancelled")


def test_a_person_asks_for_a_stop_while_slurm_starts_it_again(run: RunDir, slurm: FakeSlurm) -> None:
    append_event(run, "launched", launch_id="lab-7.0", job_id="7", restart=0, nodes=["n1"])
    request_stop(run, "orchestrator cancel")
    assert start(run, word(run, "completed", "lab-7.1"), job=incarnation(1)) == 0
    assert (len(events(run, "launched")), run.stop_file.exists()) == (1, False)
    assert (status_of(run).state, status_of(run).cause) == ("cancelled", "cancelled")


def test_a_job_that_goes_back_into_the_queue_while_it_is_cancelled_is_taken_out(
    run: RunDir, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_event(run, "launched", launch_id="lab-7.0", job_id="7", restart=0, nodes=["n1"])
    slurm.says("scancel")

    def requeued(seconds: float) -> None:
        slurm.says("squeue", SQUEUE.format(id=7, restarts=1).replace("RUNNING", "PENDING"))

    set_limits(monkeypatch, between_questions_about_a_job=0.0)
    before(monkeypatch, "time.sleep", requeued)
    assert main(["cancel", str(run.path)]) == 0
    assert slurm.calls("scancel") == [["7"]]
    assert (status_of(run).state, events(run, "withdrawn")[0]["by"]) == ("cancelled", "orchestrator cancel")


@pytest.mark.parametrize("by", ["SIGUSR1", "the batch script was killed"])
def test_what_a_killed_incarnation_asked_its_ranks_is_no_word_of_a_person(
    run: RunDir, slurm: FakeSlurm, by: str
) -> None:
    append_event(run, "launched", launch_id="lab-7.0", job_id="7", restart=0, nodes=["n1"])
    request_stop(run, by, to_go_on=True)
    assert start(run, word(run, "completed", "lab-7.1"), job=incarnation(1)) == 0
    assert (status_of(run).state, events(run, "withdrawn")) == ("completed", [])


def test_a_failure_comes_back_later(run: RunDir, slurm: FakeSlurm) -> None:
    assert start(run, "exit 1", on_failure={"bug": "requeue"}, requeue_delay=45) == 1
    assert slurm.calls("scontrol") == [["requeue", "7"], ["update", "JobId=7", "StartTime=now+45"]]


def test_a_failure_that_stays(run: RunDir, slurm: FakeSlurm) -> None:
    assert start(run, "exit 1") == 1
    assert [event["cause"] for event in events(run, "gave_up")] == ["bug"]
    assert slurm.calls("scontrol") == []


TIMES_UP = "kill -USR1 $PPID; until [ -e {stop} ]; do sleep 0.05; done; {word}"


def told(tmp_path: Path, when: list[str]) -> dict[str, Any]:
    """Notifications by a command that keeps what it is told."""
    keeps = 'printf "%s %s\\n" "$ORCHESTRATOR_OCCASION" "$ORCHESTRATOR_CAUSE" >>"$0"'
    return {"command": ["sh", "-c", keeps, str(tmp_path / "told")], "when": when, "timeout": 120}


def test_a_run_that_goes_on_tells_nobody_of_each_requeue(run: RunDir, slurm: FakeSlurm, tmp_path: Path) -> None:
    script = TIMES_UP.format(stop=run.stop_file, word=word(run, "stopped"))
    start(run, script, job=incarnation(ends_in=60), notifications=told(tmp_path, ["completed", "failed"]))
    assert slurm.calls("scontrol") == [["requeue", "7"]]
    assert not (tmp_path / "told").exists()
    done = word(run, "completed", "lab-7.1")
    start(run, done, job=incarnation(1), notifications=told(tmp_path, ["completed", "failed"]))
    assert (tmp_path / "told").read_text() == "completed completed\n"


def test_each_requeue_is_told_of_where_that_is_asked_for(run: RunDir, slurm: FakeSlurm, tmp_path: Path) -> None:
    script = TIMES_UP.format(stop=run.stop_file, word=word(run, "stopped"))
    start(run, script, job=incarnation(ends_in=60), notifications=told(tmp_path, ["started", "requeued"]))
    wait(lambda: (tmp_path / "told").exists() and len((tmp_path / "told").read_text().splitlines()) == 2)
    assert sorted((tmp_path / "told").read_text().splitlines()) == ["requeued time_limit", "started "]


def test_a_run_that_stays_after_its_time_limit_is_told_of_once(run: RunDir, slurm: FakeSlurm, tmp_path: Path) -> None:
    script = TIMES_UP.format(stop=run.stop_file, word=word(run, "stopped"))
    ways = told(tmp_path, ["completed", "failed"])
    start(run, script, job=incarnation(ends_in=60), notifications=ways, max_requeues=0)
    assert (tmp_path / "told").read_text() == "failed time_limit\n"


def test_a_job_that_cannot_go_back_into_the_queue_is_told_of(
    run: RunDir, slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_limits(monkeypatch, between_requeues=0.01, to_insist_on_a_requeue=0.1)
    slurm.says("scontrol", err="slurm_load_jobs error: Unable to contact slurm controller (connect failure)", code=1)
    start(run, "exit 1", on_failure={"bug": "requeue"}, notifications=told(tmp_path, ["completed", "failed"]))
    assert (tmp_path / "told").read_text() == "failed bug\n"


def test_the_controller_is_away_when_the_step_begins(
    run: RunDir, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    set_limits(monkeypatch, between_job_steps=0.01)
    refusal = "srun: error: Unable to confirm allocation for job 7: Unable to contact slurm controller"
    script = f"echo x >>{tmp_path}/tries; [ $(wc -l <{tmp_path}/tries) = 3 ] || {{ echo '{refusal}'; exit 1; }}"
    assert start(run, f"{script}; {word(run, 'completed')}") == 0
    assert [event["cause"] for event in events(run, "exited")] == ["completed"]


def test_slurm_says_that_the_job_was_started_again_meanwhile(run: RunDir, slurm: FakeSlurm) -> None:
    """A batch script on a node that SLURM has lost must not put the later start back into the queue."""
    slurm.says("squeue", SQUEUE.format(id=7, restarts=1))
    start(run, "exit 1", on_failure={"bug": "requeue"})
    assert slurm.calls("scontrol") == []


def test_a_stale_incarnation_writes_nothing(run: RunDir, slurm: FakeSlurm) -> None:
    later = '{"time": 1, "event": "launched", "launch_id": "lab-7.1", "job_id": "7"}'
    start(run, f"echo '{later}' >>{run.events_file}; kill -TERM $PPID; sleep 0.5; {word(run, 'lease_lost')}; exit 1")
    assert events(run, "exited") == events(run, "requeued") == []
    assert not run.stop_file.exists()
    assert slurm.calls("scontrol") == []


@pytest.mark.parametrize(("states", "cause"), [("NODE_FAIL\nRUNNING\n", "node_fail"), ("", "lost")])
def test_the_next_start_tells_the_end_that_nobody_lived_to_tell(
    run: RunDir, slurm: FakeSlurm, states: str, cause: str
) -> None:
    append_event(run, "launched", launch_id="lab-7.0", job_id="7")
    slurm.says("sacct", states)
    start(run, word(run, "completed", "lab-7.1"), job=incarnation(restarts=1))
    told = [(event["launch_id"], event["cause"]) for event in events(run, "exited")]
    assert told == [("lab-7.0", cause), ("lab-7.1", "completed")]
    assert [event["by"] for event in events(run, "requeued")] == ["slurm"]


def test_a_controller_that_is_away_is_asked_again(
    run: RunDir, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    # Its own clock: how long a question takes is nobody's business here.
    own_clock(
        monkeypatch, "orchestrator.executors.slurm.requeue_command", SimpleNamespace(monotonic=lambda: now, sleep=sleep)
    )
    set_limits(monkeypatch, to_insist_on_a_requeue=2 * requeue_command.SECONDS_BETWEEN_ATTEMPTS)
    slurm.says("scontrol", err="slurm_load_jobs error: Unable to contact slurm controller (connect failure)", code=1)
    start(run, "exit 1", on_failure={"bug": "requeue"})
    assert len(slurm.calls("scontrol")) == 4
    [failed] = events(run, "requeue_failed")
    assert "does not answer" in failed["message"]


NODE = """
import os, sys, time
from types import SimpleNamespace
from orchestrator.executors.slurm.supervisor import node, node_guard

def sleep(seconds):
    with open(os.environ["LOOKS"], "a") as file:
        file.write("x")
    time.sleep(seconds)

node_guard.time = SimpleNamespace(sleep=sleep)
sys.exit(node.main())
"""
"""The node program, which leaves a letter in the file $LOOKS each time that it has looked around."""


@pytest.fixture
def beside(run: RunDir, slurm: FakeSlurm, tmp_path: Path) -> Callable[[str, str], subprocess.Popen[str]]:
    """beside(batch script, program): a batch script that starts the node program, and lives or dies."""

    def begin(batch: str, program: str) -> subprocess.Popen[str]:
        (tmp_path / "node.py").write_text(NODE)
        (tmp_path / "batch.py").write_text(
            "import json, os, subprocess, sys\n"
            "from orchestrator.process import Process\n"
            "environment = {**os.environ, 'ORCHESTRATOR_SUPERVISOR': json.dumps(Process.current().to_record())}\n"
            f"command = [sys.executable, {str(tmp_path / 'node.py')!r}, {str(run.path)!r}, 'bash', '-c', {program!r}]\n"
            "child = subprocess.Popen(command, env=environment, start_new_session=True)\n"
            "print(child.pid, flush=True)\n" + batch
        )
        names = {"SLURM_JOB_ID": "7", "SLURM_CLUSTER_NAME": "lab", "SLURM_JOB_NODELIST": "n1", "SLURM_NODEID": "0"}
        names["LOOKS"] = str(tmp_path / "looks")
        append_event(run, "launched", launch_id="lab-7.0", job_id="7")
        return subprocess.Popen(
            [sys.executable, str(tmp_path / "batch.py")], env={**os.environ, **names}, stdout=subprocess.PIPE, text=True
        )

    return begin


def ended(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def wait(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_node_program_takes_over_from_a_killed_batch_script(
    run: RunDir, slurm: FakeSlurm, beside: Callable[[str, str], subprocess.Popen[str]]
) -> None:
    begun = run.path / "begun"
    program = f"touch {begun}; until [ -e {run.stop_file} ]; do sleep 0.05; done; sleep 0.5"
    with beside("child.wait()", program) as batch:
        assert batch.stdout is not None
        node = int(batch.stdout.readline())
        wait(begun.exists)
        batch.kill()
    wait(lambda: ended(node))
    assert [event["cause"] for event in events(run, "exited")] == ["killed"]
    assert ["requeue", "7"] in slurm.calls("scontrol")


def test_a_job_that_slurm_ends_is_not_raised_from_the_dead(
    run: RunDir, slurm: FakeSlurm, beside: Callable[[str, str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    """scancel: everything is sent SIGTERM, and the batch script is killed when it takes too long."""
    begun, over = run.path / "begun", run.path / "over"

    def wait_for_a_look() -> None:
        # The second one from now: the first may have begun before.
        seen = (tmp_path / "looks").stat().st_size
        wait(lambda: (tmp_path / "looks").stat().st_size >= seen + 2)

    with beside("child.wait()", f"touch {begun}; until [ -e {over} ]; do sleep 0.05; done") as batch:
        assert batch.stdout is not None
        node = int(batch.stdout.readline())
        wait(begun.exists)
        wait((tmp_path / "looks").exists)
        os.kill(node, signal.SIGTERM)
        wait_for_a_look()
        batch.kill()
    wait_for_a_look()
    over.touch()
    wait(lambda: ended(node))
    assert slurm.calls("scontrol") == []
    assert events(run, "exited") == []


@pytest.mark.parametrize(
    ("restarts", "asked", "before", "anew"),
    [
        (0, False, [], False),
        (0, True, [], True),
        (1, False, ["started"], True),
        (1, False, ["started", "checkpoint_saved"], False),
        (1, True, ["started", "checkpoint_saved"], False),
    ],
)
def test_a_job_that_was_ended_before_its_first_checkpoint_begins_again(
    run: RunDir, slurm: FakeSlurm, tmp_path: Path, restarts: int, asked: bool, before: list[str], anew: bool
) -> None:
    """Nothing was ever saved, so nothing is lost; a checkpoint that was saved and is gone is for a person to see."""
    for event in before:
        append_event(run, event, iteration=5)
    slurm.says("squeue", SQUEUE.format(id=7, restarts=restarts))
    program = f'printf "%s\\n" "$@" >{tmp_path}/words; {word(run, "completed", f"lab-7.{restarts}")}'
    commands = Commands(["bash", "-c", program], ["python"], health_check=False, from_scratch=asked)
    assert supervise(run, tiny_job("tiny"), incarnation(restarts=restarts), commands) == 0
    assert ("--from-scratch" in (tmp_path / "words").read_text().splitlines()) is anew
