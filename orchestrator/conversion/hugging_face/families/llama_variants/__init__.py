"""Decoders that are a Llama but for their norms, positions and factors."""
