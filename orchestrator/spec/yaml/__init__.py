"""YAML text as values that know their position in it."""
