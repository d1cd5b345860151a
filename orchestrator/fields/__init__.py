"""Fields of a spec: their sections, types and metadata, and what a change means on resume."""
