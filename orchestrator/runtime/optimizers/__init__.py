"""Our optimizers, and what of their state a replica keeps."""
