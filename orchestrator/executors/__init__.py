"""What runs are started with: a scheduler, or programs of this machine."""
