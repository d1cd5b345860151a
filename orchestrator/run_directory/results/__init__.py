"""Evaluations of checkpoints, without torch: what is asked and what was found.

`run_directory.results.record` reads and writes results; `run_directory.results.evaluation_request` says what is asked
and makes the key.
"""
