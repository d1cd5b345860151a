"""YAML text as values that know where they were written."""
