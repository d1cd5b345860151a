"""The code of a run: its version, a copy of it, and code sent by another machine."""
