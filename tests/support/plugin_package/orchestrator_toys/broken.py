"""A tracker that cannot be imported."""

raise RuntimeError("this package is broken")
