"""Files, overrides and presets as one tree of values, with the position of each."""
