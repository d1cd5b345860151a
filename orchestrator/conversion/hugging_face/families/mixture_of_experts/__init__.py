"""Decoders whose first layers are dense, and that have experts in the others."""
