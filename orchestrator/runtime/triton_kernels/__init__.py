"""Triton kernels: modules that are imported only if there is a GPU."""
