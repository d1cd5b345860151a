"""Starting the training of a run on this machine, and seeing it through to its end.

torchrun runs in a session of its own, so that Ctrl-C reaches the launcher only, which asks for a clean stop through
the stop file. If the launcher is killed outright, the kernel sends torchrun SIGTERM, and the ranks save and stop.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, Any

from orchestrator.causes import Exit, exit_records
from orchestrator.checkpoints import committed
from orchestrator.errors import RunIsHeld, UserError
from orchestrator.launch.exits import LogMarks, classify
from orchestrator.launch.notifications import process as notifications
from orchestrator.launch.processes import LAUNCH_VARIABLE, end_processes
from orchestrator.launch.render import RUNTIME_MODULE, refuse_missing_python, render
from orchestrator.lease import held_message, read_holder
from orchestrator.process import Process
from orchestrator.rundir import RunDir, write_atomically
from orchestrator.spec.job import JobSpec

_POLL_SECONDS = 0.1
_ORPHAN_GRACE_SECONDS = 30.0
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


@dataclass
class StopSignals:
    """Signals that reached the launcher: the first asks for a clean stop, a second SIGINT for an end at once."""

    received: list[signal.Signals] = field(default_factory=list)

    @property
    def first(self) -> str | None:
        """Name of the first one."""
        return self.received[0].name if self.received else None

    @property
    def at_once(self) -> bool:
        """Whether the person is out of patience."""
        return self.received.count(signal.SIGINT) > 1


@contextmanager
def caught_signals() -> Iterator[StopSignals]:
    """Collect stop signals instead of being ended by them."""
    caught = StopSignals()

    def note(number: int, frame: Any) -> None:
        caught.received.append(signal.Signals(number))

    previous = {number: signal.signal(number, note) for number in _STOP_SIGNALS}
    try:
        yield caught
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class Watcher:
    """What is told of a running launch. The base class keeps quiet."""

    def poll(self) -> None:
        """Called several times per second."""

    def say(self, message: str) -> None:
        """Something that the person should know."""

    def close(self) -> None:
        """The launch has ended."""


class _Display(Watcher):
    """Another watcher, for as long as that can show anything: a closed pipe or a full disk ends what is shown, and
    never the training.
    """

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    def poll(self) -> None:
        self._show(self._watcher.poll)

    def say(self, message: str) -> None:
        self._show(lambda: self._watcher.say(message))

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
    on_launched: Callable[[str], None] = lambda launch_id: None,
) -> Exit:
    """Start the run's training here, wait for its end, and say why it ended.

    Raises RunIsHeld when it already runs, and UserError when it cannot be started as asked. `on_launched` hears the
    launch id. What the watcher cannot show, because its output is gone, is not shown.
    """
    check_startable(run, job, from_scratch=from_scratch)
    watcher = _Display(watcher or Watcher())
    launch_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:6]}"
    run.logs.mkdir(exist_ok=True)
    marks = LogMarks.of(run)
    script = render(job, run_dir=run.path, python=sys.executable, from_scratch=from_scratch, module=module)
    write_atomically(run.launch_script, script)
    run.stop_file.unlink(missing_ok=True)
    with caught_signals() as signals:
        run.append_event("launched", launch_id=launch_id, **Process.current().to_record())
        notifier = notifications.begin(run, job, launch_id)
        with open(run.launcher_log, "ab") as log:
            log.write(f"=== launch {launch_id} at {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode())
            log.flush()
            child = _start(run, launch_id, log)
        on_launched(launch_id)
        if job.launch.nodes > 1:
            watcher.say(_for_the_others(run, launch_id))
        try:
            by_force = _wait(child, run, launch_id, signals, watcher)
        finally:
            watcher.close()
        if child.returncode < 0 or by_force is not None:  # torchrun itself was killed and has left its ranks behind
            end_processes(launch_id, grace=_ORPHAN_GRACE_SECONDS if by_force is None else 0.0)
        end = classify(run, launch_id, child.returncode, marks)
        if by_force is not None:
            end = _end_by_force(run, launch_id, by_force, end.iteration)
        run.append_event(
            "exited",
            launch_id=launch_id,
            code=child.returncode,
            cause=end.cause,
            message=end.message,
            iteration=end.iteration,
            evidence=list(end.evidence),
        )
        notifications.over(notifier)
    return end


def check_startable(run: RunDir, job: JobSpec, *, from_scratch: bool) -> None:
    """Raises RunIsHeld when a live process works on the run, UserError when this machine cannot start it."""
    holder = read_holder(run)
    if holder is not None and holder.live:
        raise RunIsHeld(held_message(run, holder))
    refuse_imported(run)
    events = run.events()
    launched = last_launch(events)
    if launched is not None and launched["exited"] is None:
        process = Process.from_record(launched)
        if process.is_alive and process.pid != os.getpid():
            since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(launched["time"]))
            raise RunIsHeld(
                f"run {run.run_id} is being started by pid {process.pid} on {process.host} since {since}.\n"
                f"      Follow it with `orchestrator logs {run.run_id} -f`, or stop it with "
                f"`orchestrator cancel {run.run_id}`."
            )
    refuse_without_checkpoint(run, from_scratch=from_scratch)
    refuse_missing_python(job)
    if job.launch.nodes > 1 and not (os.environ.get("MASTER_ADDR") and os.environ.get("NODE_RANK") == "0"):
        raise UserError(
            f"this job runs on {job.launch.nodes} machines: start it on the first one, with MASTER_ADDR set to that "
            "machine's address and NODE_RANK to 0; it then says what to start on the others"
        )
    render(job, run_dir=run.path, python=sys.executable)  # a template of the job's own may be wrong


def refuse_imported(run: RunDir) -> None:
    """Raises UserError for a run that holds weights from elsewhere."""
    if any(event.get("event") == "imported" for event in run.events()):
        raise UserError(
            f"run {run.run_id} was imported: it holds weights and no optimizer, and does not train itself.\n"
            f"      Start another job from it, with checkpoint.pretrained: {run.path}"
        )


def begins_anew(run: RunDir) -> bool:
    """Whether a run was started before and has no checkpoint to go on from; damage is not looked for."""
    return any(event.get("event") == "started" for event in run.events()) and not committed(run)


def refuse_without_checkpoint(run: RunDir, *, from_scratch: bool) -> None:
    """Raises UserError when a start would end where its ranks look for a checkpoint: what is known is said before."""
    if not from_scratch and begins_anew(run):
        raise UserError(
            f"run {run.run_id} was started before and has no checkpoint to go on from; "
            "nothing was started or changed.\n"
            "      To begin again at iteration 0, add --from-scratch."
        )


def last_launch(events: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The newest `launched` event, with its `exited` event (or None) under "exited".

    Launches that were refused because the run was held are passed over: they changed nothing.
    """
    launches: dict[str, dict[str, Any]] = {}
    for event in events:
        launch_id = str(event.get("launch_id"))
        if event.get("event") == "launched":
            launches[launch_id] = {**event, "exited": None}
        elif event.get("event") == "exited" and launch_id in launches:
            if event.get("cause") == "held":
                del launches[launch_id]
            else:
                launches[launch_id]["exited"] = event
    return list(launches.values())[-1] if launches else None


def request_stop(run: RunDir, by: str, *, at_once: bool = False) -> None:
    """Ask whoever runs it to stop: cleanly, or at once without saving."""
    write_atomically(run.stop_file, json.dumps({"by": by, "at_once": at_once, "time": time.time()}))


def ended_by_force(by: str, iteration: int | None) -> Exit:
    """The end of a launch whose processes were killed because a person asked for that."""
    return Exit.of("cancelled", f"ended at once, without saving, by {by}", iteration)


def _end_by_force(run: RunDir, launch_id: str, by: str, iteration: int | None) -> Exit:
    """The same, unless rank 0 had said by then that it was done or had saved and stopped: nothing was lost."""
    cause = exit_records(run, launch_id).get(0, {}).get("cause")
    return Exit.of(cause, "", iteration) if cause in ("completed", "stopped") else ended_by_force(by, iteration)


def stop_at_once(run: RunDir) -> str | None:
    """Who asked, through the stop file, for an end without saving; None when nobody did."""
    request = run.stop_request()
    return str(request.get("by")) if request.get("at_once") is True else None


def _for_the_others(run: RunDir, launch_id: str) -> str:
    address = {name: os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT") if name in os.environ}
    variables = {**address, "NODE_RANK": "1", LAUNCH_VARIABLE: launch_id}
    assignments = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    return (
        "waiting for the other machines; start on each, with its own number:\n"
        f"      {assignments} bash {shlex.quote(str(run.launch_script))}"
    )


def _start(run: RunDir, launch_id: str, log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "orchestrator.launch.tether", str(os.getpid()), "bash", str(run.launch_script)],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env={**os.environ, LAUNCH_VARIABLE: launch_id},
        start_new_session=True,
    )


def _wait(
    child: subprocess.Popen[bytes], run: RunDir, launch_id: str, signals: StopSignals, watcher: Watcher
) -> str | None:
    """Wait for torchrun, passing stop requests on. Returns who ended it at once, None when nobody did."""
    asked = False
    by_force: str | None = None
    while child.poll() is None:
        watcher.poll()
        if by_force is None:
            by_force = "a second SIGINT" if signals.at_once else stop_at_once(run)
            if by_force is not None:
                watcher.say(f"ending at once, without saving ({by_force})")
        if signals.first is not None and not asked:
            asked = True
            request_stop(run, signals.first)
            if by_force is None:
                now = f"Ctrl-C {'again' if signals.first == 'SIGINT' else 'twice'}"
                watcher.say(f"{signals.first}: stopping after this step and saving; {now} ends it at once, unsaved")
        if by_force is not None:
            end_processes(launch_id)  # again at each look: a process that is becoming another program was not found
        time.sleep(_POLL_SECONDS)
    watcher.poll()
    if by_force is None and child.returncode < 0:
        # Who asked for it did not wait for this process, which was slow or paused, and has killed the others himself.
        by_force = stop_at_once(run)
    return by_force
