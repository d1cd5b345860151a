"""Telling a command and a webhook of the user's how a run ended, by a process of its own (`__main__.py`)."""
