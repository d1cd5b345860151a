"""Figures of runs: series of measurements, axes, marks, and the curves drawn from them."""
