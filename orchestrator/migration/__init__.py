"""Other tools' jobs and ours: Megatron-LM's flags and Accelerate's YAML become a job spec, and a job spec flags."""
