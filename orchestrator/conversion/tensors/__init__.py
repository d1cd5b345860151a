"""Tensor files, read and written one tensor at a time: safetensors and torch's distributed format."""
