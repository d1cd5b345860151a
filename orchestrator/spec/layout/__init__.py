"""How a step's work is spread over processes: parallelism, pipeline stages, batches and their ramp-up."""
