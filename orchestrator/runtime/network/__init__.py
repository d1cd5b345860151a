"""The network of one rank: building it, loading its weights, and adapters."""
