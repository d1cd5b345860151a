"""Tokenizers of all kinds, their vocabularies and training, and text as token ids."""
