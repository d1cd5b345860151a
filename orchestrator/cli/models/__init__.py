"""Commands about data and models: what a run is fed, and what becomes of its checkpoints."""
