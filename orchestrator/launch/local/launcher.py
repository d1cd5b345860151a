"""Starting the training of a run on this machine, and seeing it through to its end.

torchrun runs in a session of its own, so that Ctrl-C reaches the launcher only, which asks for a clean stop through
the stop file. If the launcher is killed outright, the kernel sends torchrun SIGTERM, and the ranks save and stop.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO, Literal, TypeAlias

from orchestrator.launch.hosts import run_on_hosts
from orchestrator.launch.notifications import process as notifications
from orchestrator.launch.processes.child_commands import tied
from orchestrator.launch.processes.launch_processes import LAUNCH_VARIABLE, end_processes
from orchestrator.launch.processes.stop_request import (
    StopSignals,
    asked_to_stay,
    caught_signals,
    ended_by_force,
    request_stop,
    stop_at_once,
)
from orchestrator.launch.scripts.render import render
from orchestrator.launch.start_checks import check_startable
from orchestrator.process import Process
from orchestrator.quantities import timestamp
from orchestrator.run_directory.events.types import Event, Exited, Launched
from orchestrator.run_directory.exits.causes import Exit, exit_records
from orchestrator.run_directory.exits.classification import LogMarks, classify
from orchestrator.run_directory.rundir import RunDir, write_atomically
from orchestrator.safe_path import RUNTIME_MODULE, module_command
from orchestrator.spec.job import JobSpec
from orchestrator.tracking.follower import send_the_end

HOSTS_MODULE = "orchestrator.executors.ssh"
"""The program that starts the launch script on other machines."""
_POLL_SECONDS = 0.1
_ORPHAN_GRACE_SECONDS = 30.0
_SECONDS_TO_COPY_BACK = 10.0


Severity: TypeAlias = Literal["warning", "error"]


class Watcher:
    """What is told of a running launch. The base class keeps quiet."""

    def poll(self) -> None:
        """Called several times per second."""

    def say(self, message: str, severity: Severity | None = None) -> None:
        """Something that the person should know."""

    def close(self) -> None:
        """The launch has ended."""


class Display(Watcher):
    """Another watcher, for as long as that can show anything: a closed pipe or a full disk ends what is shown, and
    never the training.
    """

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    def poll(self) -> None:
        self._show(self._watcher.poll)

    def say(self, message: str, severity: Severity | None = None) -> None:
        self._show(lambda: self._watcher.say(message, severity))

    def close(self) -> None:
        self._show(self._watcher.close)

    def _show(self, call: Callable[[], None]) -> None:
        try:
            call()
        except OSError:
            failed, self._watcher = self._watcher, Watcher()
            with suppress(OSError):
                failed.close()


def launch(
    run: RunDir,
    job: JobSpec,
    *,
    from_scratch: bool = False,
    watcher: Watcher | None = None,
    module: str = RUNTIME_MODULE,
    incarnation: str | None = None,
    job_id: str | None = None,
    on_launched: Callable[[str], None] = lambda launch_id: None,
    follow_up: Callable[[Exit, Exited], Sequence[Event]] = lambda end, exited: (),
) -> Exit:
    """Start the run's training here, wait for its end, and say why it ended.

    Raises RunIsHeld when it already runs, and UserError when it cannot be started as asked. `incarnation`: the launch
    id JOB.RESTARTS of a scheduler's start; signals are the scheduler's notice then, after which the run is to go on
    elsewhere. `job_id`: of the executor's job that this runs in. `on_launched` hears the launch id. `follow_up`
    says what else belongs into the event log together with the `exited` event of this end, which would otherwise
    look like that of the run for a moment. What the watcher cannot show, because its output is gone, is not shown.
    """
    check_startable(run, job, from_scratch=from_scratch, launch_id=incarnation)
    watcher = Display(watcher or Watcher())
    launch_id = incarnation or f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:6]}"
    run.logs.mkdir(exist_ok=True)
    marks = LogMarks.of(run)
    run_dir = run_on_hosts(run, job.launch).path
    script = render(job, run_dir=run_dir, python=sys.executable, from_scratch=from_scratch, module=module)
    write_atomically(run.launch_script, script)
    run.stop_file.unlink(missing_ok=True)
    with caught_signals() as signals:
        run.append(Launched(launch_id=launch_id, job_id=job_id, **Process.current().to_record()))
        notifier = notifications.begin(run, job, launch_id)
        with run.open_to_append(run.launcher_log) as log:
            log.write(f"=== launch {launch_id} at {timestamp()}\n".encode())
            child = _start(run, job, launch_id, log)
        on_launched(launch_id)
        if job.launch.nodes > 1 and not job.launch.on_hosts:
            watcher.say(for_the_others(run, launch_id))
        try:
            patience = _SECONDS_TO_COPY_BACK if job.launch.copy_to is not None else 0.0
            by_force = _wait(
                child, run, launch_id, signals, watcher, to_go_on=incarnation is not None, patience=patience
            )
        finally:
            watcher.close()
        were_ended = child.returncode < 0 or by_force is not None
        if were_ended:  # torchrun itself was killed and has left its ranks behind
            end_processes(launch_id, grace=_ORPHAN_GRACE_SECONDS if by_force is None else 0.0)
        end = classify(run, launch_id, child.returncode, marks)
        if by_force is not None:
            end = _end_by_force(run, launch_id, by_force, end.iteration)
        elif incarnation is not None and end.cause == "stopped" and asked_to_stay(run) is None:
            end = Exit.of("preempted", f"{run.stop_request().get('by') or signals.first}; saved", end.iteration)
        exited = Exited(
            launch_id=launch_id,
            code=child.returncode,
            cause=end.cause,
            message=end.message,
            iteration=end.iteration,
            evidence=end.evidence,
            node=end.node if job.launch.on_hosts else None,
        )
        run.append(exited, *follow_up(end, exited))
        notifications.over(notifier)
        were_ended |= job.launch.on_hosts and child.returncode != 0
        if were_ended and job.tracking.trackers:
            send_the_end(run)
    return end


def _end_by_force(run: RunDir, launch_id: str, by: str, iteration: int | None) -> Exit:
    """The same, unless rank 0 had said by then that it was done or had saved and stopped: nothing was lost."""
    cause = exit_records(run, launch_id).get(0, {}).get("cause")
    return Exit.of(cause, "", iteration) if cause in ("completed", "stopped") else ended_by_force(by, iteration)


def for_the_others(run: RunDir, launch_id: str) -> str:
    """What to tell who has launched a job of several machines on the first."""
    command = command_elsewhere(run, launch_id)
    return f"waiting for the other machines; start this on each, with its own NODE_RANK:\n      {command}"


def command_elsewhere(run: RunDir, launch_id: str) -> str:
    """What is typed on the second machine of a job, once it was launched on this one."""
    address = {name: os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT") if name in os.environ}
    variables = {**address, "NODE_RANK": "1", LAUNCH_VARIABLE: launch_id}
    assignments = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    # Data sets and modules of the spec are looked for from the working directory, which the script leaves as it is.
    return f"cd {shlex.quote(os.getcwd())} && {assignments} bash {shlex.quote(str(run.launch_script))}"


def _start(run: RunDir, job: JobSpec, launch_id: str, log: IO[bytes]) -> subprocess.Popen[bytes]:
    command = ["bash", str(run.launch_script)]
    if job.launch.on_hosts:
        command = module_command(HOSTS_MODULE, str(run.path))
    return subprocess.Popen(
        tied(*command),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env={**os.environ, LAUNCH_VARIABLE: launch_id},
        start_new_session=True,
    )


def _wait(
    child: subprocess.Popen[bytes],
    run: RunDir,
    launch_id: str,
    signals: StopSignals,
    watcher: Watcher,
    *,
    to_go_on: bool,
    patience: float,
) -> str | None:
    """Wait for torchrun, passing stop requests on. Returns who ended it at once, None when nobody did. `patience`: how
    long a program that sees a request to end at once by itself may take for that.
    """
    asked = False
    forced = 0.0
    by_force: str | None = None
    while child.poll() is None:
        watcher.poll()
        if by_force is None:
            by_force = "a second SIGINT" if signals.at_once else stop_at_once(run)
            if by_force is not None:
                forced = time.monotonic()
                watcher.say(f"ending at once, without waiting for a save ({by_force})")
        if signals.first is not None and not asked:
            asked = True
            request_stop(run, signals.first, to_go_on=to_go_on)
            if by_force is None:
                now = f"Ctrl-C {'again' if signals.first == 'SIGINT' else 'twice'}"
                watcher.say(f"{signals.first}: stopping after this step and saving; {now} ends it at once, unsaved")
        if by_force is not None and time.monotonic() - forced >= patience:
            end_processes(launch_id)  # again at each look: a process that is becoming another program was not found
        time.sleep(_POLL_SECONDS)
    watcher.poll()
    if by_force is None and child.returncode < 0:
        # Who asked for it did not wait for this process, which was slow or paused, and has killed the others himself.
        by_force = stop_at_once(run)
    return by_force
