"""Checkpoints in a run directory, without torch: which there are, which are kept, and which is taken."""
