"""The launch of a run before the one that is to begin."""

from __future__ import annotations

import time

from orchestrator.api.starts.reporter import Reporter
from orchestrator.launch.run_names import must_be_readable
from orchestrator.run_directory.lease import read_holder
from orchestrator.run_directory.rundir import RunDir

_SECONDS_TO_END = 45.0


def wait_for_previous(run: RunDir, reporter: Reporter) -> None:
    """Wait a little for the ranks of a launcher that was killed: they were told to save and stop. Raises UserError
    where the run cannot be read.
    """
    last = run.events().last_launch
    if last is None or not last.launched.process.is_dead:
        return
    deadline = time.monotonic() + _SECONDS_TO_END
    said = False
    while time.monotonic() < deadline:
        with must_be_readable(run):
            holder = read_holder(run)
        if holder is None or not holder.live or not holder.process.is_here:
            return
        if not said:
            said = True
            reporter.say("the processes of the last start are still saving and stopping: waiting for them")
        time.sleep(0.2)
