"""Megatron-LM's checkpoints, in and out: keys, arguments and the optimizer's state."""
