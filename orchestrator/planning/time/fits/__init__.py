"""What calibration makes of measured kernels: the efficiencies of a device."""
