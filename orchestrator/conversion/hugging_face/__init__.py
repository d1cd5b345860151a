"""Hugging Face's format, import and export: weights, configuration, tokenizer, image processor and adapters."""
