"""What a field of a spec is: its section, type, metadata, and what a change of it means on resume."""
