"""Seconds of the layers of some families."""
