"""The output of a run's processes: pages of it, and searching it."""
