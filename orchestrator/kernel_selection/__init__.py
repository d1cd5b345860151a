"""Selects the layers, kernels, CUDA graphs and overlaps of a job, for both plan and training."""
