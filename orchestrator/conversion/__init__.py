"""Checkpoints in and out of Hugging Face's layout: `python -m orchestrator.conversion`."""
