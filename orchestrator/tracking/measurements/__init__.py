"""Measurements of a run, as they are stored: metrics, goodput, data sources, and the load of its nodes."""
