"""Measures of a checkpoint (`python -m orchestrator.evaluation`), under torchrun with TP · PP processes.

Rank 0 reads the files, decides what the network is to compute, and keeps what it has computed; the others follow.

`python -m orchestrator.evaluation FOLDER --asked JSON --output DIR --summary FILE --batch-size N`: rank 0 reads files
before the processes meet; then it says what all compute (`evaluation.rank_calls`), and the others follow. FILE is a
JSON list of the paths of the results, in the order that was asked for. One process alone starts without torchrun,
unless `launch.template` is set.
"""
