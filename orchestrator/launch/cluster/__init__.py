"""Handing a run to a SLURM cluster: its jobs, the preparation of its data, a snapshot of its code."""
