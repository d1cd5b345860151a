"""Evaluations of checkpoints, without torch: what is asked and what was found."""
