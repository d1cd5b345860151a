"""What a training step does with a micro-batch: `base.py` has the protocol, each other module one step."""
