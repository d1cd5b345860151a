"""`python -m orchestrator.executors.kubernetes.pod SPEC_DIR RUNS_DIR`: what every pod of a rendered JobSet runs.

The first pod makes or finds the run directory, starts the training, and says at its end whether the set is to start
again: by `launch.on_failure`, as on every other machine. The others wait for its launch, start their processes with the
launch script of the run, and end with the exit code of the first, so that it does not matter which pod ends before the
others.

Exit codes: 0 when there is nothing left to do, 75 (EX_TEMPFAIL) for another start, and else that of the cause, after
which the run stays where it is.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from orchestrator.errors import OrchestratorError
from orchestrator.launch.local.launcher import launch
from orchestrator.launch.notifications.process import tell_of_withdrawn
from orchestrator.launch.processes.launch_processes import LAUNCH_VARIABLE
from orchestrator.launch.processes.stop_request import StopSignals, asked_to_stay, caught_signals, request_stop
from orchestrator.launch.requeue_policy import decide, unless_withdrawn
from orchestrator.launch.runs import attach_or_create, find_same
from orchestrator.launch.start_checks import saved_nothing
from orchestrator.quantities import timestamp
from orchestrator.run_directory.events.log import EventLog
from orchestrator.run_directory.events.types import BY_LAUNCHER, Event, Exited, Launched, Requeued, Withdrawn
from orchestrator.run_directory.exits.causes import Exit, cause_of
from orchestrator.run_directory.lease import DEFAULT_TIME_TO_LIVE, read_holder, supersedes
from orchestrator.run_directory.rundir import RunDir
from orchestrator.safe_path import RUNTIME_MODULE
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_resolved

INCARNATION_VARIABLE = "ORCHESTRATOR_INCARNATION"
"""UID.RESTARTS of the JobSet: the launch id of this start, which a later one of the same set supersedes."""
WRITTEN, RESOLVED = "job.yaml", "resolved.json"
"""The files of SPEC_DIR: the spec as it was written, and complete."""
START_AGAIN = os.EX_TEMPFAIL
_POLL_SECONDS = 0.2
_SECONDS_FOR_A_HOLDER = 1.5 * DEFAULT_TIME_TO_LIVE
_SECONDS_FOR_THE_FIRST_POD = 300.0


def main() -> int:
    """Run this pod's part; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m orchestrator.executors.kubernetes.pod", description=__doc__)
    parser.add_argument("spec_dir", type=Path)
    parser.add_argument("runs_dir", type=Path)
    parser.add_argument("--module", default=RUNTIME_MODULE, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    incarnation, index = os.environ[INCARNATION_VARIABLE], int(os.environ["NODE_RANK"])
    try:
        job = load_resolved(arguments.spec_dir / RESOLVED)
        with caught_signals() as signals:
            if index > 0:
                return _follow(job, arguments.runs_dir, incarnation, signals)
            written = (arguments.spec_dir / WRITTEN).read_text(encoding="utf-8")
            run, _ = attach_or_create(job, written, arguments.runs_dir, warn=_say)
            return _lead(run, job, incarnation, signals, arguments.module)
    except OrchestratorError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def _lead(run: RunDir, job: JobSpec, incarnation: str, signals: StopSignals, module: str) -> int:
    """The first pod: one launch of the run, and what comes next."""
    last = run.events().last_launch
    if last is not None and last.exited is not None and last.exited.cause == "completed":
        _say(f"{run.path} has completed already")
        return 0
    restarts = int(incarnation.rpartition(".")[2])
    if last is not None and restarts and (asked_by := asked_to_stay(run)) is not None:
        run.append(Withdrawn(launch_id=last.launch_id, by=asked_by))
        run.stop_file.unlink(missing_ok=True)
        tell_of_withdrawn([run])
        _say(f"{asked_by} has asked for a stop: the run is not started again")
        return 0
    _wait_for_holder(run, incarnation, signals)
    if signals.first is not None:
        return START_AGAIN

    def follow_up(end: Exit, exited: Exited) -> list[Event]:
        events = EventLog((*_of_this_set(run.events(), incarnation), exited))
        decision = unless_withdrawn(decide(job.launch, end, events), asked_to_stay(run))
        _say(f"launch {incarnation} ended: {end.cause}{f': {end.message}' if end.message else ''}; {decision.reason}")
        if decision.withdrawn_by is not None:
            return [Withdrawn(launch_id=incarnation, by=decision.withdrawn_by)]
        # Nobody waits for launch.requeue_delay: the pods would keep their GPUs meanwhile.
        again = Requeued(launch_id=incarnation, cause=decision.reason, by=BY_LAUNCHER, delay=0.0)
        return [again] if decision.requeue else []

    # A start that was ended before the first checkpoint begins again: nothing was saved that could be lost.
    from_scratch = saved_nothing(run, run.events())
    _say(f"launch {incarnation} of {run.path}; its logs: {run.logs}")
    launch(run, job, from_scratch=from_scratch, module=module, incarnation=incarnation, follow_up=follow_up)
    code = _exit_code(run, incarnation)
    assert code is not None, "a launch that has returned has written its end"
    return code


def _follow(job: JobSpec, runs_dir: Path, incarnation: str, signals: StopSignals) -> int:
    """Another pod: its processes of the first one's launch."""
    while (run := _launched(job, runs_dir, incarnation)) is None:
        if signals.first is not None:
            return START_AGAIN
        time.sleep(_POLL_SECONDS)
    environment = {**os.environ, LAUNCH_VARIABLE: incarnation}
    # In a session of its own, as by the launcher: the signal of a terminal or a test is for this process alone.
    child = subprocess.Popen(["bash", str(run.launch_script)], env=environment, start_new_session=True)
    asked = False
    while child.poll() is None:
        if signals.first is not None and not asked:
            asked = True
            request_stop(run, f"{signals.first} to {os.uname().nodename}", to_go_on=True)
        time.sleep(_POLL_SECONDS)
    deadline = time.monotonic() + _SECONDS_FOR_THE_FIRST_POD
    while (code := _exit_code(run, incarnation)) is None and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    return START_AGAIN if code is None else code


def _launched(job: JobSpec, runs_dir: Path, incarnation: str) -> RunDir | None:
    """The run, once the first pod has launched it."""
    run = find_same(job, runs_dir)
    last = None if run is None else run.events().last_launch
    return run if last is not None and last.launch_id == incarnation else None


def _exit_code(run: RunDir, incarnation: str) -> int | None:
    """What all pods end with, by what the first has written; None before that."""
    said = run.events().of_launch(incarnation)
    exited = said.last(Exited)
    if exited is None:
        return None
    if said.last(Requeued) is not None:
        return START_AGAIN
    cause = str(exited.cause)
    return 0 if cause == "stopped" else cause_of(cause).exit_code


def _of_this_set(events: EventLog, incarnation: str) -> EventLog:
    """The events since the first launch by this JobSet: what was before is no business of its restarts."""
    uid = incarnation.rpartition(".")[0]
    launched = (
        number
        for number, event in enumerate(events)
        if isinstance(event, Launched) and str(event.launch_id).startswith(f"{uid}.")
    )
    return events.since(next(launched, len(events)))


def _wait_for_holder(run: RunDir, incarnation: str, signals: StopSignals) -> None:
    """Wait for whoever else may still write the run, as pods of a set that was deleted; the launch refuses one that
    stays.
    """
    deadline = time.monotonic() + _SECONDS_FOR_A_HOLDER
    while time.monotonic() < deadline and signals.first is None:
        holder = read_holder(run)
        if holder is None or not holder.live or supersedes(incarnation, holder.launch_id):
            return
        time.sleep(_POLL_SECONDS)


def _say(message: str) -> None:
    print(f"=== {timestamp()} {message}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
