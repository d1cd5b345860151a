"""Flags of one block of a model, which mean something beside the flag that asks for the block."""
