"""Reads a shell script for what it would start, with its variables expanded and nothing run.

We use our own reader: docs/decisions/0033-shell-reader.md has what tree-sitter-bash and bashlex do not do.
"""
