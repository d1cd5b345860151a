"""Tokenizers of every kind, their vocabularies and training, and text as token ids."""
