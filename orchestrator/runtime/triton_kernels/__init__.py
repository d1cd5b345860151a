"""What Triton compiles for GPUs: modules that are only imported where there is one."""
