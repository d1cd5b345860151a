"""Rendering launch scripts, starting and watching runs, and what state a run is in."""
