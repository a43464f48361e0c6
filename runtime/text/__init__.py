"""Tokenizer and chat template, read from tokens.gguf."""
