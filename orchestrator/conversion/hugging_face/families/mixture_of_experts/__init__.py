"""Decoders with experts, in all layers or in all but the first ones."""
