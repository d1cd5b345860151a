"""Checkpoints in a run directory, without torch: which exist, which are kept, and which one is used.

`run_directory.checkpoints.commit_markers` writes and reads the marker and verifies files against it; the ranks of a job
share the reading. Only `run_directory.checkpoints.pretrained.find_weights` interprets `checkpoint.pretrained`. A run
reads it only while it has no checkpoint of its own, and then writes the event `pretrained`.
"""
