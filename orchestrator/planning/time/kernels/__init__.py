"""Seconds of kernels: matrix products, attention, and kernels that only move memory."""
