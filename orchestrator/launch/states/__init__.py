"""The state of a run, derived from its files and the scheduler."""
