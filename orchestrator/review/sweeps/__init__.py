"""Sweeps: their cells, which parameters matter, and figures of them."""
