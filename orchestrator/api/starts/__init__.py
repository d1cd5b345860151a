"""Starting, continuing and stopping runs: code shared by the Python interface and the commands."""
