"""Norms, before branches of the residual stream and behind them, and adding a branch to it."""
