"""GGUF files: the container, its element types, and rows of its tensors."""
