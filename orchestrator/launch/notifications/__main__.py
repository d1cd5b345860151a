"""`python -m orchestrator.launch.notifications RUN_DIR LAUNCH_ID`: tells how a start of a run ended, or with
--withdrawn of runs that were taken out of a queue; see process.py.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
import time
from pathlib import Path

from orchestrator.errors import OrchestratorError
from orchestrator.launch.notifications.channels import tell
from orchestrator.launch.notifications.notice import notice_of
from orchestrator.launch.notifications.occasions import occasion_of, wanted
from orchestrator.run_directory.events.types import Finished
from orchestrator.run_directory.lease import read_holder
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_resolved
from orchestrator.spec.sections.notifications import Occasion

_SECONDS_FOR_THE_RANKS = 120.0
_POLL_SECONDS = 0.5


def main() -> int:
    """Tell, once there is something to tell; returns the exit code, which nobody reads."""
    parser = argparse.ArgumentParser(prog="python -m orchestrator.launch.notifications", description=__doc__)
    parser.add_argument("run_dir", type=Path, nargs="?")
    parser.add_argument("launch_id", nargs="?", help="none: its data could not be made, and it never starts")
    parser.add_argument("--beside", action="store_true", help="wait for a line on standard input, or its end")
    parser.add_argument("--started", action="store_true", help="tell that it started")
    parser.add_argument("--withdrawn", nargs="+", type=Path, metavar="RUN_DIR", help="tell of these and nothing else")
    arguments = parser.parse_args()
    if arguments.withdrawn:
        return max([_tell_of_withdrawn(RunDir(path)) for path in arguments.withdrawn])
    if arguments.run_dir is None:
        parser.error("of which run?")
    parent = os.getppid()
    run = RunDir(arguments.run_dir.absolute())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # meant for the run, whose end is still to be told
    try:
        job = load_resolved(run.resolved())
        if arguments.launch_id is None:
            _tell(run, job, "", "failed")
            return 0
        if arguments.started or arguments.beside:
            _tell(run, job, arguments.launch_id, "started")
        if arguments.beside:
            _wait_for_the_end(parent)
        if not arguments.started:
            _tell(run, job, arguments.launch_id, _occasion(run, arguments.launch_id))
    except OrchestratorError as error:
        print(f"nobody was told: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _tell_of_withdrawn(run: RunDir) -> int:
    try:
        last = run.events().last_launch
        _tell(run, load_resolved(run.resolved()), last.launch_id if last else "", "stopped")
    except OrchestratorError as error:
        print(f"no notification was sent for {run.run_id}: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _wait_for_the_end(parent: int) -> None:
    while os.getppid() == parent and not select.select([sys.stdin], [], [], _POLL_SECONDS)[0]:
        pass


def _occasion(run: RunDir, launch_id: str) -> Occasion | None:
    """What became of the start. One that nobody lived to write down has failed, once its ranks are gone too."""
    occasion = occasion_of(run.events(), launch_id)
    if occasion is not None or run.events().has_ended(launch_id):
        return occasion
    deadline = time.monotonic() + _SECONDS_FOR_THE_RANKS
    while time.monotonic() < deadline and (holder := read_holder(run)) is not None and holder.live:
        time.sleep(_POLL_SECONDS)
    events = run.events()
    newest = events.last_launch
    if newest is None or newest.launch_id != launch_id or run.events().has_ended(launch_id):
        return occasion_of(events, launch_id)  # somebody has started it anew meanwhile, and knows
    return "completed" if events.since(events.index(newest.launched)).first(Finished) else "failed"


def _tell(run: RunDir, job: JobSpec, launch_id: str, occasion: Occasion | None) -> None:
    if occasion is not None and wanted(run, job.notifications, occasion):
        tell(run, job.notifications, notice_of(run, job, launch_id, occasion))


if __name__ == "__main__":
    sys.exit(main())
