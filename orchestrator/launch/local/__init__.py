"""Starting a run on this machine, seeing it through, and starting it again."""
