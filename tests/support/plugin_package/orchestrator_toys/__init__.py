"""What another package adds to the orchestrator: a tracker and an attention."""
