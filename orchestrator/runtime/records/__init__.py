"""The records of a run other than its checkpoints."""
