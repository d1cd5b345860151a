"""Commands for data and models: the input of a run, and the use of its checkpoints."""
