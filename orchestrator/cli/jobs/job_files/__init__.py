"""Writing a job file: its questions, its comments, and the schema next to it."""
