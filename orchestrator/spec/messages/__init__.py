"""Mistakes in a spec, in words: what is wrong where, and what was probably meant."""
