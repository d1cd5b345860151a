"""What a run's processes printed: pages of it, and searching it."""
