"""Multi-token prediction: layers behind the last one that predict tokens after the next (DeepSeek-V3, section 2.2)."""
