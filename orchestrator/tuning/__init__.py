"""The tuner: the fastest layout of a job that fits its GPUs. Searched with the estimates of planning, and measured."""
