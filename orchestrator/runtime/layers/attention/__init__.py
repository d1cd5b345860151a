"""What computes attention between the matrices of a block, and which of it a run has."""
