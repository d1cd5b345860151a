"""`python -m orchestrator.batch.node RUN_DIR PROGRAM…`: what srun starts once on each node of a job.

It tells the program where the first node is, in torchrun's own variables, and becomes it. On the node of the batch
script it stays as the program's parent: when the batch script is killed, nobody else is left who could put the job
back into the queue.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from orchestrator.executors.slurm.supervisor.slurm_job import SUPERVISOR_VARIABLE, SlurmJob
from orchestrator.process import Process
from orchestrator.run_directory.rundir import RunDir


def main() -> int:
    """Run the program on this node; returns its exit code."""
    run, program = RunDir(Path(sys.argv[1])), sys.argv[2:]
    slurm = SlurmJob.of()
    os.environ.update(rendezvous(slurm, int(os.environ["SLURM_NODEID"])))
    supervisor = Process.from_record(json.loads(os.environ.get(SUPERVISOR_VARIABLE, "{}")))
    if not supervisor.is_here:
        os.execvp(program[0], program)
    # What follows knows jobs, which takes half a second to import: the other nodes begin without it.
    from orchestrator.executors.slurm.supervisor.node_guard import run_beside

    return run_beside(supervisor, run, slurm, program)


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
