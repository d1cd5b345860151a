"""`python -m orchestrator.runtime RUN_DIR [--from-scratch]`: one rank of a training, as torchrun starts it."""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import io
import logging
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core
from orchestrator.errors import is_full_disk
from orchestrator.fields.values import resolve_environment
from orchestrator.planning.layout.elastic import on_nodes
from orchestrator.process import seconds_since_start
from orchestrator.run_directory.exits.causes import lost_a_peer
from orchestrator.run_directory.rundir import RunDir, in_command
from orchestrator.runtime.callbacks.base import Callback
from orchestrator.runtime.callbacks.evaluation import Evaluation, FinalEvaluation
from orchestrator.runtime.callbacks.exporting import Exporting
from orchestrator.runtime.callbacks.first_step import FirstStep
from orchestrator.runtime.callbacks.logging import MetricLogging
from orchestrator.runtime.callbacks.saving import CheckpointSaving
from orchestrator.runtime.callbacks.system import SystemMetrics
from orchestrator.runtime.callbacks.tracking import Tracking
from orchestrator.runtime.loop import train
from orchestrator.runtime.processes.device import select_device
from orchestrator.runtime.processes.exits import Outcome, outcome_of, write_exit_record
from orchestrator.runtime.processes.process_groups import stop_process_groups
from orchestrator.runtime.records.start_clock import StartClock
from orchestrator.runtime.startup import open_session
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_resolved


def training_callbacks(run: RunDir) -> list[Callback]:
    """What a training does beside its steps."""
    evaluating, saving = [Evaluation(), FirstStep()], [CheckpointSaving(), FinalEvaluation(), Exporting()]
    # The follower last: it sends what the others wrote.
    return [MetricLogging(), *evaluating, *saving, SystemMetrics(), Tracking()]


def main(callbacks: Callable[[RunDir], list[Callback]] = training_callbacks) -> int:
    """Run one rank. The exit code says whether what was asked for was done; the exit record says the rest."""
    clock = StartClock(seconds_since_start())
    clock.ends("imports")
    gc.freeze()  # megatron-core collects at every save, and need not look through what was imported
    parser = argparse.ArgumentParser(prog="python -m orchestrator.runtime", description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--from-scratch", action="store_true", help="start a run anew that has no checkpoint")
    arguments = parser.parse_args()
    run = RunDir(arguments.run_dir.resolve())
    rank = int(os.environ.get("RANK", "0"))
    launch_id = os.environ.get("ORCHESTRATOR_LAUNCH_ID", "by-hand")
    write_log_to_run(run, rank)
    try:
        job = _job_of_this_start(run)
        outcome, iteration = run_rank(run, job, launch_id, arguments.from_scratch, callbacks(run), clock)
    except BaseException as error:
        # The boundary of the process: whatever happened is recorded, and the traceback goes to this rank's log. A
        # person's mistake is said by its message, unless their own code raised it.
        outcome, iteration = outcome_of(error), None
        if outcome.cause != "user_error" or error.__cause__ is not None:
            traceback.print_exc()
    write_exit_record(run, launch_id, rank, outcome, iteration)
    print(f"rank {rank}: {outcome.cause}" + (f": {outcome.message}" if outcome.message else ""), flush=True)
    if outcome.message and lost_a_peer(outcome.message):
        print(f"rank {rank}: another rank had ended; the reason:  orchestrator status {in_command(run)}", flush=True)
    sys.stderr.flush()
    if outcome.exit_code:
        # Peers may hang in a collective with this rank; no clean-up of groups can be waited for.
        os._exit(outcome.exit_code)
    stop_process_groups()
    return 0


def _job_of_this_start(run: RunDir) -> JobSpec:
    """The run's job, on fewer nodes where it was started on fewer. Raises UserError where its layout forbids that."""
    job = load_resolved(run.resolved())
    if job.launch.min_nodes is None:
        return job
    return on_nodes(job, int(os.environ["WORLD_SIZE"]) // job.processes_per_node)


def run_rank(
    run: RunDir, job: JobSpec, launch_id: str, from_scratch: bool, callbacks: list[Callback], clock: StartClock
) -> tuple[Outcome, int]:
    """Open the session and train. Returns the outcome and the iteration that was reached."""
    for name, value in job.launch.env.items():
        os.environ[name] = resolve_environment(value)
    device = select_device(job.runtime.device, threads=job.runtime.threads_per_rank)
    with contextlib.ExitStack() as closing:
        session = open_session(run, job, device, launch_id, from_scratch, closing, clock)
        try:
            outcome = train(session, callbacks)
        except Exception:
            # An incarnation that was overtaken can fail in many ways, all for that one reason.
            session.launch.lease.check()
            raise
    return outcome, session.state.iteration


class _LogFile(io.FileIO):
    """A log that a full disk cannot turn into a failure of the training: what does not fit is lost."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if not is_full_disk(error):
                raise
            return len(data)


def _log_stream(descriptor: int) -> TextIO:
    file = _LogFile(descriptor, "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(file), errors="backslashreplace", line_buffering=True)


def write_log_to_run(run: RunDir, rank: int) -> None:
    """Send everything this process prints, C libraries included, to its log in the run directory, and where its
    threads are when it crashes.
    """
    run.logs.mkdir(parents=True, exist_ok=True)
    with run.open_to_append(run.rank_log(rank)) as log:
        for standard in (1, 2):
            os.dup2(log.fileno(), standard)
    sys.stdout, sys.stderr = (_log_stream(standard) for standard in (1, 2))
    faulthandler.enable(2)
    logging.basicConfig(level=logging.WARNING, format=f"%(asctime)s [rank {rank}] %(levelname)s %(name)s: %(message)s")


if __name__ == "__main__":
    sys.exit(main())
