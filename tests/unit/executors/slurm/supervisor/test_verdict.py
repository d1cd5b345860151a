"""Why an incarnation ended: ranks and logs on one side, SLURM's doings on the other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.executors.slurm.supervisor.exit_classification import unhealthy, unspoken_end, verdict
from orchestrator.run_directory.exits.causes import Exit
from orchestrator.run_directory.rundir import RunDir

STOPPED = Exit.of("stopped", "stopped at iteration 9 of 20", 9)
KILLED = Exit.of("killed", "torchrun was ended by SIGTERM", 9)
BUG = Exit.of("bug", "SignalException: Process 7 got signal: 15", 9)
STEPD = "slurmstepd-n1: error: *** STEP 12.0 ON n1 CANCELLED AT 2026-01-31T12:00:00 {} ***\n"


@pytest.mark.parametrize(
    ("end", "signal", "time_is_over", "output", "cause"),
    [
        (Exit.of("completed", "", 20), "SIGUSR1", True, "", "completed"),
        (STOPPED, None, False, "", "stopped"),
        (STOPPED, "SIGUSR1", True, "", "time_limit"),
        (STOPPED, "SIGUSR1", False, "", "preempted"),
        (KILLED, "SIGUSR1", True, STEPD.format("DUE TO TIME LIMIT"), "time_limit"),
        (KILLED, None, True, STEPD.format("DUE TO TIME LIMIT"), "time_limit"),
        (KILLED, "SIGTERM", False, STEPD.format("DUE TO PREEMPTION"), "preempted"),
        (BUG, "SIGTERM", False, STEPD.format("DUE TO JOB REQUEUE"), "requeued"),
        (BUG, "SIGTERM", False, STEPD.format("DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS"), "node_fail"),
        (KILLED, "SIGTERM", False, STEPD.format(""), "cancelled"),
        (STOPPED, "SIGTERM", False, "", "cancelled"),
        (
            KILLED,
            None,
            False,
            "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=12.0.\n",
            "host_out_of_memory",
        ),
        (KILLED, None, False, "srun: error: n3: task 2: Out Of Memory\n", "host_out_of_memory"),
        (KILLED, None, False, "", "killed"),
        (Exit.of("nan", "5 steps", 9), "SIGTERM", False, STEPD.format(""), "nan"),
        (Exit.of("out_of_memory", "CUDA", 9), None, False, "", "out_of_memory"),
    ],
)
def test_causes(end: Exit, signal: str | None, time_is_over: bool, output: str, cause: str) -> None:
    found = verdict(end, signal, time_is_over, output)
    assert (found.cause, found.iteration) == (cause, end.iteration)


@pytest.mark.parametrize(
    ("end", "line"),
    [
        (KILLED, "srun: error: Node failure on n2"),
        (BUG, "srun: error: Task launch for StepId=27.0 failed on node n2: Communication connection failure"),
        (BUG, "srun: error: Task launch for StepId=27.0 failed on node n2: Job credential expired"),
    ],
)
def test_the_line_that_shows_it_and_the_node_at_fault(end: Exit, line: str) -> None:
    found = verdict(end, None, False, f"{line}\n" + STEPD.format("DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS"))
    assert (found.cause, found.node, found.evidence) == ("node_fail", "n2", (line,))
    assert verdict(end, None, False, f"{line}\nsrun: Job step aborted\n").cause == "node_fail"


@pytest.mark.parametrize(
    ("word", "states", "cause"),
    [
        (None, ["NODE_FAIL", "RUNNING"], "node_fail"),
        (STOPPED, ["PREEMPTED", "RUNNING"], "preempted"),
        (None, ["REQUEUED", "RUNNING"], "requeued"),
        (STOPPED, [], "requeued"),
        (Exit.of("nan", "5 steps", 9), [], "nan"),
        (None, [], "lost"),
    ],
)
def test_an_end_that_nobody_lived_to_tell(word: Exit | None, states: list[str], cause: str) -> None:
    assert unspoken_end(word, states).cause == cause


def test_a_failed_health_check_names_the_node(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    report = run.health_report("lab-1.0")
    report.parent.mkdir()
    report.write_text(json.dumps({"message": "clock of n4 is 12.3 s ahead", "nodes_at_fault": ["n4"]}))
    found = unhealthy(run, "lab-1.0", 3)
    assert (found.cause, found.node) == ("node_fail", "n4")
    assert "clock of n4" in found.message


def test_a_health_check_that_broke_is_a_bug(tmp_path: Path) -> None:
    found = unhealthy(RunDir(tmp_path), "lab-1.0", 1)
    assert (found.cause, found.node) == ("bug", None)
