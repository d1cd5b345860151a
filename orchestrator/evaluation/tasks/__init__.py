"""The tasks that can be evaluated, one module for each kind; `registry.py` finds them by name."""
