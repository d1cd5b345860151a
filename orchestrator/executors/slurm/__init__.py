"""Runs as jobs of a SLURM cluster.

`client.job_states(job_ids)` makes one call of squeue and at most one of sacct for up to 5,000 ids. It ignores invalid
job ids and leaves out unknown jobs. If accounting does not answer, it reports that to `warn` and still returns
everything else. Times are seconds since the epoch; `submitted` is the time of the last requeue; an estimate is never
reported as a fact.

SchedulerError (exit code 1) means that there was no answer; UserError (2) means that SLURM refused, or that there is no
SLURM. Each is one line. Time-outs are 60 s, and 120 s for sbatch. If a submission gets no answer, the error says that
the job may exist (PerhapsSubmitted).
"""
