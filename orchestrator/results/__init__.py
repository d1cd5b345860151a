"""Evaluations of checkpoints, without torch: what is asked (`asked.py`) and what was found (`record.py`)."""
