"""Fits of calibration: the efficiencies of a device, from measured kernels."""
