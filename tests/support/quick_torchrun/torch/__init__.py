"""A stand-in that has nothing but `python -m torch.distributed.run`."""
