"""Transformer Engine: whether it is available, FP8, and overlapped tensor parallelism.

Its layers are in `transformer_engine_layers.py` next to this folder.
"""
