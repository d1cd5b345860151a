"""The scheduler's client, over commands that replay what SLURM 22.05 and 24.11 said."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from support.limits import set_limits
from support.refusals import before
from support.refused import refused

from orchestrator.errors import PerhapsSubmitted, SchedulerError, UserError
from orchestrator.executors.slurm import commands
from orchestrator.executors.slurm.client import cancel, job_states, submit
from orchestrator.executors.slurm.requeue_command import requeue
from orchestrator.launch.executor_protocol import JobState

SQUEUE = """\
4|CANCELLED|0|15|1795191064|1795191064|1795191066|n1|None|
8|CANCELLED|0|0|1795191064|1795191066|1795191066||BeginTime|
1|FAILED|0|768|1795191064|1795191064|1795191064|n1|NonZeroExitCode|
3|PENDING|1|0|1795191066|1795191072|1795194672||BeginTime|
6_0|PENDING|0|0|1795191064|1795194666|1795198266||JobArrayTaskLimit|
6_1|RUNNING|0|0|1795191064|1795191066|1795194666|gpu[001-002]|None|
5|COMPLETED|2|0|1795191064|1795191066|1795191099|n1|None|
"""
SACCT = """\
20|REQUEUED|0:0|1795191000|1795191010|1795191020|n[1-2]|None
21|CANCELLED by 1000|0:0|1795191064|1795191066|1795191066|None assigned|BeginTime
20|NODE_FAIL|1:0|1795191030|1795191040|1795191050|n[3-4]|None
22|RUNNING|0:0|1795191030|1795191040|Unknown|n1|None
23_7|OUT_OF_MEMORY|0:125|1795191030|1795191040|1795191050|n1|None
24|TIMEOUT|0:9|1795191030|1795191040|1795191050|n1|None
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "job's script.sbatch"
    path.write_text("#!/bin/bash\n#SBATCH --partition=gpu\n#SBATCH --nodes 9\ntrue\n")
    return path


@pytest.mark.parametrize("out", ["123\n", "123;lab\n", "Welcome to the cluster!\n123\n"])
def test_submit(fake_slurm: Any, script: Path, out: str) -> None:
    fake_slurm.says("sbatch", out)
    assert submit(script, ["--begin=now+30", "--comment=a b;$(c)"]) == "123"
    assert fake_slurm.calls("sbatch") == [["--parsable", "--begin=now+30", "--comment=a b;$(c)", str(script)]]


def test_what_sbatch_says_beside_the_id(fake_slurm: Any, script: Path) -> None:
    fake_slurm.says("sbatch", "123\n", err="sbatch: warning: your project ends soon\n")
    heard: list[str] = []
    assert submit(script, warn=heard.append) == "123"
    assert heard == ["sbatch: your project ends soon"]


@pytest.mark.parametrize(
    ("words", "said", "way_out"),
    [
        ("Invalid partition name specified", "(--partition=cpu)", "launch.partition"),
        ("Invalid account or account/partition combination specified", "--partition=cpu", "launch.account"),
        ("Invalid qos specification", "", "launch.qos"),
        (
            "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
            "--nodes 9",
            "Wait until other jobs have ended",
        ),
        ("Requested time limit is invalid (missing or exceeds some limit)", "--time=90", "launch.time"),
        ("Node count specification invalid", "--nodes 9", "launch.nodes"),
        ("Requested node configuration is not available", "--nodes 9", "launch.gpus_per_node"),
        ("Memory required by task is not available", "", "launch.memory_per_node"),
        ("Invalid generic resource (gres) specification", "", "gpu_type"),
        ("Invalid node name specified", "", "`exclude`"),
        ("Job dependency problem", "", "no longer known"),
        ("User's group not permitted to use this partition", "--partition=cpu", "launch.partition"),
        ("Unspecified error", "", ""),
    ],
)
def test_what_slurm_refuses(fake_slurm: Any, script: Path, words: str, said: str, way_out: str) -> None:
    fake_slurm.says("sbatch", err=f"sbatch: error: Batch job submission failed: {words}\n", code=1)
    with pytest.raises(UserError) as caught:
        submit(script, ["--partition=cpu", "--time=90"])
    message = str(caught.value)
    assert message.startswith(f"SLURM refuses the job: {words}")
    assert said in message
    assert way_out in message
    assert "\n" not in message


def test_the_words_of_a_site_are_all_there(fake_slurm: Any, script: Path) -> None:
    err = "sbatch: error: Use partition gpu-long.\nsbatch: error: Batch job submission failed: Unspecified error\n"
    fake_slurm.says("sbatch", err=err, code=1)
    with refused("refused_submission", "Use partition gpu-long.; Unspecified error"):
        submit(script)


UNREACHABLE = {
    "slurm_load_jobs error: Unable to contact slurm controller (connect failure)": "slurmctld, SLURM's controller",
    "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation": "slurmctld",
    "sbatch: error: If munged is up, restart with --num-threads=10\n"
    'sbatch: error: Munge encode failed: Failed to access "/run/munge/munge.socket.2": No such file or directory\n'
    "sbatch: error: slurm_send_node_msg: auth_g_create: REQUEST_SUBMIT_BATCH_JOB has authentication error\n"
    "sbatch: error: Batch job submission failed: Protocol authentication error": 'Failed to access "/run/munge',
    "sbatch: error: Batch job submission failed: Protocol authentication error": "has another key",
    "sbatch: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\n"
    "sbatch: fatal: Could not establish a configuration source": "is not set up on this machine",
}


@pytest.mark.parametrize("err", UNREACHABLE)
def test_unreachable_is_one_line_with_a_way_out(fake_slurm: Any, script: Path, err: str) -> None:
    questions = {
        "sbatch": lambda: submit(script),
        "squeue": lambda: job_states(["1", "2"]),
        "scancel": lambda: cancel(["1"]),
        "scontrol": lambda: requeue("1"),
    }
    for command, question in questions.items():
        fake_slurm.says(command, err=f"{err}\n", code=1)
        with pytest.raises(SchedulerError) as caught:
            question()
        assert UNREACHABLE[err] in str(caught.value)
        assert "\n" not in str(caught.value)
        asked_to_look = "look with `squeue --me`" in str(caught.value)
        assert asked_to_look == (command == "sbatch" and "timed out" in err)


def test_no_answer_ends_after_the_time_out(
    fake_slurm: Any, script: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    set_limits(monkeypatch, to_submit=0.3)
    pid = tmp_path / "pid"
    # A site's wrapper: what it waits for holds the pipe open when the wrapper itself is killed.
    fake_slurm.says("sbatch", delay=f"/bin/sleep 300 & echo $! > '{pid}'; wait")
    started = time.monotonic()
    with refused("perhaps_submitted", "0.3 s", kind=PerhapsSubmitted):
        submit(script)
    assert time.monotonic() - started < 60
    assert _ends(int(pid.read_text()))


def _ends(pid: int) -> bool:
    """It was killed before; the kernel may take a moment."""
    deadline = time.monotonic() + 30
    while _runs(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_without_slurm(fake_slurm: Any, script: Path) -> None:
    questions = (lambda: submit(script), lambda: job_states(["1"]), lambda: cancel(["1"]), lambda: requeue("1"))
    for question in questions:
        with refused("missing_slurm", "PATH"):
            question()


def test_no_job_id(fake_slurm: Any, script: Path) -> None:
    fake_slurm.says("sbatch", "see you\n")
    with refused("perhaps_submitted", "see you", kind=PerhapsSubmitted):
        submit(script)


def test_states(fake_slurm: Any) -> None:
    fake_slurm.says("squeue", SQUEUE)
    found = job_states(["4", "8", "1", "3", "6", "5"])
    assert set(found) == {"4", "8", "1", "3", "6_0", "6_1", "5"}
    assert found["1"] == JobState(
        job_id="1",
        phase="over",
        state="FAILED",
        reason="NonZeroExitCode",
        nodes=("n1",),
        exit_code=3,
        restarts=0,
        submitted=1795191064.0,
        started=1795191064.0,
        ended=1795191064.0,
        says="SLURM says FAILED",
    )
    assert (found["4"].exit_code, found["4"].is_over) == (143, True)
    assert (found["8"].started, found["8"].nodes, found["8"].cause) == (None, (), "cancelled"), "it never started"
    assert [found[job_id].phase for job_id in ("3", "6_1", "5")] == ["waiting", "running", "over"]
    assert [found[job_id].has_failed for job_id in ("1", "4", "5", "3")] == [True, True, False, False]
    waiting = found["3"]
    assert (waiting.started, waiting.ended, waiting.exit_code, waiting.restarts) == (None, None, None, 1)
    assert found["6_1"].nodes == ("gpu001", "gpu002")
    assert (found["6_1"].is_over, found["6_1"].ended) == (False, None), "its end is an estimate"
    assert (found["5"].restarts, found["5"].exit_code) == (2, 0)
    [arguments] = fake_slurm.calls("squeue")
    assert arguments[-1] == "--jobs=1,3,4,5,6,8"
    assert not any("name" in argument.lower() for argument in arguments), "a job's name can hold anything"


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("DependencyNeverSatisfied", "the run that it waited for did not complete"),
        ("Dependency", "while it waited for another run"),
    ],
)
def test_a_job_that_waited_for_another_run_says_so(fake_slurm: Any, reason: str, said: str) -> None:
    fake_slurm.says("squeue", f"7|CANCELLED|0|0|1|1|2||{reason}|\n8|PENDING|0|0|1|1|2||{reason}|\n")
    found = job_states(["7", "8"])
    assert found["7"].says == f"{said}: SLURM says CANCELLED"
    assert found["8"].never_starts is (reason == "DependencyNeverSatisfied")


def test_those_that_squeue_has_forgotten(fake_slurm: Any) -> None:
    fake_slurm.says("squeue", SQUEUE)
    fake_slurm.says("sacct", SACCT)
    found = job_states(["1", "20", "21", "22", "23_7", "24", "99"])
    assert [arguments[-1] for arguments in fake_slurm.calls("sacct")] == ["--jobs=20,21,22,23_7,24,99"]
    assert found["20"] == JobState(
        job_id="20",
        phase="over",
        state="NODE_FAIL",
        nodes=("n3", "n4"),
        exit_code=1,
        restarts=1,
        submitted=1795191030.0,
        started=1795191040.0,
        ended=1795191050.0,
        cause="node_fail",
        says="SLURM says NODE_FAIL",
    )
    assert (found["21"].state, found["21"].started, found["21"].nodes) == ("CANCELLED", None, ())
    assert "22" not in found, "squeue would know a job that runs"
    assert (found["23_7"].state, found["23_7"].exit_code) == ("OUT_OF_MEMORY", 253)
    assert (found["24"].state, found["24"].exit_code) == ("TIMEOUT", 137)
    assert "99" not in found
    assert "1" in found


def test_tasks_of_an_array_that_squeue_knows_in_part(fake_slurm: Any) -> None:
    fake_slurm.says("squeue", SQUEUE)
    fake_slurm.says(
        "sacct", "6_0|FAILED|1:0|1|2|3|n1|None\n6_9|FAILED|1:0|1|2|3|n1|None\n6_[2-5]|PENDING|0:0|1|2|3||\n"
    )
    found = job_states(["6"])
    assert {task: state.state for task, state in found.items() if task.startswith("6_")} == {
        "6_0": "PENDING",
        "6_1": "RUNNING",
        "6_9": "FAILED",
    }, "squeue's word goes first"


@pytest.mark.parametrize("accounting", ["disabled", "missing", "empty"])
def test_without_accounting(fake_slurm: Any, accounting: str) -> None:
    fake_slurm.says("squeue", SQUEUE)
    if accounting != "missing":
        err = "Slurm accounting storage is disabled\n" if accounting == "disabled" else ""
        fake_slurm.says("sacct", err=err, code=1 if err else 0)
    heard: list[str] = []
    assert set(job_states(["1", "20"], heard.append)) >= {"1"}
    assert heard == []


def test_accounting_that_is_down_takes_nothing_away(fake_slurm: Any) -> None:
    fake_slurm.says("squeue", SQUEUE)
    err = (
        "sacct: error: slurm_persist_conn_open_without_init: failed to open persistent connection to host:db:6819: "
        "Connection refused\nsacct: error: Sending PersistInit msg: Connection refused\n"
        "sacct: error: Problem talking to the database: Connection refused\n"
    )
    fake_slurm.says("sacct", err=err, code=1)
    heard: list[str] = []
    assert "1" in job_states(["1", "20"], heard.append)
    assert len(heard) == 1
    assert heard[0].startswith("SLURM's accounting does not answer")


def test_the_only_job_is_unknown(fake_slurm: Any) -> None:
    fake_slurm.says("squeue", err="slurm_load_jobs error: Invalid job id specified\n", code=1)
    fake_slurm.says("sacct", SACCT.splitlines()[-1] + "\n")
    assert set(job_states(["24"])) == {"24"}


def test_five_hundred_jobs_take_two_calls(fake_slurm: Any) -> None:
    fake_slurm.says("squeue", SQUEUE)
    fake_slurm.says("sacct", SACCT)
    job_states([f"{number}_{number}" for number in range(10_000_000, 10_000_500)])
    assert (len(fake_slurm.calls("squeue")), len(fake_slurm.calls("sacct"))) == (1, 1)


def test_no_job_takes_no_call(fake_slurm: Any) -> None:
    assert job_states([]) == {}
    assert job_states(["", "not an id", "1; rm -rf /", "--help"]) == {}
    cancel([])


def test_odd_lines_hide_nothing(fake_slurm: Any) -> None:
    odd = "\nsqueue: some banner\n12+0|RUNNING|0|0|1|1|1|n1|None|\n9|RUNNING|x|y|N/A|N/A|N/A|n[|held | by | admin|\n"
    fake_slurm.says("squeue", odd + SQUEUE)
    found = job_states(["9", "1"])
    assert found["9"].reason == "held | by | admin"
    assert found["9"].nodes == ("n[",)
    assert (found["9"].submitted, found["9"].restarts) == (None, 0)
    assert "1" in found


def test_the_environment_of_the_commands(fake_slurm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_slurm.says("squeue", SQUEUE)
    kept = {"SLURM_CONF": "/etc/other/slurm.conf", "SLURM_CLUSTERS": "one", "SBATCH_ACCOUNT": "mine", "HOME": "/home"}
    dropped = {"SLURM_JOB_ID": "7", "SLURM_MEM_PER_CPU": "1", "SQUEUE_FORMAT": "%i", "SQUEUE_STATES": "PENDING"}
    for name, value in {**kept, **dropped}.items():
        monkeypatch.setenv(name, value)
    job_states(["1"])
    given = fake_slurm.environment("squeue")
    assert {name: given.get(name) for name in kept} == kept
    assert not set(dropped) & set(given)
    assert given["SLURM_TIME_FORMAT"] == "%s"


def test_cancel(fake_slurm: Any) -> None:
    fake_slurm.says("scancel")
    cancel(["2", "1_3", "2"])
    cancel(["2"], signal="USR1")
    assert fake_slurm.calls("scancel") == [["1_3", "2"], ["--signal=USR1", "--batch", "2"]]


@pytest.mark.parametrize(
    "err",
    [
        "scancel: error: Kill job error on job id 1: Invalid job id specified",
        "scancel: error: Kill job error on job id 1: Job/step already completing or completed",
    ],
)
def test_cancelling_what_is_over(fake_slurm: Any, err: str) -> None:
    fake_slurm.says("scancel", err=f"{err}\n", code=1)
    cancel(["1"])


def test_cancelling_what_is_not_mine(fake_slurm: Any) -> None:
    err = "scancel: error: Kill job error on job id 1: Access/permission denied"
    gone = "scancel: error: Kill job error on job id 2: Invalid job id specified"
    fake_slurm.says("scancel", err=f"{err}\n{gone}\n", code=1)
    with refused(
        "scheduler_command_failed",
        "scancel",
        "Kill job error on job id 1: Access/permission denied",
        kind=SchedulerError,
    ):
        cancel(["1", "2"])


def test_a_cancel_that_fails_without_a_word(fake_slurm: Any) -> None:
    fake_slurm.says("scancel", code=1)
    with refused("scheduler_command_failed", "scancel", "exit status 1", kind=SchedulerError):
        cancel(["1"])


def test_requeue(fake_slurm: Any) -> None:
    fake_slurm.says("scontrol")
    requeue("12")
    assert fake_slurm.calls("scontrol") == [["requeue", "12"]]
    fake_slurm.says("scontrol", err="Invalid job id specified for job 12\n", code=1)
    with refused("scheduler_command_failed", "scontrol", "Invalid job id specified for job 12", kind=SchedulerError):
        requeue("12")


def test_a_failure_without_a_word(fake_slurm: Any) -> None:
    fake_slurm.says("scontrol", code=3)
    with refused("scheduler_command_failed", "scontrol", "exit status 3", kind=SchedulerError):
        requeue("1")


def test_an_interrupted_command_is_ended(fake_slurm: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    fake_slurm.says("squeue", delay=f"echo $$ > '{pid}'; exec /bin/sleep 300")

    def interrupted(*arguments: Any, **options: Any) -> None:
        while not pid.exists() or not pid.read_text():
            time.sleep(0.01)
        monkeypatch.undo()
        raise KeyboardInterrupt

    before(monkeypatch, "subprocess.Popen.communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        commands.run(["squeue"])
    assert _ends(int(pid.read_text()))
