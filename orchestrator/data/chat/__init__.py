"""Conversations: read from JSON lines, written out by a chat template, stored with a mask of what counts, packed."""
