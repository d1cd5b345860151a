"""The models that can be trained: `registry.py` lists the model families and their traits."""
