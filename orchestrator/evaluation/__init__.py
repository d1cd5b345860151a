"""Measures of a checkpoint (`python -m orchestrator.evaluation`), under torchrun with TP · PP processes.

Rank 0 reads the files, decides what the network is to compute, and keeps what it has computed; the others follow.
"""
