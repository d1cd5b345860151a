"""What can be measured, one module for each kind; `choice.py` finds it by name."""
