"""Grouped-query attention whose heads are multiplied by a gate of the layer's input (Qiu et al. 2025)."""
