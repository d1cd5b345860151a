"""What can be measured, one module for each kind; `registry.py` finds it by name."""
