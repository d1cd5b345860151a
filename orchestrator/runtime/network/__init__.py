"""The network of one rank: built, filled, and adapted."""
