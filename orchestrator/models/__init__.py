"""What can be trained: `registry.py` has the list of model families and what is true of each."""
