"""Starting a run here again after an end that it may recover from, decided as on a cluster: by its cause, the spec and
what came of the starts before (requeue_policy.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from orchestrator.launch.local.launcher import Display, Watcher, launch
from orchestrator.launch.notifications.process import tell_of_withdrawn
from orchestrator.launch.processes.stop_request import StopSignals, asked_to_stay, caught_signals, request_stop
from orchestrator.launch.requeue_policy import Decision, decide, unless_withdrawn
from orchestrator.launch.start_checks import saved_nothing
from orchestrator.launch.states.state_words import withdrawn_end
from orchestrator.quantities import spec_duration
from orchestrator.run_directory.events.log import EventLog
from orchestrator.run_directory.events.types import BY_LAUNCHER, Event, Exited, Launched, Requeued, Withdrawn
from orchestrator.run_directory.exits.causes import Exit, cause_of
from orchestrator.run_directory.lease import DEFAULT_TIME_TO_LIVE, is_held
from orchestrator.run_directory.rundir import RunDir
from orchestrator.safe_path import RUNTIME_MODULE
from orchestrator.spec.job import JobSpec

_POLL_SECONDS = 0.1
_SECONDS_FOR_A_HOLDER = 2.5 * DEFAULT_TIME_TO_LIVE
"""A host that is cut off goes on for up to a minute, and then its lease has to run out."""
_SECONDS_BETWEEN_LOOKS_AT_A_HOLDER = 1.0


def launch_with_restarts(
    run: RunDir,
    job: JobSpec,
    *,
    from_scratch: bool = False,
    watcher: Callable[[], Watcher] = Watcher,
    module: str = RUNTIME_MODULE,
    job_id: str | None = None,
    on_launched: Callable[[str], None] = lambda launch_id: None,
) -> Exit:
    """Start the run's training here and wait for its end; start it again while `launch.on_failure` says so. Returns the
    last end. `job_id`: of the executor's job that this runs in. `watcher` makes what is told of one launch, and
    `on_launched` hears the id of each.

    A person who asks for a stop, before the end or while the next start is waited for, keeps the run from it: that is
    the end then, and not what it would have recovered from.

    Raises what `launch` raises.
    """
    before = len(run.events())
    decisions: list[Decision] = []

    def follow_up(end: Exit, exited: Exited) -> list[Event]:
        so_far = EventLog((*run.events().since(before), exited))
        decision = unless_withdrawn(_decide(job, end, so_far), asked_to_stay(run))
        decisions.append(decision)
        if decision.withdrawn_by is not None:
            return [Withdrawn(launch_id=exited.launch_id, by=decision.withdrawn_by)]
        if not decision.requeue:
            return []
        exclude = decision.exclude if job.launch.on_hosts else None
        again = Requeued(
            launch_id=exited.launch_id, cause=decision.reason, by=BY_LAUNCHER, exclude=exclude, delay=decision.delay
        )
        return [again]

    def once(**options: Any) -> Exit:
        end = launch(run, job, module=module, job_id=job_id, follow_up=follow_up, **options)
        return end if decisions[-1].withdrawn_by is None else withdrawn_end(end)

    end = once(from_scratch=from_scratch, watcher=watcher(), on_launched=on_launched)
    if not decisions[-1].requeue:
        return end
    with caught_signals() as signals:  # from here on no signal ends the launcher: its run has begun

        def launched(launch_id: str) -> None:
            on_launched(launch_id)
            if signals.first is not None:  # it came while the next start was being prepared
                request_stop(run, signals.first)

        while decisions[-1].requeue:
            shown = Display(watcher())
            anew = saved_nothing(run, run.events().since(before if from_scratch else 0))
            shown.say(_announcement(end, decisions[-1], anew=anew))
            if not _waited(run, job, decisions[-1].delay, signals):
                newest = run.events().last(Launched)
                launch_id = newest.launch_id if newest else None
                run.append(Withdrawn(launch_id=launch_id, by=asked_to_stay(run) or str(signals.first)))
                tell_of_withdrawn([run])
                shown.close()
                return withdrawn_end(end)
            end = once(from_scratch=anew, watcher=shown, on_launched=launched)
    if end.code != 0:
        Display(watcher()).say(f"it is not restarted: {decisions[-1].reason}")
    return end


def _announcement(end: Exit, decision: Decision, *, anew: bool) -> str:
    why = f"{cause_of(end.cause).sentence}{f' ({end.message})' if end.message else ''}"
    whence = "from iteration 0" if anew else "from the last checkpoint"
    return f"{why}: it restarts in {spec_duration(round(decision.delay))}, {whence} (launch.on_failure)"


def _decide(job: JobSpec, end: Exit, events: EventLog) -> Decision:
    decision = decide(job.launch, end, events)
    if decision.requeue and job.launch.nodes > 1 and not job.launch.on_hosts:
        return Decision(False, "the other machines would have to restart too")
    return decision


def _waited(run: RunDir, job: JobSpec, seconds: float, signals: StopSignals) -> bool:
    """Wait; False where a person asks for a stop meanwhile. A machine that was lost may still hold the run, until it is
    known to be gone.
    """
    begun = time.monotonic()
    while (waited := time.monotonic() - begun) < seconds or (
        job.launch.on_hosts and waited < _SECONDS_FOR_A_HOLDER and is_held(run)
    ):
        if signals.first is not None or run.stop_file.exists():
            return False
        is_over = waited >= seconds
        time.sleep(_SECONDS_BETWEEN_LOOKS_AT_A_HOLDER if is_over else min(_POLL_SECONDS, seconds - waited))
    return signals.first is None and not run.stop_file.exists()
