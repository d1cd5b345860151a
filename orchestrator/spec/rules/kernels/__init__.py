"""Rules for kernels, CUDA graphs, FP8 and recomputation."""
