"""Arithmetic on a job spec: what it will do, before anything is started. Pure functions, light imports."""
