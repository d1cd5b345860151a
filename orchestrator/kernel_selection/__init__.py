"""Which layers, kernels, CUDA graphs and overlaps a job gets: decided here, for the plan and for the training alike."""
