"""Checkpoints: written, found, read and exported."""
