"""The distribution of a step's work over processes: parallelism, pipeline stages, batches and their ramp-up."""
