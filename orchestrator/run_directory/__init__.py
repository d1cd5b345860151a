"""The run directory: its paths, events, lease, checkpoints, results, and why a run ended."""
