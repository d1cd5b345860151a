"""Megatron-LM's checkpoints, import and export: keys, arguments and the optimizer's state."""
