"""A shell script read for what it would start, with its variables expanded and nothing run.

A reader of our own: the library for this (bashlex) is under the GPL, and gives no expansion.
"""
