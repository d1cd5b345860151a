"""The attention cores between the matrices of a block, and which one a run uses."""
