"""Decoders with encoders of images."""
