"""Inside a SLURM job: supervises one incarnation of a run, from its start to the decision about what comes next.

The launch id is `CLUSTER-JOB.RESTARTS`. A later launch of the same job takes the lease from an earlier one at once
(`run_directory.lease.supersedes`). A supervisor whose launch is not the newest writes nothing into the run directory
and does not touch its stop file. A requeue is recorded before SLURM is asked for it.

The batch script becomes `orchestrator.batch RUN_DIR [options] -- SRUN… -- TRAINING…`. `node.py` gives the program of
each node torchrun's rendezvous variables (`PET_…`) and MASTER_ADDR, MASTER_PORT, NODES, NODE_RANK, NODE_NAME. With
`ORCHESTRATOR_REQUEUE_EXIT_CODE` set, a supervisor that would requeue exits with that code instead, unless the next
start has to wait or to exclude nodes.
"""
