"""Rules for the layout of a job's processes."""
