"""Writing, finding, reading and exporting checkpoints."""
