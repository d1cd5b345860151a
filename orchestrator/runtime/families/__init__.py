"""The model families: `base.py` has the protocol, `choice.py` the table, each other module one family."""
