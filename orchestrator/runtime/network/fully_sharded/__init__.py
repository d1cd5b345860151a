"""Fully sharded data parallelism: replicas share out weights, gradients and optimizer state (ZeRO, stage 3)."""
