"""The model families: `base.py` has the protocol, `registry.py` the table, each other module one family."""
