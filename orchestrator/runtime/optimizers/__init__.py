"""Our optimizers, and the part of their state that a replica keeps."""
