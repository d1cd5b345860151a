"""Hugging Face's layout: weights, configuration, tokenizer, image processor and adapters, in and out."""
