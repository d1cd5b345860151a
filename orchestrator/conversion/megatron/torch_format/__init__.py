"""Megatron-LM's older checkpoint format, `--ckpt-format torch`: a pickle per tensor and pipeline parallel rank."""
