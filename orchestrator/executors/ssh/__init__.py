"""A run on several machines without a scheduler, started through the user's own `ssh`."""
