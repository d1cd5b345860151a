"""From files, overrides and presets to one tree of values, with the place of each."""
