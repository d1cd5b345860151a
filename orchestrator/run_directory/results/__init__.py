"""Evaluations of checkpoints, without torch: requests and results.

`run_directory.results.record` reads and writes results; `run_directory.results.evaluation_request` describes a request
and makes its key.
"""
