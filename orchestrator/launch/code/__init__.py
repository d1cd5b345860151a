"""Which code a run has: its version, a copy of it, and what another machine has sent."""
