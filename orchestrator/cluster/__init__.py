"""What a cluster has, and how to ask it."""
