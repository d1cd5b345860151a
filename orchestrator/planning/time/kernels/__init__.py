"""Seconds of kernels: of matrix products, of attention, and of what only moves memory."""
