"""What Transformer Engine needs: whether it is there, FP8, and tensor parallelism that sends while it multiplies. Its
layers are in `transformer_engine_layers.py` beside this folder.
"""
