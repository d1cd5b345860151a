"""Measures of a checkpoint (`python -m orchestrator.evaluation`), under torchrun with TP · PP processes.

Rank 0 reads the files, decides what the network computes, and stores the results; the other ranks follow.

`python -m orchestrator.evaluation FOLDER --asked JSON --output DIR --summary FILE --batch-size N`: rank 0 reads files
before the processes connect, and then tells the other ranks what to compute (`evaluation.rank_calls`). FILE is a JSON
list of the paths of the results, in the requested order. A single process starts without torchrun, unless
`launch.template` is set.
"""
