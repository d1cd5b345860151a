"""One file per family: the names of its weights on both sides, and its configuration."""
