"""Norms before and after branches of the residual stream, and adding a branch to it."""
