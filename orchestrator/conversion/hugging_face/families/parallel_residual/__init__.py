"""Decoders whose attention and MLP have the same input."""
