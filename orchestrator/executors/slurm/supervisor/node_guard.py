"""A node's program as a child, on the node of the batch script: when that is killed, nobody else is left who could put
the job back into the queue.
"""

from __future__ import annotations

import subprocess
import time

from orchestrator.executors.slurm.supervisor.job_end import conclude, is_stale, say
from orchestrator.executors.slurm.supervisor.slurm_job import SlurmJob
from orchestrator.launch.processes.stop_request import asked_to_stay, caught_signals, request_stop
from orchestrator.process import Process
from orchestrator.run_directory.exits.causes import Exit
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_resolved

_POLL_SECONDS = 0.2


def run_beside(supervisor: Process, run: RunDir, slurm: SlurmJob, program: list[str]) -> int:
    """Run the program as a child, beside the batch script. SLURM's signals go to the whole step: none is passed on."""
    settled = False
    job = load_resolved(run.resolved())  # now: once the batch script is dead, SLURM leaves only KillWait seconds
    with caught_signals() as signals:
        child = subprocess.Popen(program)
        while (code := child.poll()) is None:
            told = signals.first is not None
            if not settled and supervisor.is_dead:
                settled = True
                _take_over(run, job, slurm)
            # Told to end while the batch script lives: SLURM ends the job, and may kill the script before it has done.
            settled = settled or told
            time.sleep(_POLL_SECONDS)
    return 128 - code if code < 0 else code


def _take_over(run: RunDir, job: JobSpec, slurm: SlurmJob) -> None:
    """The batch script was killed: let the ranks save, and put the job back into the queue in its place."""
    if run.events().has_ended(slurm.launch_id):
        return  # it had come to its end
    say("the batch script was killed: saving and requeueing")
    if not is_stale(run, slurm.launch_id):
        request_stop(run, "the batch script was killed", to_go_on=True)
    end = Exit.of("killed", "the batch script was killed", None)
    conclude(run, job, slurm, end, None, asked_to_stay(run))
