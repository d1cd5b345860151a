"""The gated delta net (Yang et al. 2024, "Gated Delta Networks"): linear attention of Qwen3-Next, in some layers."""
