"""Tables of a plan and of a search for layouts, and a verdict as lines of text."""
