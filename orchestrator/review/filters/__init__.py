"""Which runs a person means, by what, and in which order."""
