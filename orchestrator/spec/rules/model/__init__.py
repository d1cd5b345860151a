"""Rules of model families, and of what a network is made of."""
