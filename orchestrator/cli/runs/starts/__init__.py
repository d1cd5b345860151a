"""Code shared by commands that start a run: which run is continued, its submission, and Ctrl-C meanwhile."""
