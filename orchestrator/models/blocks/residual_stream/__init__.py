"""What is around the branches of the residual stream: the norms before and behind them, and factors."""
