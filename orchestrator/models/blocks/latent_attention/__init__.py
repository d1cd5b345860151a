"""Multi-head latent attention (DeepSeek-AI 2024, "DeepSeek-V2", section 2.1): keys and values come from a latent."""
