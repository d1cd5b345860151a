"""Starting a run on this machine, supervising it, and restarting it."""
