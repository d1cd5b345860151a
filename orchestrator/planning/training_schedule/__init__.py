"""Batches, learning rates and progress: what each step is."""
