"""Checks of a job before it starts, in addition to the rules of its spec."""
