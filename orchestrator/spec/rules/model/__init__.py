"""Rules for model families and for the parts of a network."""
