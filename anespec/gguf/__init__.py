"""GGUF files: the container, its element types, and rows of its tensors."""

MAGIC = b"GGUF"
"""The first bytes of every GGUF file."""
