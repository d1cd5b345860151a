"""One incarnation of a run inside a SLURM job: start the training on all nodes, see it through, decide what comes next.

SLURM's notice (`--signal=B:USR1@N`) reaches this process, which is the batch script itself; the ranks hear of it
through the stop file, save after their step and end.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.executors.slurm.supervisor.exit_classification import unhealthy, verdict
from orchestrator.executors.slurm.supervisor.job_end import (
    account_for_previous,
    conclude,
    is_stale,
    left_to_caller,
    say,
)
from orchestrator.executors.slurm.supervisor.slurm_job import SUPERVISOR_VARIABLE, SlurmJob
from orchestrator.launch.notifications.process import tell_of_start, tell_of_withdrawn
from orchestrator.launch.processes.launch_processes import LAUNCH_VARIABLE, REQUEUE_CODE_VARIABLE
from orchestrator.launch.processes.stop_request import (
    StopSignals,
    asked_to_stay,
    caught_signals,
    request_stop,
    stop_at_once,
)
from orchestrator.process import Process
from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.run_directory.events.types import CheckpointSaved, Launched, Withdrawn
from orchestrator.run_directory.exits.causes import Exit
from orchestrator.run_directory.exits.classification import LogMarks, classify
from orchestrator.run_directory.lease import DEFAULT_TIME_TO_LIVE, held_message, read_holder, supersedes
from orchestrator.run_directory.rundir import RunDir
from orchestrator.safe_path import module_command
from orchestrator.spec.job import JobSpec

HEALTH_MODULE = "orchestrator.runtime.health"
_POLL_SECONDS = 0.2
_SECONDS_OF_TOLERANCE = 60.0
"""SLURM's notice comes up to this much early (its documentation says so)."""
_SECONDS_WITHOUT_CONTROLLER = 600.0
SECONDS_BETWEEN_STEPS = 5.0
_NO_CONTROLLER = re.compile(
    r"^srun: .*(?:Unable to (?:confirm allocation|contact slurm controller)|Check SLURM_JOB_ID environment)",
    re.MULTILINE,
)
_SECONDS_FOR_A_HOLDER = 1.5 * DEFAULT_TIME_TO_LIVE


@dataclass(frozen=True)
class Commands:
    """`on_each_node`: srun and what starts a program once per node; `training`: that program, its Python first."""

    on_each_node: Sequence[str]
    training: Sequence[str]
    health_check: bool
    from_scratch: bool


def supervise(run: RunDir, job: JobSpec, slurm: SlurmJob, commands: Commands) -> int:
    """Run one incarnation; returns the exit code of the batch script: 0 when the run has nothing left to do."""
    with caught_signals() as signals:
        account_for_previous(run, slurm)
        if (asked_by := _withdrawn_by(run, slurm)) is not None:
            say(f"{asked_by} has asked for a stop: the run is not started again")
            return 0
        run.stop_file.unlink(missing_ok=True)
        marks = LogMarks.of(run)
        run.append(
            Launched(
                launch_id=slurm.launch_id,
                job_id=slurm.job_id,
                restart=slurm.restarts,
                nodes=tuple(slurm.nodes),
                **Process.current().to_record(),
            )
        )
        say(f"launch {slurm.launch_id} on {', '.join(slurm.nodes)}")
        tell_of_start(run, job, slurm.launch_id)
        end, code = _train(run, job, slurm, commands, signals, marks)
        asked_by = None
        if not is_stale(run, slurm.launch_id):
            asked_by = asked_to_stay(run)
            if asked_by is None or end.cause != "requeued":  # SLURM's own start comes all the same, and is to hear it
                run.stop_file.unlink(missing_ok=True)  # it has been heard, and the next start is not meant
        decision = conclude(run, job, slurm, end, code, asked_by)
        why = f"{end.cause}: {end.message}" if end.message else end.cause
        what = "the run goes back into the queue: " if decision.requeue else "the run is not requeued: "
        if end.cause == "requeued":
            what = ""  # the reason says where it is
        say(f"launch {slurm.launch_id} ended: {why}; {what}{decision.reason}")
    if (asking := left_to_caller(decision)) is not None:
        return asking
    return 0 if end.cause in ("completed", "stopped") else 1


def _withdrawn_by(run: RunDir, slurm: SlurmJob) -> str | None:
    """Who has kept the run from this start, if anybody did: a stop was asked for while SLURM started it again, or while
    a start before ended without hearing of it.
    """
    before = run.events().last_launch
    asked_by = asked_to_stay(run) if slurm.restarts > 0 else None
    if before is None or asked_by is None:
        return None
    run.append(Withdrawn(launch_id=before.launch_id, job_id=slurm.job_id, by=asked_by))
    run.stop_file.unlink(missing_ok=True)
    tell_of_withdrawn([run])
    return asked_by


def _train(
    run: RunDir, job: JobSpec, slurm: SlurmJob, commands: Commands, signals: StopSignals, marks: LogMarks
) -> tuple[Exit, int | None]:
    """From waiting for whoever still holds the run to the end of the training; with srun's return code."""
    refusal = _wait_for_holder(run, slurm, signals)
    if refusal is not None:
        return Exit.of("held", refusal, None), None
    code: int | None = None
    if commands.health_check:
        check = module_command(HEALTH_MODULE, str(run.path), python=commands.training[0])
        code = _run_step(run, slurm, [*commands.on_each_node, *check], signals)
        if code != 0 and signals.first is None:
            return unhealthy(run, slurm.launch_id, code), code
    if signals.first is None:
        anew = ["--from-scratch"] if _begins_anew(run, slurm, commands.from_scratch) else []
        code = _run_step(run, slurm, [*commands.on_each_node, *commands.training, *anew], signals)
        end = classify(run, slurm.launch_id, code, marks)
        forced_by = stop_at_once(run)
        if forced_by is not None:
            message = f"ended at once, without waiting for a save, by {forced_by}"
            return Exit.of("cancelled", message, end.iteration), code
    else:
        end = Exit.of("stopped", "stopped before the training began", None)
    if end.cause == "stopped" and asked_to_stay(run) is not None:
        return end, code
    left = slurm.seconds_left(time.time())
    time_is_over = left is not None and left <= job.launch.stop_margin + _SECONDS_OF_TOLERANCE
    return verdict(end, signals.first, time_is_over, marks.tail(run, run.launcher_log)), code


def _begins_anew(run: RunDir, slurm: SlurmJob, asked: bool) -> bool:
    """Whether to begin at iteration 0: because a person asked for it, or because a start of this job was ended before
    anything was ever saved, so that there is nothing to lose. A checkpoint that was saved and is gone is no such case.
    """
    if slurm.restarts == 0:
        return asked
    events = run.events().since_submission() if asked else run.events()
    if committed(run) or events.first(CheckpointSaved) is not None:
        return False
    say("no checkpoint has been written yet: beginning at iteration 0")
    return True


def _wait_for_holder(run: RunDir, slurm: SlurmJob, signals: StopSignals) -> str | None:
    """Wait until nobody else may write the run; None when that is so, else who holds it."""
    deadline = time.monotonic() + _SECONDS_FOR_A_HOLDER
    said = False
    while True:
        holder = read_holder(run)
        if holder is None or not holder.live or supersedes(slurm.launch_id, holder.launch_id):
            return None
        if time.monotonic() > deadline or signals.first is not None:
            return held_message(run, holder)
        if not said:
            said = True
            say(f"the run is held by {holder.describe()} ({holder.reason}): waiting for it")
        time.sleep(_POLL_SECONDS)


def _run_step(run: RunDir, slurm: SlurmJob, command: Sequence[str], signals: StopSignals) -> int:
    """Run srun to its end; again while it cannot begin because SLURM's controller is away. Returns its exit code."""
    deadline = time.monotonic() + _SECONDS_WITHOUT_CONTROLLER
    while True:
        marks = LogMarks.of(run)
        code = _see_through(run, slurm, command, signals)
        could_not_begin = code != 0 and _NO_CONTROLLER.search(marks.tail(run, run.launcher_log))
        if not could_not_begin or signals.first is not None or time.monotonic() > deadline:
            return code
        say("SLURM's controller does not answer: trying again")
        time.sleep(SECONDS_BETWEEN_STEPS)


def _see_through(run: RunDir, slurm: SlurmJob, command: Sequence[str], signals: StopSignals) -> int:
    """Run srun to its end, passing stop requests on to the ranks; returns its exit code, negative for a signal."""
    environment = {
        **os.environ,
        LAUNCH_VARIABLE: slurm.launch_id,
        SUPERVISOR_VARIABLE: json.dumps(Process.current().to_record()),
    }
    environment.pop(REQUEUE_CODE_VARIABLE, None)  # an offer to this process, which nobody keeps once it is gone
    # In a session of its own, so that a signal to this process's group does not make srun abort the step.
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment, start_new_session=True)
    asked = forced = False
    while (code := child.poll()) is None:
        if signals.first is not None and not asked and not is_stale(run, slurm.launch_id):
            asked = True
            request_stop(run, signals.first, to_go_on=True)
            say(f"{signals.first}: stopping after this step and saving")
        if not forced and stop_at_once(run) is not None:
            forced = True
            child.terminate()
        time.sleep(_POLL_SECONDS)
    return code
