"""Selects the layers, kernels, CUDA graphs and overlaps of a job, for both the plan and the training."""
