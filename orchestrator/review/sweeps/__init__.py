"""Sweeps: their cells, which parameters matter, and their figures."""
