"""Decoders that are a Llama but for their norms, positions, factors and experts."""
