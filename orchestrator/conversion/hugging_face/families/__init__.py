"""One file per family: what its weights are called on both sides, and what its configuration says."""
