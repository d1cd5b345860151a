"""What the commands that start a run share: which run is continued, its submission, and Ctrl-C meanwhile."""
