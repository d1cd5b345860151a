"""Searches: sweeps whose cells are trials, stopped early at rungs (successive halving, ASHA) or drawn one after the
other from what earlier ones have shown (Optuna).

`halving` decides, `history` is what the ledger says, and `python -m orchestrator.sweeps.search SWEEP_DIR` is the
program that starts trials and writes down every decision before it acts on it. Killed at any moment and started again,
it goes on from the ledger and the cells' runs: there is no other state. Only `bayesian` imports Optuna.
"""
