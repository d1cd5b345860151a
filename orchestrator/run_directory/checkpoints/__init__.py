"""Checkpoints in a run directory, without torch: which there are, which are kept, and which is taken.

`run_directory.checkpoints.commit_markers` writes and reads the marker and verifies files against it; the ranks of a
job share the reading. `run_directory.checkpoints.pretrained.find_weights` is the one meaning of
`checkpoint.pretrained`. A run reads it only while it has no checkpoint of its own, and then writes the event
`pretrained`.
"""
