"""Reads a shell script for what it would start, with its variables expanded and nothing run.

We use our own reader, because the library for this (bashlex) is under the GPL and does no expansion.
"""
