"""Encode and decode text with the tokenizer and chat template of a model's tokens.gguf."""
