"""Layer implementations. Each module offers `block_spec(config, vp_stage)`, megatron-core's description of a stage."""
