"""Starting, continuing and stopping runs: what the Python interface and the commands share."""
