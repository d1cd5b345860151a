"""Inside a SLURM job: one incarnation of a run, supervised from its start to the decision what comes next."""
