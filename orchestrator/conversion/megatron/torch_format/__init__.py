"""Megatron-LM's older checkpoint format, `--ckpt-format torch`: one pickle per tensor and pipeline parallel rank."""
