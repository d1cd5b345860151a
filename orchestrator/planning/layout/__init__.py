"""Ranks, their groups and pipeline stages: what lies where, and when each stage does what."""
