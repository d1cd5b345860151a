"""Layer implementations. Each module has `block_spec(config, vp_stage)`, megatron-core's description of a stage."""
