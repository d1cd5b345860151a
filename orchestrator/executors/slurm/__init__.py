"""Runs as jobs of a SLURM cluster."""
