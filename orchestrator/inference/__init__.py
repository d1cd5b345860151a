"""Text from a checkpoint: `python -m orchestrator.inference RUN_DIR`, under torchrun with TP · PP processes."""
