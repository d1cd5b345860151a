"""Runs as jobs of a SLURM cluster.

`client.job_states(job_ids)` takes one call of squeue and at most one of sacct for up to 5,000 ids. It passes over what
is no job id and leaves out jobs that nobody knows. That accounting does not answer goes to `warn`, and takes nothing
away. Times are seconds since the epoch; `submitted` is that of the last requeue; an estimate is never given for a
fact.

SchedulerError (exit code 1) is for no answer, UserError (2) for what was refused, or where there is no SLURM; each is
one line. Time-outs are 60 s, and 120 s for sbatch; a submission without an answer says that the job may be there
(PerhapsSubmitted).
"""
