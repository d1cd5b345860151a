"""`python -m orchestrator.batch.node RUN_DIR PROGRAM…`: what srun starts once on each node of a job.

It tells the program where the first node is, in torchrun's own variables, and becomes it. On the node of the batch
script it stays as the program's parent: when the batch script is killed, nobody else is left who could put the job
back into the queue.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from orchestrator.executors.slurm.supervisor.job_end import conclude, is_stale, say
from orchestrator.executors.slurm.supervisor.slurm_job import SlurmJob
from orchestrator.executors.slurm.supervisor.supervisor import SUPERVISOR_VARIABLE
from orchestrator.launch.processes.stop_request import asked_to_stay, caught_signals, request_stop
from orchestrator.process import Process
from orchestrator.run_directory.exits.causes import Exit
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_resolved

_POLL_SECONDS = 0.2


def main() -> int:
    """Run the program on this node; returns its exit code."""
    run, program = RunDir(Path(sys.argv[1])), sys.argv[2:]
    slurm = SlurmJob.of()
    os.environ.update(rendezvous(slurm, int(os.environ["SLURM_NODEID"])))
    supervisor = Process.from_record(json.loads(os.environ.get(SUPERVISOR_VARIABLE, "{}")))
    if not supervisor.is_here:
        os.execvp(program[0], program)
    return _beside(supervisor, run, slurm, program)


def rendezvous(slurm: SlurmJob, node_rank: int) -> dict[str, str]:
    """Where the nodes of a job meet: for torchrun (PET_…), and for programs that use torch.distributed themselves."""
    head, port = slurm.nodes[0], slurm.port
    return {
        "MASTER_ADDR": head,
        "MASTER_PORT": str(port),
        "NODES": str(len(slurm.nodes)),
        "NODE_RANK": str(node_rank),
        "NODE_NAME": slurm.nodes[node_rank],
        "NODE_NAMES": ",".join(slurm.nodes),
        "PET_RDZV_ENDPOINT": f"{head}:{port}",
        "PET_RDZV_ID": slurm.launch_id,
        # Said outright: to find it out from host names and addresses takes minutes where name service is slow.
        "PET_RDZV_CONF": f"is_host={int(node_rank == 0)}",
    }


def _beside(supervisor: Process, run: RunDir, slurm: SlurmJob, program: list[str]) -> int:
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
