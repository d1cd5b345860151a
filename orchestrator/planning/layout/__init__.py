"""Ranks, their groups and pipeline stages: what is where, and when each stage does what."""
