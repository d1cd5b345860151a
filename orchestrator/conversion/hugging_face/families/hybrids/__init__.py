"""Decoders with state space layers."""
