"""Rules of kernels, CUDA graphs, FP8 and recomputation."""
