"""The data sets that the model families train on: `base.py` has the protocol, `registry.py` the table."""
